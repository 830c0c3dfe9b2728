package logbuffer_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"ftproxy/logbuffer"
)

func fullLetter() logbuffer.Letter {
	b := fullBatch()
	return logbuffer.Letter{
		From: 77, Reader: "kafka", Reason: "message too large", Attempts: 3, Time: 1_700_000_000_555,
		Source: b.Source, Partition: b.Partition, Sink: b.Sink, Tuple: b.Tuples[2],
	}
}

func TestDeadLetter(t *testing.T) {
	t.Parallel()
	d := logbuffer.NewDead(logbuffer.DeadOptions{})
	want := fullLetter()
	want.Offset = 1
	given := fullLetter()
	given.Offset = 99
	if n := d.Add(given); n != 1 {
		t.Fatalf("the first letter got offset %d", n)
	}
	if got, ok := d.Get(1); !ok || !reflect.DeepEqual(got, want) {
		t.Fatalf("\n got %+v\nwant %+v", got, want)
	}
	given.Tuple.Headers[0].Value[0] = '!'
	if got, _ := d.Get(1); got.Tuple.Headers[0].Value[0] == '!' {
		t.Error("the letter shares memory with what was given")
	}
	if got, ok := d.Resolve(1); !ok || got.From != 77 || d.Len() != 0 || d.Bytes() != 0 || d.Cursor() != 1 ||
		d.End() != 1 {
		t.Errorf("resolve: %+v, %v; %d left", got, ok, d.Len())
	}
	if _, ok := d.Resolve(1); ok {
		t.Error("it was resolved twice")
	}
}

func TestDeadIsBounded(t *testing.T) {
	t.Parallel()
	d := logbuffer.NewDead(logbuffer.DeadOptions{Letters: 3})
	for i := range 3 {
		if d.Full() {
			t.Fatalf("full with %d letters", i)
		}
		d.Add(fullLetter())
	}
	if !d.Full() {
		t.Error("three letters do not fill it")
	}
	d.SetOptions(logbuffer.DeadOptions{Bytes: d.Bytes() + 1})
	if d.Full() {
		t.Error("full below both bounds")
	}
	d.Add(fullLetter())
	if !d.Full() {
		t.Error("beyond its bytes it is not full")
	}
	if d.Add(fullLetter()) != 5 {
		t.Error("a full Dead refused at apply")
	}
}

// TestDeadAgainstModel resolves in random order; every state survives a restart.
func TestDeadAgainstModel(t *testing.T) {
	t.Parallel()
	for _, seed := range seeds(30) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			rng := newRand(seed)
			d := logbuffer.NewDead(logbuffer.DeadOptions{})
			var open []uint64
			end := uint64(0)
			for range 600 {
				switch k := rng.IntN(10); {
				case k < 4:
					l := fullLetter()
					l.From = end + 1000
					end++
					if d.Add(l) != end {
						t.Fatal("offsets are not dense")
					}
					open = append(open, end)
				case k < 9:
					n := rng.Uint64N(end + 2)
					i, there := slices.BinarySearch(open, n)
					if l, ok := d.Resolve(n); ok != there || ok && (l.Offset != n || l.From != n+999) {
						t.Fatalf("resolve %d: %v, %+v", n, ok, l)
					}
					if there {
						open = slices.Delete(open, i, i+1)
					}
				default:
					p := append(d.AppendManifest(nil), "rest"...)
					again, rest, err := logbuffer.RestoreDead(logbuffer.DeadOptions{}, p)
					if err != nil || string(rest) != "rest" || again.Bytes() != d.Bytes() {
						t.Fatalf("restore: %v", err)
					}
					d = again
				}
				checkDead(t, d, open, end)
			}
		})
	}
}

func checkDead(t *testing.T, d *logbuffer.Dead, open []uint64, end uint64) {
	t.Helper()
	cursor := end
	if len(open) > 0 {
		cursor = open[0] - 1
	}
	if d.Len() != len(open) || d.End() != end || d.Cursor() != cursor {
		t.Fatalf("%d letters, cursor %d, end %d; want %d, %d, %d", d.Len(), d.Cursor(), d.End(), len(open), cursor, end)
	}
	for _, after := range []uint64{0, cursor, end / 2, end} {
		var want []uint64
		for _, n := range open {
			if n > after && len(want) < 5 {
				want = append(want, n)
			}
		}
		var got []uint64
		for _, l := range d.List(after, 5) {
			got = append(got, l.Offset)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("list after %d: %v; want %v", after, got, want)
		}
	}
}

func TestDeadManifestDamage(t *testing.T) {
	t.Parallel()
	d := logbuffer.NewDead(logbuffer.DeadOptions{})
	for range 3 {
		d.Add(fullLetter())
	}
	whole := d.AppendManifest(nil)
	for i := range len(whole) * 8 {
		p := slices.Clone(whole)
		p[i/8] ^= 1 << (i % 8)
		if _, _, err := logbuffer.RestoreDead(logbuffer.DeadOptions{}, p); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("bit %d: %v", i, err)
		}
	}
	for n := range whole {
		if _, _, err := logbuffer.RestoreDead(logbuffer.DeadOptions{}, whole[:n]); !errors.Is(err, logbuffer.ErrCorrupt) {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
	newer := frameOf(2, frameBody(whole))
	if _, _, err := logbuffer.RestoreDead(logbuffer.DeadOptions{}, newer); !errors.Is(err, logbuffer.ErrVersion) {
		t.Errorf("a newer version: %v", err)
	}
}

func FuzzRestoreDead(f *testing.F) {
	d := logbuffer.NewDead(logbuffer.DeadOptions{})
	f.Add(frameBody(d.AppendManifest(nil)))
	d.Add(fullLetter())
	d.Add(fullLetter())
	d.Resolve(1)
	f.Add(frameBody(d.AppendManifest(nil)))
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _, _ = logbuffer.RestoreDead(logbuffer.DeadOptions{}, body)
		d, rest, err := logbuffer.RestoreDead(logbuffer.DeadOptions{}, frameOf(1, body))
		if err != nil {
			return
		}
		d.List(0, 1<<30)
		again, _, err := logbuffer.RestoreDead(logbuffer.DeadOptions{}, d.AppendManifest(nil))
		if err != nil || len(rest) != 0 || !bytes.Equal(again.AppendManifest(nil), d.AppendManifest(nil)) {
			t.Fatalf("it does not survive a restart: %v", err)
		}
	})
}
