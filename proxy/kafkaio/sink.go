package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// SinkConfig configures a sink. All sinks of one process on one Kafka cluster are one Sink with several routes.
type SinkConfig struct {
	Connection Connection
	// Name names the operator: its group and topic on the cluster are `_ftproxy.<Name>`, and its transactional id
	// contains it. No two deployments that use one cluster may have the same.
	Name string
	// Routes maps the label of a sink (logbuffer.Batch.Sink) to its topic, each topic once. A batch without a label goes
	// to every route. A sink alone has the label that its reader has, or "".
	Routes map[string]string
	// Transactional writes exactly once; else at least once, with an idempotent producer.
	Transactional bool
	// Compression is none (or empty), gzip, snappy, lz4 or zstd.
	Compression string
	// TxnBytes bounds what one transaction (or, without transactions, one round) takes from the buffer, in encoded
	// bytes, except that what was committed together stays together; default 4 MiB.
	TxnBytes int
	// Linger is how long a transaction waits for more, once it has something; default 0: what came in during the last
	// transaction makes the next.
	Linger time.Duration
	// TxnTimeout is after how long the brokers abort a transaction by themselves; default 10 s.
	TxnTimeout time.Duration
	// Replication is the replication factor with which `_ftproxy.<Name>` is created; default 3, and at most the number
	// of brokers.
	Replication int
	// Resume decides where to go on when the marker does not fit the log: empty (stop and say why) or "confirmed" (from
	// the confirmed offset, whatever the marker says: what was written after it is written again). It has no effect
	// while the marker fits.
	Resume string
	// Logger gets what happens; required.
	Logger *slog.Logger
}

// Sink writes a buffer into Kafka topics.
//
//	             ┌────────────────────── take-over: whose is it, where does it stand? ─────────────────────┐
//	             ▼                                                                                         │
//	Outlet.Read ─▶ plan ─▶ AddPartitions, Produce, marker, EndTxn ─▶ Outlet.Ack ─▶ InitProducerId ─┬─▶ again │
//	                                                                                              error ───┘
type Sink struct {
	cfg    SinkConfig
	codec  codec
	labels []string // of the routes, sorted
	stats  sinkCounters
	mutant mutant
	// refreshFirst is how long after a take-over the marker is written if nothing else is, refreshEvery how often from
	// then on: brokers forget the offsets of a group without members after 7 days by default.
	refreshFirst, refreshEvery time.Duration
}

// mutant switches protections off, for the tests that show what each is for.
type mutant struct {
	noSentinel     bool // read the marker without the sentinel
	bareInit       bool // bare InitProducerId between transactions
	initUnchecked  bool // repeat InitProducerId without asking whether we still lead
	trustUnknown   bool // take an unknown EndTxn for a commit
	tornRange      bool // end ranges anywhere, not only where a Commit ended
	freshSequences bool // number a retried batch anew
	steadyRanges   bool // write a range that took too long again as it was
	unstableAbsent bool // take "undecided" (88) for "no marker"
	noLetters      bool // acknowledge what a former owner wrote without its dead letters
}

// SinkStats counts since the process started.
type SinkStats struct {
	// Records were acknowledged by the brokers (each route counts), in Transactions committed.
	Records, Transactions uint64
	// TakeOvers counts how often ownership was settled anew, Fenced how often another producer was the reason.
	TakeOvers, Fenced uint64
	// Resets counts idempotent producers that were given up after a sequence error and rebuilt from the buffer.
	Resets uint64
	// Retries counts attempts that brokers refused for the moment or that were lost, DeadLetters tuples given up on.
	Retries, DeadLetters uint64
	// LastError is why nothing is written right now; empty while all is well.
	LastError string
}

type sinkCounters struct {
	records, transactions, takeOvers, fenced, resets, retries, dead atomic.Uint64
	trouble                                                         trouble
}

// trouble remembers what is wrong, for the status, and logs it once.
type trouble struct {
	mu   sync.Mutex
	text string
}

func (t *trouble) set(ctx context.Context, log *slog.Logger, msg string, err error) {
	t.mu.Lock()
	fresh := t.text != err.Error()
	t.text = err.Error()
	t.mu.Unlock()
	if fresh {
		log.WarnContext(ctx, msg, slog.String("error", err.Error())) //nolint:sloglint // the caller's message is constant
	}
}

func (t *trouble) clear(ctx context.Context, log *slog.Logger, msg string) {
	t.mu.Lock()
	had := t.text != ""
	t.text = ""
	t.mu.Unlock()
	if had {
		log.InfoContext(ctx, msg) //nolint:sloglint // the caller's message is constant
	}
}

func (t *trouble) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text
}

// NewSink checks the configuration, without reaching for the brokers.
func NewSink(cfg SinkConfig) (*Sink, error) {
	cfg.Connection.setDefaults()
	errs := []error{cfg.Connection.validate()}
	if !validTopic("_ftproxy." + cfg.Name) {
		errs = append(errs, errName(cfg.Name))
	}
	if len(cfg.Routes) == 0 {
		errs = append(errs, errors.New("a Kafka sink needs a topic"))
	}
	seen := map[string]bool{}
	s := &Sink{refreshFirst: time.Minute, refreshEvery: refreshEvery}
	for label, topic := range cfg.Routes {
		if !validTopic(topic) || topic == ownTopic(cfg.Name) {
			errs = append(errs, fmt.Errorf("%q is not a name of a Kafka topic that can be written to", topic))
		}
		if seen[topic] {
			errs = append(errs, fmt.Errorf("two sinks write to the topic %q", topic))
		}
		seen[topic] = true
		s.labels = append(s.labels, label)
	}
	slices.Sort(s.labels)
	if len(s.labels) > 1 && s.labels[0] == "" {
		errs = append(errs, errors.New("several Kafka sinks on one cluster need a label each"))
	}
	if cfg.Resume != "" && cfg.Resume != "confirmed" {
		errs = append(errs, fmt.Errorf("resume is %q: leave it empty, or say confirmed", cfg.Resume))
	}
	if cfg.Logger == nil {
		errs = append(errs, errors.New("a Kafka sink needs a logger"))
	}
	var err error
	if s.codec, err = parseCodec(cfg.Compression); err != nil {
		errs = append(errs, err)
	}
	if cfg.TxnBytes <= 0 {
		cfg.TxnBytes = 4 << 20
	}
	if cfg.TxnTimeout <= 0 {
		cfg.TxnTimeout = 10 * time.Second
	}
	s.cfg = cfg
	return s, errors.Join(errs...)
}

// Guarantee says what holds at this edge, beginning with the recovery type.
func (s *Sink) Guarantee() string {
	if s.cfg.Transactional {
		return "precise: each tuple is once in its topic for readers with isolation.level=read_committed"
	}
	return "rollback: a tuple may be in its topic twice after a failure; order per partition is kept"
}

// Stats returns the counters; it may be called at any time.
func (s *Sink) Stats() SinkStats {
	c := &s.stats
	return SinkStats{
		Records: c.records.Load(), Transactions: c.transactions.Load(), TakeOvers: c.takeOvers.Load(),
		Fenced: c.fenced.Load(), Resets: c.resets.Load(), Retries: c.retries.Load(), DeadLetters: c.dead.Load(),
		LastError: c.trouble.String(),
	}
}

// stepDownError wraps an error of the outlet: the tenure is over, nothing is wrong with Kafka.
type stepDownError struct{ error }

func (s stepDownError) Unwrap() error { return s.error }

// Run delivers until ctx or the tenure ends. It retries everything that Kafka may get over; a *proxy.Halt means that a
// human has to decide.
func (s *Sink) Run(ctx context.Context, out proxy.Outlet) error {
	r := &run{
		s: s, cfg: &s.cfg, out: out, cl: newCluster(s.cfg.Connection, s.cfg.Logger),
		log:    s.cfg.Logger.With(slog.String("reader", out.Reader())),
		denied: map[string]time.Time{}, refused: map[cut]reason{}, shrunk: map[string]int{},
		limit: s.cfg.TxnBytes,
	}
	defer r.cl.close()
	again := proxy.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second}
	for {
		before := s.stats.records.Load() + s.stats.transactions.Load()
		err := r.once(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, halted := errors.AsType[*proxy.Halt](err); halted || errors.Is(err, logbuffer.ErrCorrupt) {
			s.stats.trouble.set(ctx, r.log, "kafka sink stopped", err)
			return err
		}
		if over, ok := errors.AsType[stepDownError](err); ok {
			return over.error
		}
		if over := out.Barrier(ctx); over != nil { // another leads: it is no trouble of Kafka's
			return over
		}
		if s.stats.records.Load()+s.stats.transactions.Load() != before {
			again.Reset()
		}
		if fenced(err) {
			s.stats.fenced.Add(1)
		}
		s.stats.retries.Add(1)
		s.stats.trouble.set(ctx, r.log, "kafka sink starts over", err)
		if waited := again.Wait(ctx); waited != nil {
			return waited
		}
	}
}

// run is one Run of a sink.
type run struct {
	s   *Sink
	cfg *SinkConfig
	out proxy.Outlet
	cl  *cluster
	log *slog.Logger

	topics  map[string]*topic // by label
	loaded  time.Time         // when topics were
	denied  map[string]time.Time
	refused map[cut]reason // what brokers refused for good, until it is dead-lettered
	shrunk  map[string]int // batch sizes that brokers insisted on, by topic
	warned  bool
	limit   int // what a transaction takes now, at most TxnBytes: less after one that took too long
}

// cut names one tuple on its way to one route.
type cut struct {
	label  string
	offset uint64
}

// once settles ownership and delivers until something goes wrong.
func (r *run) once(ctx context.Context) error {
	if err := r.loadTopics(ctx); err != nil {
		return err
	}
	if !r.cfg.Transactional {
		return r.plain(ctx)
	}
	if err := r.ensureMarkerTopic(ctx); err != nil {
		return err
	}
	o, err := r.takeOver(ctx)
	if err != nil {
		return err
	}
	return r.transactions(ctx, o)
}
