package httpio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// SourceConfig configures an HTTP source. Zero values take the defaults.
type SourceConfig struct {
	// Name names the source; the ids of its tuples are scoped to it.
	Name string
	// Listen is host:port, Path the path that takes POSTs (sessions are opened at Path + "/sessions").
	Listen, Path string
	// Dedup says where a tuple's id stands.
	Dedup proxy.IDRule
	// Sinks are the names that Ftproxy-Sink may hold.
	Sinks []string
	// MaxRequestBytes bounds a body (1 MiB), MaxTuples the tuples in it (10,000), MaxInFlightBytes all bodies in memory
	// together (32 MiB), MaxConnections the connections open at once (4,096).
	MaxRequestBytes, MaxInFlightBytes int64
	MaxTuples, MaxConnections         int
	// BodyTimeout is the time for a whole body to arrive, Deadline the time to commit it; then 504 is answered. Grace is
	// the time for requests to end at shutdown. (30 s, 30 s, 10 s.)
	BodyTimeout, Deadline, Grace time.Duration
	TLS                          TLS
	Logger                       *slog.Logger
}

// Source takes tuples by POST. A request is one batch: it is admitted whole or not at all, and answered 200 once a
// quorum has it.
//
//	POST ─▶ headers ─▶ body ─▶ split ─▶ ids ─▶ Intake.Append ─▶ 200 {"admitted": 3, "duplicates": 1}
//	          400       408      400             │                409 gap   410 session   413 too large
//	          415    413, 429                    └──────────────▶ 503 not written         504 unknown
type Source struct {
	cfg    SourceConfig
	server *server
	stats  sourceCounters
}

// SourceStats counts what a source did since the process started.
type SourceStats struct {
	// Requests counts those answered 200, Refused all others, Unknown those of them that may have been written (504).
	Requests, Refused, Unknown uint64
	// Admitted, Duplicates and WithoutID count tuples.
	Admitted, Duplicates, WithoutID uint64
	// CertificateFailures counts the times that changed TLS files could not be read; the former ones stay in use.
	CertificateFailures uint64
}

type sourceCounters struct {
	requests, refused, unknown, admitted, duplicates, withoutID atomic.Uint64
}

func (c *sourceCounters) read(s *server) SourceStats {
	return SourceStats{
		Requests: c.requests.Load(), Refused: c.refused.Load(), Unknown: c.unknown.Load(),
		Admitted: c.admitted.Load(), Duplicates: c.duplicates.Load(), WithoutID: c.withoutID.Load(),
		CertificateFailures: s.certificateFailures(),
	}
}

// refuse answers and counts an error.
func (c *sourceCounters) refuse(w http.ResponseWriter, err error) {
	c.refused.Add(1)
	if r, ok := errors.AsType[*refusal](err); ok && r.status == http.StatusGatewayTimeout {
		c.unknown.Add(1)
	}
	answerError(w, err)
}

// NewSource checks the configuration; an error names what is wrong with it.
func NewSource(c SourceConfig) (*Source, error) {
	if c.Name == "" {
		return nil, errors.New("http source: no name")
	}
	if c.Path == "" {
		c.Path = "/"
	}
	if !strings.HasPrefix(c.Path, "/") {
		return nil, fmt.Errorf("http source: path %q does not start with a slash", c.Path)
	}
	set(&c.MaxTuples, 10_000)
	if c.MaxTuples < 0 {
		return nil, errors.New("http source: the number of tuples in a request is below 0")
	}
	s, err := newServer(c.Listen, c.TLS, limits{
		requestBytes: c.MaxRequestBytes, inFlightBytes: c.MaxInFlightBytes, connections: c.MaxConnections,
		body: c.BodyTimeout, append: c.Deadline, grace: c.Grace,
	}, c.Logger)
	if err != nil {
		return nil, fmt.Errorf("http source: %w", err)
	}
	if need := s.limits.requestBytes + int64(c.MaxTuples)*eventBytes; s.limits.inFlightBytes < need {
		return nil, fmt.Errorf("http source: all requests together may hold %d bytes, a single one takes up to %d: raise "+
			"the former or lower the bytes or tuples of a request", s.limits.inFlightBytes, need)
	}
	return &Source{cfg: c, server: s}, nil
}

// Run serves until ctx ends, and then until the requests at work are answered.
func (s *Source) Run(ctx context.Context, in proxy.Intake) error {
	return s.server.run(ctx, s.Handler(in))
}

// Addr returns the address that is bound, nil before Run has bound it.
func (s *Source) Addr() net.Addr { return s.server.addr() }

// Stats returns the counters.
func (s *Source) Stats() SourceStats { return s.stats.read(s.server) }

// Guarantee says what holds at this edge.
func (s *Source) Guarantee() string {
	switch {
	case !s.cfg.Dedup.Wanted():
		return "precise for clients that number their tuples in a session, rollback for all others: no tuple ids " +
			"(FTPROXY_DEDUP=none)"
	default:
		return "precise for clients that repeat a request until it is answered 200, with the same session position or " +
			"the same id (" + s.cfg.Dedup.String() + "); rollback for tuples without either, which are counted"
	}
}

// Check binds the listener for a moment.
func (s *Source) Check(ctx context.Context) ([]string, error) {
	return s.server.check(ctx, "http source "+s.cfg.Name, s.Guarantee())
}

// check tries to bind the address and to read the certificates.
func (s *server) check(ctx context.Context, what, guarantee string) ([]string, error) {
	if _, _, err := s.tls.server(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return nil, fmt.Errorf("%s: listen on %s: %w", what, s.listen, err)
	}
	return []string{what + ": listens on " + l.Addr().String(), what + ": " + guarantee}, l.Close()
}

// Handler returns the HTTP face alone, for use without a listener of its own.
func (s *Source) Handler(in proxy.Intake) http.Handler {
	sessions := strings.TrimSuffix(s.cfg.Path, "/") + "/sessions"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != s.cfg.Path && r.URL.Path != sessions:
			s.stats.refuse(w, refuse(http.StatusNotFound, "POST tuples to "+s.cfg.Path, "nothing is at %s", r.URL.Path))
		case r.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			s.stats.refuse(w, refuse(http.StatusMethodNotAllowed, "use POST", "%s is not supported here", r.Method))
		case r.URL.Path == sessions:
			s.openSession(w, r, in)
		default:
			s.post(w, r, in)
		}
	})
}

func (s *Source) openSession(w http.ResponseWriter, r *http.Request, in proxy.Intake) {
	ctx, cancel := context.WithTimeout(r.Context(), s.server.limits.append)
	defer cancel()
	id, err := in.OpenSession(ctx)
	if err != nil {
		s.stats.refuse(w, appendError(err))
		return
	}
	s.stats.requests.Add(1)
	w.Header().Set(headerSession, id)
	answer(w, http.StatusCreated, map[string]string{"session": id})
}

func (s *Source) post(w http.ResponseWriter, r *http.Request, in proxy.Intake) {
	done, missing, err := s.admit(w, r, in)
	if err != nil {
		s.stats.refuse(w, err)
		return
	}
	s.stats.requests.Add(1)
	s.stats.admitted.Add(uint64(done.Admitted))
	s.stats.duplicates.Add(uint64(done.Duplicates))
	s.stats.withoutID.Add(uint64(missing))
	answer(w, http.StatusOK, done)
}

// admit takes a request from its body to its receipt. Memory for both the body and the tuples is the budget's.
func (s *Source) admit(
	w http.ResponseWriter, r *http.Request, in proxy.Intake,
) (done accepted, missing int, err error) {
	f, err := formOf(r)
	if err != nil {
		return done, 0, err
	}
	err = single(r.Header, headerKey, headerTime, headerPos, headerSession, headerSink, s.cfg.Dedup.Header())
	if err != nil {
		return done, 0, err
	}
	with, err := readCarried(r.Header)
	if err != nil {
		return done, 0, err
	}
	body, release, err := s.server.readBody(w, r)
	defer func() { release() }()
	if err != nil {
		return done, 0, err
	}
	weight := f.weight(body, s.cfg.MaxTuples)
	if err = s.server.grant(r.Context(), weight); err != nil {
		return done, 0, err
	}
	defer s.server.budget.give(weight)
	batch, missing, err := s.batchOf(r, f, &with, body)
	if err != nil || len(batch.Tuples) == 0 {
		return done, missing, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.server.limits.append)
	defer cancel()
	done, err = appendBatch(ctx, in, batch)
	return done, missing, err
}

// appendBatch appends one batch as one entry.
func appendBatch(ctx context.Context, in proxy.Intake, batch logbuffer.Batch) (accepted, error) {
	receipts, err := in.Append(ctx, batch)
	if err != nil {
		return accepted{}, appendError(err)
	}
	if len(receipts) != 1 {
		return accepted{}, fmt.Errorf("append of one batch gave %d receipts", len(receipts))
	}
	if err := receiptError(receipts[0]); err != nil {
		return accepted{}, err
	}
	done := accepted{Admitted: receipts[0].Admitted, Duplicates: receipts[0].Duplicates}
	if batch.Rule == logbuffer.RuleSession {
		done.Position = batch.Tuples[len(batch.Tuples)-1].Position
	}
	return done, nil
}

// batchOf makes the batch of a request, and counts the tuples without an id.
func (s *Source) batchOf(r *http.Request, f form, with *carried, body []byte) (logbuffer.Batch, int, error) {
	batch := logbuffer.Batch{Source: "http/" + s.cfg.Name, Sink: r.Header.Get(headerSink)}
	if batch.Sink != "" && !slices.Contains(s.cfg.Sinks, batch.Sink) {
		return batch, 0, refuse(http.StatusBadRequest, "name one of the sinks: "+strings.Join(s.cfg.Sinks, ", "),
			"header %s: no sink is called %q", headerSink, batch.Sink)
	}
	var err error
	if batch.Tuples, err = splitBody(f, body, s.cfg.MaxTuples); err != nil {
		return batch, 0, err
	}
	if int64(len(batch.Tuples)*with.bytes()) > s.server.limits.requestBytes {
		return batch, 0, refuse(http.StatusRequestEntityTooLarge, "send fewer tuples in a request, or smaller headers",
			"the headers that each of %d tuples gets take %d bytes; nothing was written", len(batch.Tuples), with.bytes())
	}
	for i := range batch.Tuples {
		if err = with.dress(f, &batch.Tuples[i]); err != nil {
			return batch, 0, err
		}
	}
	if err = number(r.Header, &batch); err != nil {
		return batch, 0, err
	}
	var missing int
	batch.IDs, missing, err = idsOf(s.cfg.Name, s.cfg.Dedup, r.Header, f, batch.Tuples)
	return batch, missing, err
}

// dress gives a tuple what its request's headers say. A CloudEvent's own attributes go before.
func (c *carried) dress(f form, t *logbuffer.Tuple) error {
	if c.key != nil {
		t.Key = c.key
	}
	if c.time != 0 {
		t.Time = c.time
	}
	switch f {
	case formEvent, formEvents:
		for _, h := range c.headers {
			if headerOf(t, h.Key) == nil {
				t.Headers = append(t.Headers, h)
			}
		}
		return nil
	case formLines, formArray:
		if c.shared == nil {
			c.shared = []logbuffer.Header{{Key: "content-type", Value: []byte("application/json")}}
			for _, h := range c.headers {
				if h.Key != "content-type" {
					c.shared = append(c.shared, h)
				}
			}
		}
		t.Headers = c.shared
		return nil
	case formJSON, formOpaque:
	}
	t.Headers = append(t.Headers, c.headers...)
	if c.null {
		if len(t.Value) > 0 {
			return refuse(http.StatusBadRequest, "send an empty body with it", "%s says null, the body does not", headerNull)
		}
		t.Value = nil
	}
	if headerOf(t, "ce-specversion") != nil {
		return settleEvent(t)
	}
	return nil
}

// number gives the tuples the positions that the client says.
func number(h http.Header, batch *logbuffer.Batch) error {
	session, position := h.Get(headerSession), h.Get(headerPos)
	if session == "" && position == "" {
		return nil
	}
	if session == "" || position == "" {
		return refuse(http.StatusBadRequest, "send both, or neither; POST to …/sessions opens a session",
			"%s and %s belong together", headerSession, headerPos)
	}
	first, err := strconv.ParseInt(position, 10, 64)
	if err != nil || first < 1 || first > 1<<62 {
		return refuse(http.StatusBadRequest, "number the tuples of a session from 1, without holes",
			"header %s: %q is no position", headerPos, position)
	}
	batch.Source, batch.Rule = session, logbuffer.RuleSession
	for i := range batch.Tuples {
		batch.Tuples[i].Position = first + int64(i)
	}
	return nil
}
