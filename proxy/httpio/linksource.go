package httpio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// LinkSourceConfig configures the receiving end of a link. Zero values take the defaults.
type LinkSourceConfig struct {
	Name string
	// Listen is host:port.
	Listen string
	// Sink is the sink that what arrives is for; empty: every reader's.
	Sink string
	// MaxRequestBytes bounds a POST (4 MiB), MaxInFlightBytes all of them in memory together, with their tuples (32 MiB),
	// MaxConnections the connections open at once (4,096).
	MaxRequestBytes, MaxInFlightBytes int64
	MaxConnections                    int
	// BodyTimeout, Deadline and Grace: as in SourceConfig.
	BodyTimeout, Deadline, Grace time.Duration
	TLS                          TLS
	Logger                       *slog.Logger
}

// LinkSource receives what another ftproxy's LinkSink sends, on every node: followers forward.
//
//	LinkSink ─POST (after, to]─▶ LinkSource ─Append, RuleRange─▶ IN
//	    ▲                            │
//	    └── 200 position, 409 due ───┘
type LinkSource struct {
	cfg      LinkSourceConfig
	server   *server
	stats    sourceCounters
	anyRange bool // mutant: ranges are not judged
}

// NewLinkSource checks the configuration; an error names what is wrong with it.
func NewLinkSource(c LinkSourceConfig) (*LinkSource, error) {
	if c.Name == "" {
		return nil, errors.New("ftproxy source: no name")
	}
	set(&c.MaxRequestBytes, 4<<20)
	s, err := newServer(c.Listen, c.TLS, limits{
		requestBytes: c.MaxRequestBytes, inFlightBytes: c.MaxInFlightBytes, connections: c.MaxConnections,
		body: c.BodyTimeout, append: c.Deadline, grace: c.Grace,
	}, c.Logger)
	if err != nil {
		return nil, fmt.Errorf("ftproxy source: %w", err)
	}
	return &LinkSource{cfg: c, server: s}, nil
}

// Run serves until ctx ends, and then until the requests at work are answered.
func (s *LinkSource) Run(ctx context.Context, in proxy.Intake) error {
	return s.server.run(ctx, s.Handler(in))
}

// Addr returns the address that is bound, nil before Run has bound it.
func (s *LinkSource) Addr() net.Addr { return s.server.addr() }

// Stats returns the counters; WithoutID stays 0.
func (s *LinkSource) Stats() SourceStats { return s.stats.read(s.server) }

// Guarantee says what holds at this edge.
func (*LinkSource) Guarantee() string {
	return "precise: the sender's lineage and offsets are the position"
}

// Check binds the listener for a moment.
func (s *LinkSource) Check(ctx context.Context) ([]string, error) {
	return s.server.check(ctx, "ftproxy source "+s.cfg.Name, s.Guarantee())
}

// Handler returns the HTTP face alone, for use without a listener of its own.
func (s *LinkSource) Handler(in proxy.Intake) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		switch {
		case r.URL.Path != linkPath:
			err = refuse(http.StatusNotFound, "this port takes the batches of another ftproxy", "nothing is at %s", r.URL.Path)
		case r.Method == http.MethodGet:
			err = s.position(w, r, in)
		case r.Method == http.MethodPost:
			err = s.post(w, r, in)
		default:
			w.Header().Set("Allow", "GET, POST")
			err = refuse(http.StatusMethodNotAllowed, "use an ftproxy:// sink", "%s is not supported here", r.Method)
		}
		if err != nil {
			s.stats.refuse(w, err)
		}
	})
}

func (s *LinkSource) position(w http.ResponseWriter, r *http.Request, in proxy.Intake) error {
	source := r.URL.Query().Get("source")
	if !strings.HasPrefix(source, "ftproxy/") {
		return refuse(http.StatusBadRequest, "ask for ?source=ftproxy/<lineage>/<buffer>/<reader>", "no source is named")
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.server.limits.append)
	defer cancel()
	last, known, err := in.Position(ctx, source)
	if err != nil {
		return appendError(err)
	}
	answer(w, http.StatusOK, linkPosition{Lineage: in.Lineage(), Position: last, Known: known})
	return nil
}

func (s *LinkSource) post(w http.ResponseWriter, r *http.Request, in proxy.Intake) error {
	if r.Header.Get("Content-Type") != linkType {
		return refuse(http.StatusUnsupportedMediaType, "send tuples of your own to an http:// source",
			"this port takes %s only", linkType)
	}
	source, after, err := linkHeaders(r.Header)
	if err != nil {
		return refuse(http.StatusBadRequest, "use an ftproxy:// sink of the same version", "headers: %s", err.Error())
	}
	body, release, err := s.server.readBody(w, r)
	defer func() { release() }()
	if err != nil {
		return err
	}
	weight := linkWeight(body)
	if weight+int64(cap(body)) > s.server.limits.inFlightBytes {
		return refuse(http.StatusRequestEntityTooLarge, "send fewer tuples in a request",
			"the request's tuples would take %d bytes of memory; nothing was written", weight)
	}
	if err = s.server.grant(r.Context(), weight); err != nil {
		return err
	}
	defer s.server.budget.give(weight)
	batches, err := decodeLink(body, after, source, s.cfg.Sink)
	if err != nil {
		return refuse(http.StatusBadRequest, "send it again; if that does not help, use the same version on both ends",
			"the batches are damaged: %s; nothing was written", err.Error())
	}
	for i := range batches {
		if s.anyRange {
			batches[i].Rule = logbuffer.RuleNone
		}
	}
	done := accepted{Position: after}
	if len(batches) > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), s.server.limits.append)
		defer cancel()
		if done, err = appendLinked(ctx, in, batches); err != nil {
			return err
		}
	}
	s.stats.requests.Add(1)
	s.stats.admitted.Add(uint64(done.Admitted))
	s.stats.duplicates.Add(uint64(done.Duplicates))
	answer(w, http.StatusOK, done)
	return nil
}

// appendLinked appends the batches of one POST as one entry. Each follows on the one before, so if one finds a gap, all
// after it do.
func appendLinked(ctx context.Context, in proxy.Intake, batches []logbuffer.Batch) (accepted, error) {
	receipts, err := in.Append(ctx, batches...)
	if err != nil {
		return accepted{}, appendError(err)
	}
	var done accepted
	for i := range receipts {
		if err := receiptError(receipts[i]); err != nil {
			return accepted{}, err
		}
		done.Admitted += receipts[i].Admitted
		done.Duplicates += receipts[i].Duplicates
	}
	last := batches[len(batches)-1].Tuples
	done.Position = last[len(last)-1].Position
	return done, nil
}
