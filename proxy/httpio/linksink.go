package httpio

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"ftproxy/proxy"
)

// LinkSinkConfig configures the sending end of a link. Zero values take the defaults.
type LinkSinkConfig struct {
	Name string
	// URLs are the nodes of the receiving ftproxy, "ftproxy://host:port", or "ftproxys://host:port" with TLS. One is used
	// at a time, the next when that fails.
	URLs []string
	// MaxBytes is read and sent at once (512 KiB), unless a single batch is larger.
	MaxBytes int
	// Timeout is the time for one attempt (35 s: more than the receiver's deadline). MinWait and MaxWait bound the waits
	// between attempts (100 ms, 10 s).
	Timeout, MinWait, MaxWait time.Duration
	// AllowLoss lets the link go on although the receiver says that tuples are missing which are no longer here: because a
	// policy drops tuples of this sink, or because a human has decided so once.
	AllowLoss bool
	// AckEvery is the least time between two acknowledgements (20 ms).
	AckEvery time.Duration
	TLS      TLS
	Logger   *slog.Logger
}

// LinkSink sends encoded batches to another ftproxy's LinkSource.
//
//	Read (after, to] ─▶ POST ─200─▶ tracker ─▶ Ack
//	  ▲                  │ 409: the receiver stands elsewhere
//	  └── read again ────┘      from there, if it is still here; else Halt
type LinkSink struct {
	cfg     LinkSinkConfig
	urls    []*url.URL
	client  *http.Client
	next    atomic.Uint64 // index of the URL in use
	stats   sinkCounters
	trouble atomic.Pointer[trouble]

	trustSelf bool // mutant: a receiver beyond our end is not believed
}

// NewLinkSink checks the configuration; an error names what is wrong with it.
func NewLinkSink(c LinkSinkConfig) (*LinkSink, error) {
	switch {
	case c.Name == "":
		return nil, errors.New("ftproxy sink: no name")
	case c.Logger == nil:
		return nil, errors.New("ftproxy sink: no logger")
	case len(c.URLs) == 0:
		return nil, errors.New("ftproxy sink: no URL; example: ftproxy://host:7500")
	case c.MaxBytes < 0 || c.Timeout < 0 || c.MinWait < 0 || c.MaxWait < 0 || c.AckEvery < 0:
		return nil, errors.New("ftproxy sink: a limit is below 0")
	}
	if err := c.TLS.check(); err != nil {
		return nil, fmt.Errorf("ftproxy sink: %w", err)
	}
	set(&c.MaxBytes, 512<<10)
	set(&c.Timeout, 35*time.Second)
	set(&c.MinWait, 100*time.Millisecond)
	set(&c.MaxWait, 10*time.Second)
	set(&c.AckEvery, 20*time.Millisecond)
	s := &LinkSink{cfg: c}
	for _, text := range c.URLs {
		u, err := linkURL(text)
		if err != nil {
			return nil, fmt.Errorf("ftproxy sink: %w", err)
		}
		s.urls = append(s.urls, u)
	}
	var err error
	if s.client, err = newClient(c.TLS, len(s.urls)); err != nil {
		return nil, fmt.Errorf("ftproxy sink: %w", err)
	}
	return s, nil
}

func linkURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	scheme, known := map[string]string{"ftproxy": "http", "ftproxys": "https"}[u.Scheme]
	if !known || u.Hostname() == "" || u.Port() == "" || (u.Path != "" && u.Path != "/") {
		return nil, fmt.Errorf("url %q: it must be ftproxy://host:port, or ftproxys://host:port with TLS", text)
	}
	return &url.URL{Scheme: scheme, Host: u.Host, Path: linkPath}, nil
}

// Stats returns the counters; DeadLetters stays 0.
func (s *LinkSink) Stats() SinkStats { return s.stats.read() }

// Trouble returns the last failure, nil once something was delivered.
func (s *LinkSink) Trouble() error {
	if t := s.trouble.Load(); t != nil {
		return t.err
	}
	return nil
}

// Guarantee says what holds at this edge.
func (s *LinkSink) Guarantee() string {
	if s.cfg.AllowLoss {
		return "gap: nothing arrives twice or out of order, but what a policy drops, or the receiver has lost, is missing"
	}
	return "precise: the receiver drops repeats by lineage and offset, and refuses gaps"
}

// Check reaches every node of the receiver.
func (s *LinkSink) Check(ctx context.Context) ([]string, error) {
	what := "ftproxy sink " + s.cfg.Name
	var lines []string
	var failures []error
	for _, u := range s.urls {
		if err := reach(ctx, u); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", what, err))
			continue
		}
		lines = append(lines, what+": "+u.Host+" can be reached")
	}
	return append(lines, what+": "+s.Guarantee()), errors.Join(failures...)
}

// exchange sends one request, to one node after another, until an answer settles it: 200, or a status that is not worth
// a retry. build makes the request anew for each attempt.
func (s *LinkSink) exchange(
	ctx context.Context, build func(ctx context.Context, to *url.URL) (*http.Request, error),
) (reply, error) {
	backoff := proxy.Backoff{Min: s.cfg.MinWait, Max: s.cfg.MaxWait}
	for failures := 0; ; failures++ {
		to := s.urls[s.next.Load()%uint64(len(s.urls))]
		got, err := s.once(ctx, to, build)
		if ctx.Err() != nil {
			return reply{}, context.Cause(ctx)
		}
		if err == nil && verdictOf(got.status) != verdictRetry {
			return got, nil
		}
		s.stats.retries.Add(1)
		reason := fmt.Errorf("%s: %s", to.Host, reasonOf(got, err))
		if before := s.trouble.Swap(&trouble{reason}); before == nil {
			s.cfg.Logger.WarnContext(ctx, "link failed, it will be tried again",
				slog.String("sink", s.cfg.Name), slog.Any("error", reason))
		}
		s.next.Add(1)
		if (failures+1)%len(s.urls) != 0 {
			continue // another node may do: ask it at once
		}
		if !pause(ctx, max(backoff.Next(), got.retryAfter)) {
			return reply{}, context.Cause(ctx)
		}
	}
}

func (s *LinkSink) once(
	ctx context.Context, to *url.URL, build func(context.Context, *url.URL) (*http.Request, error),
) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	r, err := build(ctx, to)
	if err != nil {
		return reply{}, err
	}
	return roundTrip(s.client, r)
}

// ask returns the receiver's position for this reader.
func (s *LinkSink) ask(ctx context.Context, source string) (linkPosition, error) {
	var at linkPosition
	got, err := s.exchange(ctx, func(ctx context.Context, to *url.URL) (*http.Request, error) {
		u := *to
		u.RawQuery = url.Values{"source": {source}}.Encode()
		return http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	})
	if err != nil {
		return at, err
	}
	if got.status != http.StatusOK {
		return at, errors.New("the receiver was asked for its position and " + reasonOf(got, nil))
	}
	if err := json.Unmarshal(got.body, &at); err != nil || at.Lineage == "" {
		return at, errors.New("the receiver does not answer like an ftproxy: is the URL that of an ftproxy:// source?")
	}
	return at, nil
}

// send posts the range (after, …] that body holds.
func (s *LinkSink) send(ctx context.Context, out proxy.Outlet, after uint64, body []byte) (reply, error) {
	s.stats.posts.Add(1)
	return s.exchange(ctx, func(ctx context.Context, to *url.URL) (*http.Request, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", linkType)
		r.Header.Set(headerLineage, out.Lineage())
		r.Header.Set(headerBuffer, out.Buffer())
		r.Header.Set(headerReader, out.Reader())
		r.Header.Set(headerAfter, strconv.FormatUint(after, 10))
		return r, nil
	})
}
