package httpio

import (
	"net/http"
	"slices"
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

// Mutate switches protections of a source off, by name.
func (s *Source) Mutate(names ...string) {
	s.server.patient = slices.Contains(names, "patient")
	if slices.Contains(names, "no-budget") {
		s.server.limits.inFlightBytes = 1 << 40
		s.server.budget = newBudget(1 << 40)
	}
}

// Mutate switches protections of a link's source off, by name.
func (s *LinkSource) Mutate(names ...string) { s.anyRange = slices.Contains(names, "no-range") }

// Mutate switches protections of a link's sink off, by name.
func (s *LinkSink) Mutate(names ...string) { s.trustSelf = slices.Contains(names, "trust-self") }

// HeaderTime sets the time for a request's headers to arrive.
func (s *Source) HeaderTime(d time.Duration) { s.server.limits.header = d }

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

// LinkType is the Content-Type of a link's POSTs.
const LinkType = linkType

// DecodeLink reads a link's POST.
func DecodeLink(body []byte, after int64, source, sink string) ([]logbuffer.Batch, error) {
	return decodeLink(body, after, source, sink)
}

// AppendLink appends to a link's POST.
func AppendLink(body []byte, first uint64, e logbuffer.Encoded) []byte {
	return appendLink(body, first, e)
}

// Elements cuts a JSON array.
func Elements(body []byte, most int) ([][]byte, error) { return elementsOf(body, most) }

// Escape encodes a header's value.
func Escape(value []byte) string { return escape(value) }

// EscapeName encodes a header's name.
func EscapeName(name string) string { return escapeName(name) }

// Unescape decodes both.
func Unescape(text string) ([]byte, error) { return unescape(text) }

// OffsetList writes offsets.
func OffsetList(offsets []uint64) string { return offsetList(offsets) }

// ListedKeys reads offsets.
func ListedKeys(h http.Header, n int) ([]string, error) { return listedKeys(h, n) }

// RetryAfter reads a Retry-After.
func RetryAfter(text string, now time.Time) time.Duration { return retryAfter(text, now) }

// InFlight returns the bytes that a source's requests hold.
func InFlight(s *Source) int64 {
	s.server.budget.mu.Lock()
	defer s.server.budget.mu.Unlock()
	return s.server.limits.inFlightBytes - s.server.budget.free
}

// LoadPair reads a certificate.
func LoadPair(certFile, keyFile string) (*Pair, error) { return loadPair(certFile, keyFile) }

// StatusTable returns the table of outcomes.
func StatusTable() []Outcome { return outcomes() }

// Outcome is a row of it.
type Outcome = outcome

// Pair is a certificate that is read again.
type Pair = pair

// Age makes the last look at the files old.
func (p *pair) Age() { p.mu.Lock(); defer p.mu.Unlock(); p.looked = time.Time{} }

// Get returns the certificate's first block, and the readings that failed.
func (p *pair) Get() ([]byte, uint64) { return p.get().Certificate[0], p.failures() }

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
