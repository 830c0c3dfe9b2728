package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestCheck compares what check prints with testdata: the words are part of the interface.
func TestCheck(t *testing.T) {
	a, away := newApp(t, ""), freeAddr(t)
	for _, tc := range []struct {
		name    string
		environ []string
		fails   bool
	}{
		{"http", []string{"FTPROXY_SOURCE=http://127.0.0.1:0/in", "FTPROXY_SINK=" + a.URL}, false},
		{"precise", []string{
			"FTPROXY_SOURCE=http://127.0.0.1:0/in", "FTPROXY_SINK=" + a.URL, "FTPROXY_SINK_IDEMPOTENT=true",
			"FTPROXY_RECOVERY=precise", "FTPROXY_NODE=a", "FTPROXY_PEERS=a=127.0.0.1:1,b=127.0.0.1:2,c=127.0.0.1:3",
		}, false},
		{"away", []string{"FTPROXY_SOURCE=tcp://127.0.0.1:0", "FTPROXY_SINK=tcp://" + away}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			cmd := checkCmd{Timeout: 5 * time.Second}
			err := cmd.check(t.Context(), mustLoad(t, tc.environ), &out)
			if errors.Is(err, errUnreachable) != tc.fails || err != nil && !tc.fails {
				t.Error(err)
			}
			golden(t, "check-"+tc.name+".txt", strings.NewReplacer(
				strings.TrimPrefix(a.URL, "http://"), "APP", away, "AWAY").Replace(out.String()))
		})
	}
}

// golden compares text with a file of testdata, but for the ports that the system chose.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = regexp.MustCompile(`127\.0\.0\.1:[0-9]{4,5}`).ReplaceAllString(got, "127.0.0.1:PORT")
	file := filepath.Join("testdata", name)
	if rewriting() {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("differs from %s:\n%s", file, got)
	}
}
