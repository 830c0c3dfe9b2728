package kafkaio_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

// stuck is a connection whose peer takes nothing that is large, until it is closed or the write's time is up.
type stuck struct {
	net.Conn
	writing chan<- struct{}
	closed  chan struct{}
	once    sync.Once
}

func (s *stuck) Write(p []byte) (int, error) {
	if len(p) < 1<<20 {
		return s.Conn.Write(p)
	}
	s.writing <- struct{}{}
	<-s.closed
	return 0, net.ErrClosed
}

func (s *stuck) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// A broker that takes no bytes must not hold a leader that steps down.
func TestSinkEndsWhileABrokerTakesNothing(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1, 1)
	writing := make(chan struct{}, 1)
	connect := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &stuck{Conn: c, writing: writing, closed: make(chan struct{})}, err
	}
	log := proxytest.NewLog("lin")
	for i := range 40 {
		log.Feed(logbuffer.Batch{Source: "x", Tuples: []logbuffer.Tuple{{Value: make([]byte, 900<<10), Position: int64(i)}}})
	}
	for _, transactional := range []bool{true, false} {
		s := f.sink(t, kafkaio.Mutant{}, func(c *kafkaio.SinkConfig) {
			c.Transactional = transactional
			c.Routes = map[string]string{"a": "t", "b": "u"} // two batches a request: more than 1 MiB
			c.Connection.Connect(connect)
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, log.Outlet("sink")) }()
		select {
		case <-writing:
		case err := <-ended:
			t.Fatal(err)
		}
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("the sink does not end")
		}
	}
}
