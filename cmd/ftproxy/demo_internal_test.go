package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ftproxy/integration/checker"
)

// shortDemo shows a small demo with a program that was built for it, and returns what it printed.
func shortDemo(t *testing.T, c *demoCmd) (string, error) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	c.binary = filepath.Join(t.TempDir(), "ftproxy")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", c.binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out bytes.Buffer
	err := c.show(t.Context(), t.TempDir(), &out)
	t.Log(out.String())
	return out.String(), err
}

func TestDemo(t *testing.T) {
	out, err := shortDemo(t, &demoCmd{Tuples: 30_000, Replicas: 3, Kills: 2, Rate: 10_000, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"leader killed 2 times", "| 30,000 |", "lost", "reordered", "longest gap"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

func TestMutantDemoWithoutDeduplicationIsFound(t *testing.T) {
	c := &demoCmd{Tuples: 20_000, Replicas: 1, Kills: 1, Rate: 10_000, Seed: 1}
	c.mutant.noDedup = true
	if _, err := shortDemo(t, c); !errors.Is(err, errVerdict) || !strings.Contains(err.Error(), "lost 0") {
		t.Fatalf("repetitions went through, and the verdict is %v", err)
	}
}

func TestJudgeFile(t *testing.T) {
	line := func(key string, n int64) string {
		return key + "\t" + string(checker.AppendPayload(nil, demoStream, n, demoTupleSize)) + "\n"
	}
	tests := map[string]struct {
		text string
		want checker.Verdict
	}{
		"clean": {line("a/1", 1) + line("a/2", 2), checker.Verdict{Sent: 2, Delivered: 2}},
		"lost":  {line("a/2", 2), checker.Verdict{Sent: 2, Delivered: 1, Lost: 1}},
		"duplicated": {
			line("a/1", 1) + line("a/2", 1) + line("a/3", 2), checker.Verdict{Sent: 2, Delivered: 2, Duplicated: 1},
		},
		"reordered": {line("a/1", 2) + line("a/2", 1), checker.Verdict{Sent: 2, Delivered: 2, Reordered: 1}},
		"torn":      {line("a/1", 1) + line("a/2", 2) + "a/3\thalf\n", checker.Verdict{Sent: 2, Delivered: 2, Torn: 1}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "tuples")
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := judgeFile(file, 2)
			if err != nil || got.String() != test.want.String() {
				t.Fatalf("got %v (%v), want %v", got, err, test.want)
			}
		})
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1_234_567: "1,234,567", -12_345: "-12,345"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is written as %s", n, got)
		}
	}
}
