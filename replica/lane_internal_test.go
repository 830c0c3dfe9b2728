package replica

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ftproxy/logbuffer"
)

// shakyLeader is a state behind links that fail at random: before a command is applied, or after, so that its verdict
// is lost.
type shakyLeader struct {
	mu    sync.Mutex
	rand  *rand.Rand
	state proposers
	got   []string // bodies, as applied
	fails int      // of a hundred commands
}

func newShakyLeader(seed uint64, fails int) *shakyLeader {
	return &shakyLeader{rand: rand.New(rand.NewPCG(seed, 5)), state: newProposers(window), fails: fails}
}

func (l *shakyLeader) apply(c command) Verdict {
	if c.Kind == kindOpen {
		d := bodyReader{p: c.Body}
		d.uvarint()
		var n nonce
		copy(n[:], d.fixed(len(n)))
		return l.state.open(c.Proposer, c.Incarnation, n)
	}
	p, v, due := l.state.check(&c)
	if !due {
		return v
	}
	l.got = append(l.got, string(c.Body))
	v = Verdict{Offset: uint64(len(l.got))}
	p.Last = c.Number
	p.keep(c.Number, v.appendTo(nil))
	return v
}

// shakyLink is one connection to it. After its first failure it is of no use.
type shakyLink struct {
	l    *shakyLeader
	gone chan struct{}
	once sync.Once
}

func (k *shakyLink) failed() <-chan struct{} { return k.gone }
func (k *shakyLink) close()                  { k.once.Do(func() { close(k.gone) }) }

func (k *shakyLink) stand(_ context.Context, proposer string, from uint64) (standing, error) {
	k.l.mu.Lock()
	defer k.l.mu.Unlock()
	var st standing
	p, ok := k.l.state.known[proposer]
	if !ok {
		return st, nil
	}
	st.Known, st.Proposer = true, p.Proposer
	for n := from; n <= st.Last && n-from < window; n++ {
		st.Verdicts = append(st.Verdicts, p.recall(n))
	}
	return st, nil
}

func (k *shakyLink) submit(_ context.Context, c command, done func(Verdict, error)) error {
	select {
	case <-k.gone:
		return errLinkFailed
	default:
	}
	k.l.mu.Lock()
	defer k.l.mu.Unlock()
	fate := k.l.rand.IntN(100)
	if fate < k.l.fails/2 { // lost on the way there
		k.close()
		return nil
	}
	v := k.l.apply(c)
	if fate < k.l.fails { // lost on the way back
		k.close()
		return nil
	}
	go done(v, nil)
	return nil
}

// TestLaneSettlesWhatWasLost proposes in order over links that lose one command or verdict in five: each is applied
// once, in order, and gets the verdict of that one time.
func TestLaneSettlesWhatWasLost(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			leader := newShakyLeader(seed, 20)
			l := newLane("lane/x", 0, testLogger(t, "x"), func(context.Context) (link, error) {
				return &shakyLink{l: leader, gone: make(chan struct{})}, nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { l.run(ctx) })
			const count = 200
			verdicts := make([]Verdict, count)
			var clients sync.WaitGroup
			for i := range count {
				p := &proposal{kind: kindAppend, body: fmt.Append(nil, i), done: make(chan struct{})}
				if !l.enqueue(p) {
					t.Fatal("the lane has ended")
				}
				clients.Go(func() {
					<-p.done
					if verdicts[i] = p.verdict; p.err != nil {
						t.Errorf("command %d: %v", i, p.err)
					}
				})
			}
			clients.Wait()
			cancel()
			wg.Wait()
			for i := range count {
				if i >= len(leader.got) || leader.got[i] != fmt.Sprint(i) {
					t.Fatalf("seed %d: applied %v", seed, leader.got)
				}
				if verdicts[i].Offset != uint64(i+1) {
					t.Fatalf("seed %d: command %d got the verdict of %d", seed, i, verdicts[i].Offset-1)
				}
			}
			if len(leader.got) != count {
				t.Fatalf("seed %d: %d commands were applied", seed, len(leader.got))
			}
		})
	}
}

func TestCallerLearnsWhetherItsCommandWasSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		connected := make(chan link, 1)
		l := newLane("lane/x", 0, testLogger(t, "x"), func(ctx context.Context) (link, error) {
			select {
			case k := <-connected:
				return k, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { l.run(ctx) })
		brief := func() error {
			once, done := context.WithTimeout(t.Context(), time.Second)
			defer done()
			_, err := l.propose(once, kindAppend, []byte("x"))
			return err
		}
		if err := brief(); !errors.Is(err, logbuffer.ErrUnavailable) {
			t.Errorf("without a leader: %v", err)
		}
		leader := newShakyLeader(1, 0)
		first := &shakyLink{l: leader, gone: make(chan struct{})}
		connected <- first
		if err := brief(); err != nil {
			t.Errorf("with a leader: %v", err)
		}
		leader.fails = 200 // from here on every command is lost on its way
		if err := brief(); !errors.Is(err, logbuffer.ErrUnknown) {
			t.Errorf("with the command in flight: %v", err)
		}
		if err := brief(); !errors.Is(err, logbuffer.ErrUnavailable) {
			t.Errorf("behind one in flight, never sent: %v", err)
		}
		cancel()
		wg.Wait()
		if err := brief(); !errors.Is(err, logbuffer.ErrUnavailable) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestTenureProposerEndsWhenFenced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		leader := newShakyLeader(1, 0)
		open := func() *lane {
			return newLane("tenure", 7, testLogger(t, "x"), func(context.Context) (link, error) {
				return &shakyLink{l: leader, gone: make(chan struct{})}, nil
			})
		}
		former, next := open(), open()
		var wg sync.WaitGroup
		wg.Go(func() { former.run(t.Context()) })
		if _, err := former.propose(t.Context(), kindTick, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() { next.run(ctx) })
		if _, err := next.propose(t.Context(), kindTick, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := former.propose(t.Context(), kindTick, nil); !errors.Is(err, logbuffer.ErrUnknown) {
			t.Errorf("a fenced proposer got %v", err)
		}
		cancel()
		wg.Wait()
	})
}

func TestBudgetIsFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10)
		var mu sync.Mutex
		var order []int
		if err := b.take(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i, amount := range []int{8, 1, 1} {
			wg.Go(func() {
				if err := b.take(t.Context(), amount); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			if err := b.take(ctx, 5); !errors.Is(err, context.Canceled) {
				t.Errorf("a claim that was given up: %v", err)
			}
		})
		synctest.Wait()
		b.give(2)
		synctest.Wait()
		if len(order) != 0 {
			t.Fatalf("small claims %v overtook a large one", order)
		}
		b.give(6)
		synctest.Wait()
		cancel()
		b.give(2)
		wg.Wait()
		if slices.Sort(order); len(order) != 3 || b.left != 0 {
			t.Fatalf("granted %v, left %d", order, b.left)
		}
	})
}
