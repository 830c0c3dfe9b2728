package replica

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"ftproxy/logbuffer"
)

// soon bounds every wait of a test.
const soon = 30 * time.Second

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		if !wait(ctx, 5*time.Millisecond) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func testLogger(t *testing.T, node string) *slog.Logger {
	t.Helper()
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level})).With(slog.String("node", node))
}

func openAlone(t *testing.T, dir string) *Node {
	t.Helper()
	n, err := Open(t.Context(), Config{
		Name: "op", Node: "a", DataDir: dir, Readers: []logbuffer.Reader{{Name: "out"}}, Logger: testLogger(t, "a"),
		ElectionTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func tuples(source string, from, to int) logbuffer.Batch {
	b := logbuffer.Batch{Source: source, Rule: logbuffer.RuleDense}
	for i := from; i <= to; i++ {
		b.Tuples = append(b.Tuples, logbuffer.Tuple{Value: fmt.Appendf(nil, "%s %d", source, i), Position: int64(i)})
	}
	return b
}

// deliver reads n tuples in the node's next tenure, acknowledging each batch, and returns their values.
func deliver(t *testing.T, n *Node, want int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var got []string
	err := n.Lead(ctx, func(ctx context.Context, tn *Tenure) error {
		o := tn.Outlet("out")
		after, _, _, _, err := o.Cursor(ctx)
		for err == nil && len(got) < want {
			var batches []logbuffer.Stored
			if batches, err = o.Read(ctx, after, 1<<20); err != nil {
				break
			}
			for _, s := range batches {
				b, bad := s.Decode()
				if bad != nil {
					return bad
				}
				for i, tuple := range b.Tuples {
					if s.First+uint64(i) > after { // a batch may be acknowledged in part
						got = append(got, string(tuple.Value))
					}
				}
				after = s.Last
			}
			err = o.Ack(ctx, logbuffer.Ack{UpTo: after})
		}
		if len(got) >= want {
			cancel()
		}
		return err
	})
	if err != nil || len(got) < want {
		t.Fatalf("delivered %d of %d: %v", len(got), want, err)
	}
	return got
}

func TestOneNodeTakesDeliversAndRemembers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	n := openAlone(t, dir)
	eventually(t, "ready", n.Ready)
	for i := range 10 {
		r, err := n.Append(t.Context(), tuples("s", i*10+1, i*10+10))
		if err != nil || r[0].Admitted != 10 {
			t.Fatal(r, err)
		}
	}
	r, err := n.Append(t.Context(), tuples("s", 95, 105))
	if err != nil || r[0].Duplicates != 6 || r[0].Admitted != 5 {
		t.Fatalf("a repeat is cut: %+v %v", r, err)
	}
	got := deliver(t, n, 105)
	for i, v := range got {
		if v != fmt.Sprintf("s %d", i+1) {
			t.Fatalf("tuple %d is %q", i, v)
		}
	}
	if err = n.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	n = openAlone(t, dir)
	defer func() {
		if bad := n.Shutdown(context.WithoutCancel(t.Context())); bad != nil {
			t.Error(bad)
		}
	}()
	eventually(t, "ready again", n.Ready)
	if last, known, bad := n.Position(t.Context(), "s"); bad != nil || !known || last != 105 {
		t.Fatal(last, known, bad)
	}
	if r, err = n.Append(t.Context(), tuples("s", 106, 107)); err != nil || r[0].First != 106 {
		t.Fatal(r, err)
	}
	if got := deliver(t, n, 2); got[0] != "s 106" {
		t.Fatal(got)
	}
	s := n.Status()
	if s.Role != "leader" || s.Positions["s"] != 107 || s.Buffers[0].Readers[0].Retained != 0 {
		t.Fatalf("%+v", s)
	}
}
