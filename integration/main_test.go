package integration_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"ftproxy/integration/fleet"
)

// options are the flags of this package's tests.
type options struct {
	full   *bool
	seed   *uint64
	binary *string
}

//nolint:gochecknoglobals // flags of a test binary have to exist before the tests do
var flags = options{
	full:   flag.Bool("full", false, "run the fault scenarios in full length"),
	seed:   flag.Uint64("seed", 1, "seed of faults and replays"),
	binary: flag.String("binary", "", "the ftproxy to test; empty: the one that is built from this tree"),
}

// binary builds ftproxy once for all tests of a run and returns its path.
func binary(t *testing.T) string {
	t.Helper()
	if *flags.binary != "" {
		return *flags.binary
	}
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

//nolint:gochecknoglobals // one build for all tests of the package
var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("ftproxy-under-test-%d", os.Getpid()))
	command := exec.CommandContext(context.Background(), "go", "build", "-o", path, "ftproxy/cmd/ftproxy")
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	built = path
	return path, nil
})

//nolint:gochecknoglobals // what TestMain has to remove
var built string

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if built != "" {
		if err := os.Remove(built); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// within gives a step of a test a deadline of its own.
func within(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	if err := fleet.Poll(ctx, what, 50*time.Millisecond, done); err != nil {
		t.Fatal(err)
	}
}

// replicas prepares the replicas of one ftproxy, not yet started, that end with the test. If it fails, they have the
// last word.
func replicas(t *testing.T, c fleet.Config) *fleet.Fleet {
	t.Helper()
	c.Binary = binary(t)
	c.Dir = filepath.Join(t.ArtifactDir(), c.Name)
	f, err := fleet.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Kill)
	t.Cleanup(func() {
		if t.Failed() {
			for _, r := range f.Replicas {
				t.Logf("last lines of %s:\n%s", r.Node, r.Tail(15))
			}
		}
	})
	return f
}
