package replica

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"ftproxy/dedup"
)

// Tenure is one period of leadership. Its methods may be called concurrently.
type Tenure struct {
	n      *Node
	term   uint64
	commit *committer
	// lane is the proposer of the leader's own commands.
	lane *lane
	// over is closed when the tenure ends.
	over <-chan struct{}

	mu      sync.Mutex
	outlets map[string]*Outlet
	start   func(o *Outlet)
}

// Term is the Raft term of the tenure: it grows from tenure to tenure, across all nodes.
func (t *Tenure) Term() uint64 { return t.term }

// Outlet returns the end of a reader of the IN buffer. Reading for a reader that the state does not have errs.
func (t *Tenure) Outlet(reader string) *Outlet {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, ok := t.outlets[reader]
	if !ok {
		o = newOutlet(t, reader)
		t.outlets[reader] = o
		t.start(o)
	}
	return o
}

// followNotify keeps up with Raft, which waits for its word on leadership to be taken.
func (n *Node) followNotify(ctx context.Context) {
	for {
		select {
		case leading := <-n.notify:
			n.mu.Lock()
			n.leading = leading
			n.leadGen++
			n.mu.Unlock()
			if leading {
				n.elections.Add(1)
			}
			n.turn.fire()
		case <-ctx.Done():
			return
		}
	}
}

// leadership returns whether this node leads, and a number that changes whenever that does.
func (n *Node) leadership() (leading bool, generation uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leading, n.leadGen
}

// runTenures begins a tenure whenever this node is made leader, and ends it when it is no more.
func (n *Node) runTenures(ctx context.Context) {
	for ctx.Err() == nil {
		next := n.turn.next()
		leading, generation := n.leadership()
		if leading {
			err := n.runTenure(ctx, generation)
			if err != nil && ctx.Err() == nil {
				n.notBegun(ctx, err)
			}
			wait(ctx, 20*time.Millisecond)
			continue
		}
		select {
		case <-next:
		case <-ctx.Done():
		}
	}
}

// notBegun tells why a tenure did not begin: loudly, but once, if only a human can help.
func (n *Node) notBegun(ctx context.Context, err error) {
	n.mu.Lock()
	n.unbegun = err
	n.mu.Unlock()
	if errors.Is(err, errSettings) {
		n.once.warn(ctx, n.log, err.Error(), "a tenure does not begin", slog.Any("error", err))
		return
	}
	n.log.DebugContext(ctx, "a tenure did not begin", slog.Any("error", err))
}

// runTenure is one tenure. It returns nil when it has ended, or an error if it did not begin.
func (n *Node) runTenure(ctx context.Context, generation uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { cancel(n.untilLost(ctx, generation)) })
	term := n.core.CurrentTerm()
	if err := n.futures.await(ctx, ctx.Done(), n.core.Barrier(0)); err != nil {
		return err
	}
	var last int64
	n.fsm.view(func(s *State) { last = s.Now() })
	clock := newClock(last)
	t := &Tenure{n: n, term: term, over: ctx.Done(), outlets: map[string]*Outlet{}}
	t.commit = newCommitter(n.core, &n.futures, n.fsm.view, clock.now)
	defer t.commit.end()
	defer cancel(nil)
	t.start = func(o *Outlet) {
		wg.Go(func() { o.lane.run(ctx) })
		wg.Go(func() { o.run(ctx) })
	}
	t.lane = newLane(tenureProposer, term, n.log, t.connect)
	wg.Go(func() { t.lane.run(ctx) })
	n.setTenure(t)
	defer n.setTenure(nil)
	if err := t.settle(ctx); err != nil {
		return err
	}
	n.log.InfoContext(ctx, "leading", slog.Uint64("term", term))
	keeper := &custodian{n: n, t: t}
	wg.Go(func() { keeper.run(ctx) })
	wg.Go(func() { t.tick(ctx) })
	n.setReign(t)
	defer n.setReign(nil)
	<-ctx.Done()
	n.log.InfoContext(ctx, "no longer leading", slog.Uint64("term", term), slog.Any("cause", context.Cause(ctx)))
	return nil
}

var errTenureOver = errors.New("the tenure is over")

// untilLost returns when the leadership of a generation is lost, or must be given up.
func (n *Node) untilLost(ctx context.Context, generation uint64) error {
	for {
		next := n.turn.next()
		if _, now := n.leadership(); now != generation || n.dog.muted.Load() {
			return errTenureOver
		}
		select {
		case <-next:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (n *Node) setTenure(t *Tenure) {
	n.mu.Lock()
	n.tenure = t
	if t == nil {
		n.waits = nil
	}
	n.mu.Unlock()
	n.turn.fire()
}

// setReign publishes a tenure that has begun in full.
func (n *Node) setReign(t *Tenure) {
	n.mu.Lock()
	n.reign, n.unbegun = t, nil
	n.mu.Unlock()
	n.turn.fire()
}

// committer returns the present tenure's committer, nil if this node does not lead.
func (n *Node) committer() *committer {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tenure == nil {
		return nil
	}
	return n.tenure.commit
}

// connect gives the tenure's proposers its committer.
func (t *Tenure) connect(ctx context.Context) (link, error) {
	select {
	case <-t.over:
		return nil, errTenureOver
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	default:
		return t.commit, nil
	}
}

// Lead calls lead once for each tenure of this node as leader, until ctx ends or the node does. The context given to
// lead ends with the tenure, and Lead waits for lead to return before it begins another. An error of lead ends Lead.
func (n *Node) Lead(ctx context.Context, lead func(ctx context.Context, t *Tenure) error) error {
	var last *Tenure
	for {
		next := n.turn.next()
		n.mu.Lock()
		t := n.reign
		n.mu.Unlock()
		if t != nil && t != last {
			last = t
			if err := t.lead(ctx, lead); err != nil && ctx.Err() == nil {
				return err
			}
			continue
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil
		case <-n.ctx.Done():
			return nil
		}
	}
}

// lead runs one call of Lead's function. Its error counts only while the tenure lasts.
func (t *Tenure) lead(ctx context.Context, lead func(ctx context.Context, t *Tenure) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-t.over:
			cancel(errTenureOver)
		case <-stop:
		}
	}()
	err := lead(ctx, t)
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		<-ctx.Done()
	}
	return err
}

// tickEvery is how far replicated time falls behind at most while something waits for it.
const tickEvery = 10 * time.Second

// tick lets replicated time pass while nothing else is written and ids or sessions wait to expire.
func (t *Tenure) tick(ctx context.Context) {
	var seen int64
	for wait(ctx, tickEvery) {
		var now int64
		var use dedup.Use
		t.n.fsm.view(func(s *State) { now, use = s.Now(), s.DedupUse() })
		if now == seen && use.IDs+use.Sessions > 0 {
			_, _ = t.lane.propose(ctx, kindTick, nil) // if it does not come through, the next one will
		}
		seen = now
	}
}
