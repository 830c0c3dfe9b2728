package httpio

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// limits are what a listener grants to those who connect to it.
type limits struct {
	// requestBytes is the largest body, inFlightBytes what all bodies in memory may hold together.
	requestBytes, inFlightBytes int64
	// header is the time for a request's headers to arrive.
	header time.Duration
	// connections are accepted at once; more wait in the kernel's queue.
	connections int
	// body is the time for a whole body to arrive, append the time for it to be committed.
	body, append time.Duration
	// grace is the time for requests to end at shutdown.
	grace time.Duration
}

// orDefault sets what is not set.
func (l *limits) orDefault() {
	set(&l.requestBytes, 1<<20)
	set(&l.inFlightBytes, 32<<20)
	set(&l.header, 10*time.Second)
	set(&l.connections, 4096)
	set(&l.body, 30*time.Second)
	set(&l.append, 30*time.Second)
	set(&l.grace, 10*time.Second)
}

func set[T int | int64 | time.Duration](v *T, unset T) {
	if *v == 0 {
		*v = unset
	}
}

// server is a bounded HTTP listener, which the HTTP source and the ftproxy source share.
//
//	accept (at most connections) ─▶ TLS ─▶ headers (10 s, 64 KiB) ─▶ handler ─▶ body (time and bytes bounded)
type server struct {
	listen string
	tls    TLS
	limits limits
	budget *budget
	logger *slog.Logger
	// patient is a mutant: bodies take as long as they like.
	patient bool

	mu    sync.Mutex
	bound net.Addr
	pair  *pair // nil without TLS
}

func newServer(listen string, t TLS, l limits, logger *slog.Logger) (*server, error) {
	l.orDefault()
	if _, _, err := net.SplitHostPort(listen); err != nil {
		return nil, fmt.Errorf("listen address %q: %w; example: :8080", listen, err)
	}
	if l.requestBytes < 0 || l.connections < 0 || l.body < 0 || l.append < 0 || l.grace < 0 {
		return nil, errors.New("a limit is below 0")
	}
	if l.inFlightBytes < l.requestBytes {
		return nil, fmt.Errorf("all requests together may hold %d bytes, a single one up to %d: "+
			"raise the former or lower the latter", l.inFlightBytes, l.requestBytes)
	}
	if logger == nil {
		return nil, errors.New("no logger")
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	return &server{listen: listen, tls: t, limits: l, budget: newBudget(l.inFlightBytes), logger: logger}, nil
}

// addr returns the address that is bound, nil before.
func (s *server) addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bound
}

// certificateFailures returns how often certificate files could not be read again.
func (s *server) certificateFailures() uint64 {
	s.mu.Lock()
	p := s.pair
	s.mu.Unlock()
	return p.failures()
}

// run serves until ctx ends. Then it stops to listen, lets the requests at work end within the grace, and returns nil.
func (s *server) run(ctx context.Context, handler http.Handler) error {
	config, pair, err := s.tls.server()
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	inner, err := lc.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w; is another process on that port?", s.listen, err)
	}
	s.mu.Lock()
	s.bound, s.pair = inner.Addr(), pair
	s.mu.Unlock()
	listener := net.Listener(newGate(inner, s.limits.connections))
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	web := &http.Server{
		Handler:           s.hurried(handler),
		ReadHeaderTimeout: s.limits.header,
		WriteTimeout:      s.limits.body + s.limits.append + 10*time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug),
	}
	var serving sync.WaitGroup
	ended := make(chan error, 1)
	serving.Go(func() { ended <- web.Serve(listener) })
	defer serving.Wait()
	select {
	case err := <-ended:
		return fmt.Errorf("listener %s: %w", s.listen, err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.grace)
	defer cancel()
	if err := web.Shutdown(grace); err != nil {
		s.logger.WarnContext(ctx, "requests cut off at shutdown", slog.String("listen", s.listen), slog.Any("error", err))
		return web.Close()
	}
	return nil
}

// gate is a listener that has at most so many connections open.
type gate struct {
	net.Listener
	places    chan struct{}
	closed    chan struct{}
	closeOnce sync.Once
}

func newGate(inner net.Listener, connections int) *gate {
	return &gate{Listener: inner, places: make(chan struct{}, connections), closed: make(chan struct{})}
}

// Accept waits for a free place first.
func (g *gate) Accept() (net.Conn, error) {
	select {
	case g.places <- struct{}{}:
	case <-g.closed:
		return nil, net.ErrClosed
	}
	conn, err := g.Listener.Accept()
	if err != nil {
		<-g.places
		return nil, err
	}
	return &place{Conn: conn, leave: sync.OnceFunc(func() { <-g.places })}, nil
}

// Close closes the listener and lets a waiting Accept go.
func (g *gate) Close() error {
	g.closeOnce.Do(func() { close(g.closed) })
	return g.Listener.Close()
}

// place is a connection that frees its place when closed.
type place struct {
	net.Conn
	leave func()
}

// Close closes the connection.
func (p *place) Close() error {
	defer p.leave()
	return p.Conn.Close()
}
