package traffic

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Server is an HTTP server on loopback.
type Server struct {
	// Addr is its host:port.
	Addr string

	server *http.Server
	ended  chan error
}

// Serve starts a server at an address, such as "127.0.0.1:0"; Close ends it.
func Serve(ctx context.Context, address string, handler http.Handler) (*Server, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Addr:   listener.Addr().String(),
		server: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute},
		ended:  make(chan error, 1),
	}
	go func() { s.ended <- s.server.Serve(listener) }()
	return s, nil
}

// Close ends the server at once and waits for its end.
func (s *Server) Close() error {
	err := s.server.Close()
	if ended := <-s.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
