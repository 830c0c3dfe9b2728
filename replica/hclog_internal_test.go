package replica

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

func TestRaftsMessagesArriveOneLevelLowerAndNotAllTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newHCLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})))
		named := l.Named("raft").With("peer", "b")
		for range 100 {
			named.Error("failed to heartbeat to", "last-index", 7, "servers", hclog.Fmt("%d", []int{1, 2}))
		}
		named.Warn("slow")
		named.Info("of no interest")
		want := `level=WARN msg="failed to heartbeat to" part=raft peer=b last_index=7 servers="[1 2]"`
		if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, want) ||
			!strings.Contains(got, "level=INFO msg=slow") {
			t.Fatal(got)
		}
		wait(t.Context(), repeatEvery+time.Second)
		named.Error("failed to heartbeat to")
		if got := strings.Count(out.String(), "failed to heartbeat"); got != 2 {
			t.Errorf("a repeated message came %d times, want 2", got)
		}
	})
}

// TestAnOrderlyEndIsQuiet has Raft's words for what a node does on purpose.
func TestAnOrderlyEndIsQuiet(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := newHCLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo}))).Named("raft")
	l.Error("failed to accept connection", "error", fmt.Errorf("accept: %w", net.ErrClosed))
	l.Error("failed to take snapshot", "error", raft.ErrNothingNewToSnapshot)
	if got := out.String(); got != "" {
		t.Error(got)
	}
	l.Error("failed to take snapshot", "error", io.ErrShortWrite)
	if got := out.String(); !strings.Contains(got, "short write") {
		t.Error(got)
	}
}

// TestNodeStopsWithoutAWarning stops a real one.
func TestNodeStopsWithoutAWarning(t *testing.T) {
	t.Parallel()
	log := &logged{}
	n := openReading(t, t.TempDir()+"/data", log, nil, reader("out", "out"))
	eventually(t, "ready", n.Ready)
	for range 2 {
		if err := n.snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := log.text(); strings.Contains(got, "level=WARN") {
		t.Error(got)
	}
}
