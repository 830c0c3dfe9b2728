package httpio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"ftproxy/proxy"
)

// SinkConfig configures an HTTP sink. Zero values take the defaults.
type SinkConfig struct {
	Name string
	// URL takes the POSTs.
	URL string
	// Batch is the number of tuples in a POST (1). Above 1, Format says how they are written: "cloudevents" (default: all
	// that a tuple carries) or "ndjson" (values alone, a line each).
	Batch  int
	Format string
	// Concurrency is the number of POSTs at once (16), never more than one for a key.
	Concurrency int
	// Window and WindowBytes bound the tuples in memory (4,096; 16 MiB), Span those that are delivered but wait for an
	// earlier one before they can be acknowledged (65,536).
	Window, Span int
	WindowBytes  int64
	// Timeout is the time for one attempt (30 s). MinWait and MaxWait bound the waits between attempts (100 ms, 30 s).
	Timeout, MinWait, MaxWait time.Duration
	// MaxAttempts makes a dead letter of a tuple that was retried so often; 0: retried for ever. FinalAttempts is the
	// number of attempts before a final refusal is believed (3).
	MaxAttempts, FinalAttempts int
	// Idempotent says that the application drops repeated Idempotency-Keys.
	Idempotent bool
	// EventType and EventSource are the CloudEvents attributes type and source of tuples that have none themselves
	// ("ftproxy.tuple", "/ftproxy/<Name>").
	EventType, EventSource string
	// Authorization is sent as the header of that name.
	Authorization string
	// AckEvery is the least time between two acknowledgements (20 ms). Grace is the time for POSTs at work to end when the
	// sink is stopped (1 s).
	AckEvery, Grace time.Duration
	TLS             TLS
	Logger          *slog.Logger
}

// Sink delivers tuples by POST.
//
//	Read ─▶ lanes (one a key, one for all without) ─▶ POST ─▶ 2xx ─▶ tracker ─▶ Ack
//	            ▲                                       │
//	            └────────────── retry, wait ────────────┴─▶ refused for good ─▶ dead letter, with the Ack
type Sink struct {
	cfg     SinkConfig
	url     *url.URL
	client  *http.Client
	stats   sinkCounters
	trouble atomic.Pointer[trouble]
	blocked atomic.Pointer[trouble] // why what was concluded cannot be acknowledged
	mutant  sinkMutant
}

// sinkMutant switches protections off, one at a time, for tests that show that their absence is noticed.
type sinkMutant struct {
	keyPerAttempt    bool // the Idempotency-Key changes with the attempt
	ackBeforeAnswer  bool // acknowledged when sent
	manyPerKey       bool // several POSTs of one key at once
	lettersOnStop    bool // a POST cut off by the sink's own end counts as an attempt
	ignoreRetryAfter bool
	ackOutOfOrder    bool // a tuple done acknowledges those before it
}

// SinkStats counts what a sink did since the process started.
type SinkStats struct {
	// Posts counts attempts, Retries those that failed for now, Refusals those that were refused for good.
	Posts, Retries, Refusals uint64
	// Delivered and DeadLetters count tuples.
	Delivered, DeadLetters uint64
}

type sinkCounters struct {
	posts, retries, refusals, delivered, deadLetters atomic.Uint64
}

func (c *sinkCounters) read() SinkStats {
	return SinkStats{
		Posts: c.posts.Load(), Retries: c.retries.Load(), Refusals: c.refusals.Load(),
		Delivered: c.delivered.Load(), DeadLetters: c.deadLetters.Load(),
	}
}

// trouble is the last failure of a delivery, while nothing was delivered since.
type trouble struct{ err error }

// NewSink checks the configuration; an error names what is wrong with it.
func NewSink(c SinkConfig) (*Sink, error) {
	u, err := endpoint(c.URL)
	if err != nil {
		return nil, fmt.Errorf("http sink: %w", err)
	}
	if c.Format == "" {
		c.Format = "cloudevents"
	}
	switch {
	case c.Name == "":
		return nil, errors.New("http sink: no name")
	case c.Logger == nil:
		return nil, errors.New("http sink: no logger")
	case c.Format != "cloudevents" && c.Format != "ndjson":
		return nil, fmt.Errorf("http sink: format %q is unknown; use cloudevents or ndjson", c.Format)
	case c.Batch < 0 || c.Concurrency < 0 || c.Window < 0 || c.WindowBytes < 0 || c.Span < 0 || c.Timeout < 0 ||
		c.MinWait < 0 || c.MaxWait < 0 || c.MaxAttempts < 0 || c.FinalAttempts < 0:
		return nil, errors.New("http sink: a limit is below 0")
	case c.Batch > 1000:
		return nil, fmt.Errorf("http sink: a batch of %d tuples is too large; at most 1000", c.Batch)
	}
	if err = c.TLS.check(); err != nil {
		return nil, fmt.Errorf("http sink: %w", err)
	}
	c.orDefault()
	client, err := newClient(c.TLS, c.Concurrency)
	if err != nil {
		return nil, fmt.Errorf("http sink: %w", err)
	}
	return &Sink{cfg: c, url: u, client: client}, nil
}

func (c *SinkConfig) orDefault() {
	set(&c.Batch, 1)
	set(&c.Concurrency, 16)
	set(&c.Window, 4096)
	set(&c.WindowBytes, 16<<20)
	set(&c.Span, 65_536)
	set(&c.Timeout, 30*time.Second)
	set(&c.MinWait, 100*time.Millisecond)
	set(&c.MaxWait, 30*time.Second)
	set(&c.FinalAttempts, 3)
	set(&c.AckEvery, 20*time.Millisecond)
	set(&c.Grace, time.Second)
	if c.EventType == "" {
		c.EventType = "ftproxy.tuple"
	}
	if c.EventSource == "" {
		c.EventSource = "/ftproxy/" + url.PathEscape(c.Name)
	}
}

// Stats returns the counters.
func (s *Sink) Stats() SinkStats { return s.stats.read() }

// Trouble returns why nothing can be acknowledged (too many dead letters, say), or the last failure of a delivery; nil
// once something was acknowledged, or delivered.
func (s *Sink) Trouble() error {
	for _, t := range []*trouble{s.blocked.Load(), s.trouble.Load()} {
		if t != nil {
			return t.err
		}
	}
	return nil
}

// waits tells why what is done cannot be acknowledged for now: once in the log, in the status until it can.
func (s *Sink) waits(ctx context.Context, why error) {
	if s.blocked.Swap(&trouble{why}) == nil {
		s.cfg.Logger.WarnContext(ctx, "what is delivered or given up waits to be acknowledged",
			slog.String("sink", s.cfg.Name), slog.Any("error", why))
	}
}

// Guarantee says what holds at this edge.
func (s *Sink) Guarantee() string {
	what := "Idempotency-Key"
	if s.cfg.Batch > 1 {
		what = "tuple ids (" + headerLineage + " and " + headerOffsets + ")"
	}
	if s.cfg.Idempotent {
		return "precise, since the application is said to drop repeated " + what
	}
	return "rollback: a tuple may be delivered again after a failure; precise if the application drops repeated " + what +
		" and FTPROXY_SINK_IDEMPOTENT=true says so"
}

// Check reaches the endpoint, without sending a tuple.
func (s *Sink) Check(ctx context.Context) ([]string, error) {
	if err := reach(ctx, s.url); err != nil {
		return nil, fmt.Errorf("http sink %s: %w", s.cfg.Name, err)
	}
	what := "http sink " + s.cfg.Name
	return []string{what + ": " + s.url.Redacted() + " can be reached", what + ": " + s.Guarantee()}, nil
}

// Run delivers until ctx ends, or until an acknowledgement or a read fails.
func (s *Sink) Run(ctx context.Context, out proxy.Outlet) error {
	defer s.client.CloseIdleConnections()
	defer s.trouble.Store(nil)
	defer s.blocked.Store(nil)
	return newDelivery(s, out).run(ctx)
}
