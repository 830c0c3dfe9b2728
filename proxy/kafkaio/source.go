package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// SourceConfig configures a source.
type SourceConfig struct {
	Connection Connection
	// Name names the operator; the source notes in the group `_ftproxy.<Name>` which topics it reads.
	Name string
	// Topics are read with all their partitions, new ones as they appear; at least one.
	Topics []string
	// Start is where a partition is begun that the log has no position of: "earliest" (or empty), "latest", or
	// "timestamp:" with milliseconds since the Unix epoch or an RFC 3339 time. Once tuples of a partition are in the log
	// it means nothing any more. Partitions that are added to a topic while it is read are begun at their beginning.
	Start string
	// OnLoss decides what happens if records that were not read yet are gone, or a topic was deleted and made anew:
	// "stop" (or empty: say why and wait for a human), or go on at what there is now, "earliest" or "latest".
	OnLoss string
	// Group, if set, is a consumer group whose offsets follow what was admitted, for lag tools. It is never read.
	Group string
	// Replication is the replication factor with which `_ftproxy.<Name>` is created; default 3, and at most the number
	// of brokers.
	Replication int
	// ID gives tuples ids for deduplication besides their positions; Scope is the source's name in them.
	ID    proxy.IDRule
	Scope string
	// AppendBytes bounds one entry (default 384 KiB), unless one tuple is larger. PrefetchBytes bounds what is fetched
	// and not yet in the log (default 32 MiB), except that each broker may exceed it by one answer. InflateBytes bounds
	// one record batch after decompression (default 64 MiB).
	AppendBytes, PrefetchBytes, InflateBytes int
	// DiscoverEvery is how often new partitions are looked for; default 30 s.
	DiscoverEvery time.Duration
	// Logger gets what happens; required.
	Logger *slog.Logger
}

// Source reads topics into the IN buffer, committed records only.
//
//	broker ─Fetch─▶ prefetched chunks, a queue for each partition ─▶ Intake.Append, one at a time for each partition
//
// Where a partition goes on is decided by the replicated log alone. If the log takes no more, nothing more is fetched.
type Source struct {
	cfg   SourceConfig
	start startAt
	stats sourceCounters
}

// startAt is a parsed Start.
type startAt struct {
	latest bool
	time   int64 // milliseconds, -1: not by time
}

// SourceStats counts since the process started.
type SourceStats struct {
	// Tuples were committed to the log, Duplicates of them were dropped there; WithoutID have no id although a rule for
	// ids is set.
	Tuples, Duplicates, WithoutID uint64
	// Retries counts failed requests and appends that were tried again.
	Retries uint64
	// Lag is the number of offsets between what is in the log and the ends of the partitions, as last fetched.
	Lag int64
	// Partitions is how many are read now.
	Partitions int
	// LastError is what keeps the source from reading now; empty while all is well.
	LastError string
}

type sourceCounters struct {
	tuples, duplicates, withoutID, retries atomic.Uint64
	held                                   atomic.Int64 // bytes fetched and not yet in the log
	trouble, groupTrouble                  trouble

	mu    sync.Mutex
	parts []*part
}

// NewSource checks the configuration, without reaching for the brokers.
func NewSource(cfg SourceConfig) (*Source, error) {
	cfg.Connection.setDefaults()
	errs := []error{cfg.Connection.validate()}
	if !validTopic(ownTopic(cfg.Name)) {
		errs = append(errs, errName(cfg.Name))
	}
	if len(cfg.Topics) == 0 {
		errs = append(errs, errors.New("a Kafka source needs a topic"))
	}
	for _, t := range cfg.Topics {
		if !validTopic(t) || t == ownTopic(cfg.Name) { // a start noted for the own topic would be the sink's marker
			errs = append(errs, fmt.Errorf("%q is not a name of a Kafka topic that can be read", t))
		}
	}
	start, err := parseStart(cfg.Start)
	if err != nil {
		errs = append(errs, err)
	}
	if cfg.OnLoss == "" {
		cfg.OnLoss = "stop"
	}
	if !slices.Contains([]string{"stop", "earliest", "latest"}, cfg.OnLoss) {
		errs = append(errs, fmt.Errorf("what to do on loss is %q: say stop, earliest or latest", cfg.OnLoss))
	}
	if cfg.Group == ownTopic(cfg.Name) {
		errs = append(errs, fmt.Errorf("the group %s is ftproxy's own: choose another", cfg.Group))
	}
	if cfg.Logger == nil {
		errs = append(errs, errors.New("a Kafka source needs a logger"))
	}
	cfg.Topics = sorted(cfg.Topics)
	setDefault(&cfg.AppendBytes, 384<<10)
	setDefault(&cfg.PrefetchBytes, 32<<20)
	setDefault(&cfg.InflateBytes, 64<<20)
	if cfg.DiscoverEvery <= 0 {
		cfg.DiscoverEvery = 30 * time.Second
	}
	return &Source{cfg: cfg, start: start}, errors.Join(errs...)
}

func setDefault(n *int, value int) {
	if *n <= 0 {
		*n = value
	}
}

func parseStart(text string) (startAt, error) {
	switch text {
	case "", "earliest":
		return startAt{time: -1}, nil
	case "latest":
		return startAt{latest: true, time: -1}, nil
	}
	when, ok := strings.CutPrefix(text, "timestamp:")
	if ms, err := strconv.ParseInt(when, 10, 64); ok && err == nil && ms >= 0 {
		return startAt{time: ms}, nil
	}
	if at, err := time.Parse(time.RFC3339, when); ok && err == nil && at.UnixMilli() >= 0 {
		return startAt{time: at.UnixMilli()}, nil
	}
	return startAt{}, fmt.Errorf("the start %q is not earliest, latest or timestamp:… (milliseconds or RFC 3339)", text)
}

// Guarantee says what holds at this edge, beginning with the recovery type.
func (*Source) Guarantee() string {
	return "precise: each committed record is taken once, by topic id, partition and offset"
}

// Stats returns the counters; it may be called at any time.
func (s *Source) Stats() SourceStats {
	c := &s.stats
	st := SourceStats{
		Tuples: c.tuples.Load(), Duplicates: c.duplicates.Load(), WithoutID: c.withoutID.Load(), Retries: c.retries.Load(),
		LastError: c.trouble.String(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	st.Partitions = len(c.parts)
	for _, p := range c.parts {
		st.Lag += max(0, p.end.Load()-p.admitted.Load())
	}
	return st
}

// Run reads until ctx ends. It retries what may pass by itself, and says so in the log and in Stats; a *proxy.Halt
// means that a human has to decide.
func (s *Source) Run(ctx context.Context, in proxy.Intake) error {
	waits := proxy.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		before := s.stats.tuples.Load()
		err := s.once(ctx, in)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, halted := errors.AsType[*proxy.Halt](err); halted || errors.Is(err, logbuffer.ErrCorrupt) {
			s.stats.trouble.set(ctx, s.cfg.Logger, "kafka source stopped", err)
			return err
		}
		if s.stats.tuples.Load() != before {
			waits.Reset()
		}
		s.stats.retries.Add(1)
		s.stats.trouble.set(ctx, s.cfg.Logger, "kafka source starts over", err)
		if err := waits.Wait(ctx); err != nil {
			return err
		}
	}
}

// once reads with one assignment until something goes wrong.
func (s *Source) once(ctx context.Context, in proxy.Intake) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &reading{
		s: s, cfg: &s.cfg, in: in, cl: newCluster(s.cfg.Connection, s.cfg.Logger), log: s.cfg.Logger, fail: cancel,
		poke: make(chan struct{}, 1), fetchers: map[int32]*fetcher{},
	}
	defer r.cl.close()
	defer s.stats.held.Store(0)
	defer s.show(nil)
	defer r.wg.Wait()
	err := r.run(ctx)
	cancel(err)
	return context.Cause(ctx)
}

func (s *Source) show(parts []*part) {
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	s.stats.parts = slices.Clone(parts)
}

// reading is one life of a source's assignment. run owns its goroutines: a fetcher for each broker, an appender for
// each partition.
type reading struct {
	s    *Source
	cfg  *SourceConfig
	in   proxy.Intake
	cl   *cluster
	log  *slog.Logger
	fail context.CancelCauseFunc // ends all, with the reason
	poke chan struct{}           // asks for fresh metadata
	wg   sync.WaitGroup
	memo *memory

	mu       sync.Mutex // guards what follows, and leader, next and queued of each part
	parts    []*part
	fetchers map[int32]*fetcher
}

// run keeps the assignment up to date until ctx ends.
func (r *reading) run(ctx context.Context) error {
	memo, err := r.recall(ctx)
	if err != nil {
		return err
	}
	r.memo = memo
	if r.cfg.Group != "" {
		r.wg.Go(func() { r.followGroup(ctx) })
	}
	waits := proxy.Backoff{Min: 100 * time.Millisecond, Max: 3 * time.Second}
	for first := true; ; first = false {
		settled, err := r.assign(ctx, first)
		if err != nil {
			return err
		}
		wait := r.cfg.DiscoverEvery
		if settled {
			waits.Reset()
			r.s.stats.trouble.clear(ctx, r.log, "kafka source reads all partitions")
		} else {
			wait = waits.Next()
		}
		if err := r.rest(ctx, wait, &waits); err != nil {
			return err
		}
	}
}

// rest waits until the assignment is to be looked at again: after wait, or shortly after a fetcher asked for it.
func (r *reading) rest(ctx context.Context, wait time.Duration, waits *proxy.Backoff) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	case <-r.poke:
		return waits.Wait(ctx)
	}
}

// followGroup writes the group's offsets for tools, until ctx ends.
func (r *reading) followGroup(ctx context.Context) {
	tick := time.NewTicker(groupEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.commitGroup(ctx)
		}
	}
}

// refresh asks for fresh metadata, without waiting for it.
func (r *reading) refresh() {
	select {
	case r.poke <- struct{}{}:
	default:
	}
}
