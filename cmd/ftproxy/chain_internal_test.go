package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"ftproxy/replica"
)

// TestChain: lines into one ftproxy, over a link into a second, out to an application.
func TestChain(t *testing.T) {
	a, link := newApp(t, ""), freeAddr(t)
	second := start(t, t.TempDir(), a.URL, "FTPROXY_SOURCE=ftproxy://"+link, "FTPROXY_NAME=second",
		"FTPROXY_SINK_IDEMPOTENT=true", "FTPROXY_RECOVERY=precise")
	first := start(t, t.TempDir(), "ftproxy://"+link, "FTPROXY_SOURCE=tcp://127.0.0.1:0?replies=session",
		"FTPROXY_NAME=first", "FTPROXY_RECOVERY=precise")
	first.ready()
	second.ready()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", first.node.sources[0].listens().Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "session\na\nb\nc\n"); err != nil {
		t.Fatal(err)
	}
	replies := bufio.NewScanner(conn)
	for _, want := range []string{"session ", "ok 1", "ok 2", "ok 3"} {
		if !replies.Scan() || !strings.HasPrefix(replies.Text(), want) {
			t.Fatalf("reply %q, want %q", replies.Text(), want)
		}
	}
	a.want(t, "a", "b", "c")
}

// TestRecover: a node's data becomes a new life of the log, with what was in the buffer, and only if that is confirmed.
func TestRecover(t *testing.T) {
	away, dir := freeAddr(t), t.TempDir()
	r := start(t, dir, "http://"+away, "FTPROXY_DRAIN_TIMEOUT=10ms")
	r.ready()
	r.post("kept")
	before := r.node.gate.Lineage()
	r.stop()
	if err := r.wait(); !errors.Is(err, errUnclean) {
		t.Error(err)
	}
	environ := relay("FTPROXY_SINK=http://"+away, "FTPROXY_DATA_DIR="+dir)
	cmd, out := process(t, environ, "recover")
	if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "--yes") {
		t.Errorf("%v: %s", err, out)
	}
	n, err := newNode(mustLoad(t, environ), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	after, err := replica.Recover(t.Context(), n.replicaConfig())
	if err != nil || after == before || after == "" {
		t.Fatalf("lineage %q, then %q, %v", before, after, err)
	}
	a := newApp(t, away)
	again := start(t, dir, "http://"+away)
	a.want(t, "kept")
	if got := again.node.gate.Lineage(); got != after {
		t.Errorf("it runs with lineage %s, not %s", got, after)
	}
}

// TestNamesOfNodes: alone a node keeps its name on whatever host it runs; in a group it is called like its host.
func TestNamesOfNodes(t *testing.T) {
	if c := mustLoad(t, relay("FTPROXY_NAME=orders")); c.Node != "orders" {
		t.Errorf("alone it is %q", c.Node)
	}
	peers := fmt.Sprintf("FTPROXY_PEERS=host=%s,b=127.0.0.1:1,c=127.0.0.1:2", freeAddr(t))
	if c := mustLoad(t, relay(peers)); c.Node != "host" {
		t.Errorf("in a group it is %q", c.Node)
	}
}
