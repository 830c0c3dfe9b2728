package replica

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"ftproxy/logbuffer"
)

// window is W: how many commands of one proposer are in flight at most, and so how many verdicts the state keeps of it.
const window = 256

// flightBytes bounds the commands of one proposer that are in flight or wait to be, in bytes. A single command may be
// larger; it then goes alone.
const flightBytes = 8 << 20

// lane numbers the commands of one proposer and sees each through to its verdict:
//
//	propose ─▶ queue ─▶ number ─▶ in flight ─▶ verdict
//	                       ▲          │ any error
//	                       └─ resync ◀┘
//
// After any error it stops, asks the leader where the proposer stands (behind a barrier), settles what was decided by
// the verdicts that the state kept, and sends the rest again under the same numbers. So a lost answer is never taken
// for a failure, nothing is applied twice, and nothing is applied out of order.
type lane struct {
	name string
	// term binds the proposer to a tenure; 0 for one that outlives leaders.
	term uint64
	// connect returns a link to the present leader; it waits until there is one.
	connect func(ctx context.Context) (link, error)
	log     *slog.Logger
	flight  *budget

	// The fields below are used by run's goroutine alone.
	incarnation uint64
	nonce       nonce  // of the Open that is to give, or gave, incarnation
	last        uint64 // the last number given out

	mu sync.Mutex
	// queue holds proposals without a number, sent those with one, in order. Together they are at most window.
	queue, sent []*proposal
	stopped     bool
	freed       int           // what unlock gives back to flight
	wake        chan struct{} // capacity 1: queue grew
}

// proposal is one command on its way. The fields above done are immutable once it is queued.
type proposal struct {
	kind kind
	body []byte
	cost int           // reserved room
	done chan struct{} // closed when verdict and err are final

	number  uint64 // 0: not sent yet
	verdict Verdict
	err     error
}

// link carries a proposer's commands to a leader, for as long as that leads.
type link interface {
	// stand returns where a proposer stands, read behind a barrier, with the verdicts of the numbers from `from` on.
	stand(ctx context.Context, proposer string, from uint64) (standing, error)
	// submit hands commands over in order. done is called once for each, in order, unless the link fails; it must not
	// block. Submit itself may.
	submit(ctx context.Context, c command, done func(Verdict, error)) error
	// failed is closed when the link is no longer of use.
	failed() <-chan struct{}
	close()
}

// standing is where a proposer stands in the state.
type standing struct {
	Proposer
	Known bool
	// Verdicts are those of the numbers asked for, up to Last.
	Verdicts []Verdict
}

// errFenced ends a tenure's proposer: another tenure has begun.
var errFenced = errors.New("fenced by another incarnation")

func newLane(name string, term uint64, log *slog.Logger, connect func(context.Context) (link, error)) *lane {
	return &lane{
		name: name, term: term, connect: connect, log: log, nonce: newNonce(),
		flight: newBudget(flightBytes), wake: make(chan struct{}, 1),
	}
}

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

// propose makes a command of the body and waits for its verdict. If ctx ends first the error is of class
// logbuffer.ErrUnavailable when the command was never sent, else of class ErrUnknown.
func (l *lane) propose(ctx context.Context, k kind, body []byte) (Verdict, error) {
	cost := len(body)
	if err := l.reserve(ctx, cost); err != nil {
		return Verdict{}, err
	}
	return l.proposeReserved(ctx, k, body, cost)
}

// reserve waits for room for a command of so many bytes, so that memory is taken only for what is in flight.
func (l *lane) reserve(ctx context.Context, size int) error {
	if err := l.flight.take(ctx, flightCost(size)); err != nil {
		return fmt.Errorf("%w: %d commands or %d MiB of %s are in flight: %w", logbuffer.ErrUnavailable,
			window, flightBytes>>20, l.name, err)
	}
	return nil
}

// flightCost makes one budget bound both the number and the bytes of commands.
func flightCost(size int) int { return min(max(size, flightBytes/window), flightBytes) }

// proposeReserved is propose for a command whose room, for size bytes, is reserved. The room is given back when the
// command is decided, which may be after the caller gave up.
func (l *lane) proposeReserved(ctx context.Context, k kind, body []byte, size int) (Verdict, error) {
	p := &proposal{kind: k, body: body, cost: flightCost(size), done: make(chan struct{})}
	if !l.enqueue(p) {
		return Verdict{}, fmt.Errorf("%w: %s has ended", logbuffer.ErrUnavailable, l.name)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		if l.cancel(p) {
			return Verdict{}, fmt.Errorf("%w: no leader took the command: %w", logbuffer.ErrUnavailable, context.Cause(ctx))
		}
		select {
		case <-p.done: // decided at the last moment
		default:
			return Verdict{}, fmt.Errorf("%w: the command is in flight: %w", logbuffer.ErrUnknown, context.Cause(ctx))
		}
	}
	if p.err != nil {
		return Verdict{}, p.err
	}
	if p.verdict.Code == VerdictForgotten {
		return Verdict{}, fmt.Errorf("%w: decided so long ago that the verdict is not kept", logbuffer.ErrUnknown)
	}
	return p.verdict, nil
}

func (l *lane) enqueue(p *proposal) bool {
	l.mu.Lock()
	defer l.unlock()
	if l.stopped {
		l.freed += p.cost
		return false
	}
	l.queue = append(l.queue, p)
	l.poke()
	return true
}

// unlock unlocks l.mu and gives back the room of what was decided meanwhile.
func (l *lane) unlock() {
	freed := l.freed
	l.freed = 0
	l.mu.Unlock()
	if freed > 0 {
		l.flight.give(freed)
	}
}

func (l *lane) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// cancel takes a proposal back; it reports whether it had not been sent.
func (l *lane) cancel(p *proposal) bool {
	l.mu.Lock()
	defer l.unlock()
	for i, q := range l.queue {
		if q == p {
			l.queue = append(l.queue[:i:i], l.queue[i+1:]...)
			l.freed += p.cost
			return true
		}
	}
	return false
}

// pending is how many commands wait for their verdict.
func (l *lane) pending() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) + len(l.sent)
}

// run serves the lane until ctx ends or, for a tenure's proposer, until it is fenced. Then what is left is answered.
func (l *lane) run(ctx context.Context) {
	defer l.stop()
	for ctx.Err() == nil {
		err := l.session(ctx)
		if l.term != 0 && errors.Is(err, errFenced) {
			return
		}
		if err != nil && ctx.Err() == nil {
			l.log.DebugContext(ctx, "a proposer starts over", slog.String("proposer", l.name), slog.Any("error", err))
			wait(ctx, 20*time.Millisecond)
		}
	}
}

// stop answers every proposal that is left.
func (l *lane) stop() {
	l.mu.Lock()
	defer l.unlock()
	l.stopped = true
	for _, p := range l.queue {
		l.fail(p, fmt.Errorf("%w: %s has ended", logbuffer.ErrUnavailable, l.name))
	}
	for _, p := range l.sent {
		l.fail(p, fmt.Errorf("%w: %s has ended while the command was in flight", logbuffer.ErrUnknown, l.name))
	}
	l.queue, l.sent = nil, nil
}

// fail ends a proposal without a verdict. l.mu is held.
func (l *lane) fail(p *proposal, err error) {
	p.err = err
	l.freed += p.cost
	close(p.done)
}

// session works over one link until it fails.
func (l *lane) session(ctx context.Context) error {
	to, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer to.close()
	if err := l.resync(ctx, to); err != nil {
		return err
	}
	return l.pump(ctx, to)
}

// resync learns where the proposer stands, opens it if needed, and settles what was decided.
func (l *lane) resync(ctx context.Context, to link) error {
	for {
		from := uint64(math.MaxUint64)
		if first := l.firstSent(); first != nil {
			from = first.number
		}
		st, err := to.stand(ctx, l.name, from)
		if err != nil {
			return err
		}
		switch {
		case st.Known && st.Nonce == l.nonce:
			l.incarnation = st.Incarnation
			return l.settle(from, st)
		case l.incarnation != 0 && l.term != 0:
			return errFenced
		case l.incarnation != 0:
			l.abandon()
		}
		var replaces uint64
		if st.Known {
			replaces = st.Incarnation
		}
		if err := l.open(ctx, to, replaces); err != nil {
			return err
		}
	}
}

// abandon gives up what was sent under an incarnation that the state does not know any more.
func (l *lane) abandon() {
	l.log.Warn("the state forgot this proposer, it opens anew", slog.String("proposer", l.name))
	l.mu.Lock()
	defer l.unlock()
	for _, p := range l.sent {
		l.fail(p, fmt.Errorf("%w: the state forgot the proposer", logbuffer.ErrUnknown))
	}
	l.sent, l.incarnation, l.last, l.nonce = nil, 0, 0, newNonce()
}

// open proposes an incarnation. What came of it, the next look at the state tells.
func (l *lane) open(ctx context.Context, to link, replaces uint64) error {
	c := command{
		Kind: kindOpen, Proposer: l.name, Incarnation: replaces, Body: appendOpenBody(nil, l.term, l.nonce),
	}
	answer := make(chan error, 1)
	err := to.submit(ctx, c, func(v Verdict, err error) {
		if err == nil && v.Code == VerdictRefused {
			err = fmt.Errorf("%w: %s", logbuffer.ErrUnavailable, v.Reason)
		}
		answer <- err
	})
	if err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-to.failed():
		return errLinkFailed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errLinkFailed = errors.New("the link to the leader failed")

func (l *lane) firstSent() *proposal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) == 0 {
		return nil
	}
	return l.sent[0]
}

// settle resolves what the state decided. What is left in sent follows on its last number.
func (l *lane) settle(from uint64, st standing) error {
	l.mu.Lock()
	defer l.unlock()
	for len(l.sent) > 0 && l.sent[0].number <= st.Last {
		i := l.sent[0].number - from
		if i >= uint64(len(st.Verdicts)) {
			return fmt.Errorf("%w: leader knows number %d of %s but gives %d verdicts from %d",
				logbuffer.ErrCorrupt, st.Last, l.name, len(st.Verdicts), from)
		}
		l.resolve(st.Verdicts[i])
	}
	if len(l.sent) == 0 {
		l.last = st.Last
	} else if l.sent[0].number != st.Last+1 {
		return fmt.Errorf("%w: %s stands at %d, the first number in flight is %d",
			logbuffer.ErrCorrupt, l.name, st.Last, l.sent[0].number)
	}
	return nil
}

// resolve ends the oldest proposal in flight. l.mu is held.
func (l *lane) resolve(v Verdict) {
	p := l.sent[0]
	l.sent[0] = nil
	l.sent = l.sent[1:]
	p.verdict = v
	l.freed += p.cost
	close(p.done)
}

// pump sends what is in flight again, then what arrives, until the link fails.
func (l *lane) pump(ctx context.Context, to link) error {
	broken := make(chan error, 1)
	session := &laneSession{lane: l, broken: broken}
	defer session.end()
	l.mu.Lock()
	again := append([]*proposal{}, l.sent...)
	l.mu.Unlock()
	for _, p := range again {
		if err := session.send(ctx, to, p); err != nil {
			return err
		}
	}
	for {
		for p := l.next(); p != nil; p = l.next() {
			if err := session.send(ctx, to, p); err != nil {
				return err
			}
		}
		select {
		case <-l.wake:
		case err := <-broken:
			return err
		case <-to.failed():
			return errLinkFailed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// next gives the oldest queued proposal its number.
func (l *lane) next() *proposal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 || len(l.sent) >= window {
		return nil
	}
	p := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	l.last++
	p.number = l.last
	l.sent = append(l.sent, p)
	return p
}

// laneSession takes the answers of one link. Answers that come after its end are of no interest: the next session asks.
type laneSession struct {
	lane   *lane
	broken chan error // capacity 1
	over   bool       // guarded by lane.mu
}

func (s *laneSession) end() {
	s.lane.mu.Lock()
	defer s.lane.mu.Unlock()
	s.over = true
}

func (s *laneSession) send(ctx context.Context, to link, p *proposal) error {
	c := command{
		Kind: p.kind, Proposer: s.lane.name, Incarnation: s.lane.incarnation, Number: p.number, Body: p.body,
	}
	return to.submit(ctx, c, func(v Verdict, err error) { s.answer(p, v, err) })
}

func (s *laneSession) answer(p *proposal, v Verdict, err error) {
	l := s.lane
	l.mu.Lock()
	defer l.unlock()
	if s.over {
		return
	}
	if err == nil && (v.Code == VerdictGap || v.Code == VerdictFenced) {
		err = fmt.Errorf("number %d of incarnation %d was refused", p.number, l.incarnation)
	}
	if err == nil && (len(l.sent) == 0 || l.sent[0] != p) {
		err = fmt.Errorf("verdict of number %d arrived out of order", p.number)
	}
	if err != nil {
		s.over = true
		s.broken <- err
		return
	}
	l.resolve(v)
	if len(l.queue) > 0 {
		l.poke()
	}
}
