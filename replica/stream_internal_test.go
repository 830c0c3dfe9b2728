package replica

import (
	"context"
	"log/slog"
	"net"
)

// testStream is a started stream of a node of operator "op".
func testStream(id serverID, lineage string, peers map[string]string, l net.Listener, log *slog.Logger) *stream {
	s := &stream{
		operator: "op", peers: peers, local: func() identity { return identity{id: id, lineage: lineage} }, listener: l,
		log: log, refusedBy: func(string, *refusal) {},
		dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
		handle: func(context.Context, byte, serverID, net.Conn) {},
	}
	s.start()
	return s
}
