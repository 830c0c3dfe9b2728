package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/proxy/proxytest"
)

// stuckSink delivers only while it is allowed to, and notes what.
type stuckSink struct {
	mu        sync.Mutex
	stuck     bool
	delivered []string
	running   int
	most      int
}

func (s *stuckSink) Run(ctx context.Context, out proxy.Outlet) error {
	s.mu.Lock()
	s.running++
	s.most = max(s.most, s.running)
	s.mu.Unlock()
	defer func() { s.mu.Lock(); defer s.mu.Unlock(); s.running-- }()
	cursor, err := out.Cursor(ctx)
	if err != nil {
		return err
	}
	for after := cursor.Acked; ; {
		batches, err := out.Read(ctx, after, 1)
		if err != nil {
			return err
		}
		for s.isStuck() {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		batch, err := batches[0].Decode()
		if err != nil {
			return err
		}
		for i := range batch.Tuples {
			if batches[0].First+uint64(i) > after {
				s.delivered = append(s.delivered, string(batch.Tuples[i].Value))
			}
		}
		after = batches[0].Last
		if err := out.Ack(ctx, logbuffer.Ack{UpTo: after}); err != nil {
			return err
		}
	}
}

func (s *stuckSink) isStuck() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stuck
}

func (s *stuckSink) set(stuck bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = stuck
}

func TestPolicy(t *testing.T) {
	for _, over := range []string{"wait", "drop", "dead-letter"} {
		synctest.Test(t, func(t *testing.T) {
			log := proxytest.NewLog("l")
			out := log.Outlet("a")
			const size = 1000 // as if each tuple took so much
			policy := proxy.Policy{
				Over: over, MaxBytes: 50 * size, Logger: slog.New(slog.DiscardHandler),
				Retained: func() int64 { return int64(log.End()-out.Acked()) * size },
			}
			sink := &stuckSink{stuck: true}
			wrapped, err := policy.Wrap(sink)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- wrapped.Run(ctx, out) }()
			feed := func(from, to int) {
				for n := from; n <= to; n += 5 {
					b := logbuffer.Batch{Source: "s", Partition: 2, Sink: ""}
					for i := n; i < n+5; i++ {
						b.Tuples = append(b.Tuples, logbuffer.Tuple{Value: []byte(strconv.Itoa(i))})
					}
					log.Feed(b)
				}
			}
			for n := 1; n <= 200; n += 50 {
				feed(n, n+49)
				time.Sleep(5 * time.Second)
			}
			retained := log.End() - out.Acked()
			if over == "wait" && retained != 200 || over != "wait" && retained > 50 {
				t.Errorf("%s: %d tuples retained", over, retained)
			}
			sink.set(false)
			if err := out.WaitAcked(proxytest.Within(t, time.Minute), 200); err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, logbuffer.ErrUnavailable) {
				t.Errorf("%s: %v", over, err)
			}
			dropped := 0
			for _, a := range out.Acks() {
				dropped += a.Dropped
			}
			letters := out.Letters()
			if len(sink.delivered)+dropped+len(letters) != 200 {
				t.Errorf("%s: %d delivered, %d dropped, %d letters", over, len(sink.delivered), dropped, len(letters))
			}
			if (dropped > 0) != (over == "drop") || (len(letters) > 0) != (over == "dead-letter") {
				t.Errorf("%s: %d dropped, %d letters", over, dropped, len(letters))
			}
			for i, l := range letters {
				if l.From != uint64(i+1) || string(l.Tuple.Value) != strconv.Itoa(i+1) || l.Source != "s" || l.Partition != 2 {
					t.Errorf("letter %+v", l)
				}
			}
			given := dropped + len(letters)
			for i, v := range sink.delivered {
				if v != strconv.Itoa(given+i+1) {
					t.Fatalf("%s: delivered %s at place %d after %d given up", over, v, i, given)
				}
			}
			if sink.most != 1 {
				t.Errorf("%d sinks at once", sink.most)
			}
		})
	}
}

func TestPolicyRefused(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	for _, p := range []proxy.Policy{
		{Over: "burn", Logger: logger},
		{Over: "drop", Logger: logger, Retained: func() int64 { return 0 }},
		{Over: "drop", Logger: logger, MaxBytes: 1},
	} {
		if _, err := p.Wrap(&stuckSink{}); err == nil {
			t.Errorf("%+v: accepted", p)
		}
	}
}

func TestPolicyPassesTrouble(t *testing.T) {
	policy := proxy.Policy{
		Over: "drop", MaxBytes: 1, Retained: func() int64 { return 0 }, Logger: slog.New(slog.DiscardHandler),
	}
	wrapped, err := policy.Wrap(runFunc(nil))
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := wrapped.(interface{ Trouble() error }); !ok || s.Trouble() == nil {
		t.Error("a sink's trouble does not come through its policy")
	}
}

// What makes the sink stop for good goes through the policy.
func TestPolicyPassesErrors(t *testing.T) {
	for _, want := range []error{&proxy.Halt{Cause: errors.New("x")}, errors.New("y"), fmt.Errorf("z: %w",
		logbuffer.ErrCorrupt)} {
		policy := proxy.Policy{
			Over: "drop", MaxBytes: 1, Retained: func() int64 { return 0 }, Logger: slog.New(slog.DiscardHandler),
		}
		wrapped, err := policy.Wrap(sinkFunc(func(context.Context, proxy.Outlet) error { return want }))
		if err != nil {
			t.Fatal(err)
		}
		if err := wrapped.Run(t.Context(), proxytest.NewLog("l").Outlet("a")); !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
	}
}
