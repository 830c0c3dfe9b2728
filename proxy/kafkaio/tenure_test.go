package kafkaio_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

// tenure is one leader's view of an outlet: it ends, while the next leader's begins.
type tenure struct {
	*proxytest.Outlet
	over atomic.Bool
}

func (o *tenure) check() error {
	if o.over.Load() {
		return fmt.Errorf("%w: another leads", logbuffer.ErrUnavailable)
	}
	return nil
}

func (o *tenure) Barrier(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	return o.Outlet.Barrier(ctx)
}

func (o *tenure) Cursor(ctx context.Context) (proxy.Cursor, error) {
	if err := o.check(); err != nil {
		return proxy.Cursor{}, err
	}
	return o.Outlet.Cursor(ctx)
}

func (o *tenure) HashAt(ctx context.Context, n uint64) (uint64, bool, error) {
	if err := o.check(); err != nil {
		return 0, false, err
	}
	return o.Outlet.HashAt(ctx, n)
}

func (o *tenure) Ack(ctx context.Context, ack logbuffer.Ack) error {
	if err := o.check(); err != nil {
		return err
	}
	return o.Outlet.Ack(ctx, ack)
}

// Read goes on after the tenure: what a paused leader has read ahead is what it would send.
func (o *tenure) Read(ctx context.Context, after uint64, maxBytes int) ([]logbuffer.Stored, error) {
	return o.Outlet.Read(ctx, after, maxBytes)
}

// line stands between a sink and its brokers and can hold back what the sink writes.
type line struct {
	mu      sync.Mutex
	keys    map[int16]bool // nil: everything
	holding bool
	arrived chan struct{} // closed when the first request is held
	release chan struct{}
	active  atomic.Int64 // when something was last written or read, in Unix nanoseconds
}

// quiet waits until nothing went over the line for a while: all that was asked is answered.
func (l *line) quiet(t *testing.T) {
	t.Helper()
	proxytest.Until(t, 20*time.Second, "a quiet line", func() bool {
		return time.Since(time.Unix(0, l.active.Load())) > 500*time.Millisecond
	})
}

// hold stops the next request of one of the keys (none: of any) and all that come after.
func (l *line) hold(keys ...int16) (arrived <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holding, l.keys = true, nil
	for _, k := range keys {
		if l.keys == nil {
			l.keys = map[int16]bool{}
		}
		l.keys[k] = true
	}
	l.arrived, l.release = make(chan struct{}), make(chan struct{})
	return l.arrived
}

// resume lets everything pass again.
func (l *line) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holding {
		l.holding = false
		close(l.release)
	}
}

func (l *line) pass(key int16) {
	l.mu.Lock()
	if !l.holding || l.keys != nil && !l.keys[key] {
		l.mu.Unlock()
		return
	}
	if l.keys != nil {
		l.keys = nil // paused as a whole from here on
	}
	select {
	case <-l.arrived:
	default:
		close(l.arrived)
	}
	release := l.release
	l.mu.Unlock()
	<-release
}

func (l *line) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &heldConn{c, l}, nil
}

type heldConn struct {
	net.Conn
	line *line
}

func (c *heldConn) Write(p []byte) (int, error) {
	c.line.pass(int16(binary.BigEndian.Uint16(p[4:])))
	if err := c.SetWriteDeadline(time.Time{}); err != nil { // it may have passed while the process was "paused"
		return 0, err
	}
	c.line.active.Store(time.Now().UnixNano())
	return c.Conn.Write(p)
}

func (c *heldConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.line.active.Store(time.Now().UnixNano())
	return n, err
}

// running is a sink with its tenure.
type running struct {
	sink   *kafkaio.Sink
	out    *tenure
	line   *line
	cancel context.CancelFunc
	ended  chan error
}

// lead starts a sink as the leader that owns the outlet from now on.
func lead(t *testing.T, b *broker, topic string, out *proxytest.Outlet, change ...func(*kafkaio.SinkConfig)) *running {
	t.Helper()
	return leadMutant(t, b, topic, out, kafkaio.Mutant{}, change...)
}

func leadMutant(t *testing.T, b *broker, topic string, out *proxytest.Outlet, m kafkaio.Mutant,
	change ...func(*kafkaio.SinkConfig),
) *running {
	t.Helper()
	r := &running{out: &tenure{Outlet: out}, line: &line{}, ended: make(chan error, 1)}
	r.sink = newSink(t, b, topic, append(change, func(c *kafkaio.SinkConfig) { c.Connection.Connect(r.line.connect) })...)
	r.sink.Mutate(m)
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() { r.ended <- r.sink.Run(ctx, r.out) }()
	t.Cleanup(func() {
		r.kill()
		select {
		case err := <-r.ended:
			if err == nil {
				t.Error("a sink ends without a reason")
			}
		case <-time.After(30 * time.Second):
			t.Error("the sink does not end")
		}
	})
	return r
}

// kill ends a sink in the middle of whatever it does; its connections break.
func (r *running) kill() {
	r.out.over.Store(true)
	r.cancel()
	r.line.resume()
}
