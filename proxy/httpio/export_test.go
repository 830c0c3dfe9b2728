package httpio

import (
	"net/http"
	"time"

	"ftproxy/logbuffer"
)

// Mutate switches protections of a sink off, by name.
func (s *Sink) Mutate(names ...string) {
	switches := map[string]*bool{
		"key-per-attempt": &s.mutant.keyPerAttempt, "ack-before-answer": &s.mutant.ackBeforeAnswer,
		"many-per-key": &s.mutant.manyPerKey, "letters-on-stop": &s.mutant.lettersOnStop,
		"ignore-retry-after": &s.mutant.ignoreRetryAfter, "ack-out-of-order": &s.mutant.ackOutOfOrder,
	}
	for _, name := range names {
		*switches[name] = true
	}
}

// Split cuts a body as a Content-Type says.
func Split(contentType, query string, body []byte, maxTuples int) ([]logbuffer.Tuple, error) {
	r, err := http.NewRequest(http.MethodPost, "http://host/"+query, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", contentType)
	f, err := formOf(r)
	if err != nil {
		return nil, err
	}
	return splitBody(f, body, maxTuples)
}

// Names for tests.
var (
	DecodeLink = decodeLink
	AppendLink = appendLink
	Elements   = elementsOf
	Escape     = escape
	EscapeName = escapeName
	Unescape   = unescape
	OffsetList = offsetList
	ListedKeys = listedKeys
	RetryAfter = retryAfter
	LinkType   = linkType
	InFlight   = func(s *Source) int64 {
		s.server.budget.mu.Lock()
		defer s.server.budget.mu.Unlock()
		return s.server.limits.inFlightBytes - s.server.budget.free
	}
	LoadPair    = loadPair
	StatusTable = outcomes
)

// Pair is a certificate that is read again.
type Pair = pair

// Age makes the last look at the files old.
func (p *pair) Age() { p.mu.Lock(); defer p.mu.Unlock(); p.looked = time.Time{} }

// Get returns the certificate's first block, and the readings that failed.
func (p *pair) Get() ([]byte, uint64) { return p.get().Certificate[0], p.failures.Load() }

// Row returns a row of the table of outcomes.
func (o outcome) Row() (name, verdict, because string) {
	return o.name(), o.verdict.String(), o.because
}

// VerdictOf looks a status up.
func VerdictOf(status int) string { return verdictOf(status).String() }

// RoundTripper is a transport made of a function.
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f RoundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Through makes a sink send through a function, without a network.
func (s *Sink) Through(f RoundTripper) { s.client.Transport = f }

// Through makes a link send through a function, without a network.
func (s *LinkSink) Through(f RoundTripper) { s.client.Transport = f }
