package replica

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
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
