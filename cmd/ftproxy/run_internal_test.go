package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ftproxy/logbuffer"
	"ftproxy/proxy/proxytest"
	"ftproxy/replica"
)

const patience = 20 * time.Second

// app is a receiver that a test controls.
type app struct {
	*httptest.Server
	mu     sync.Mutex
	got    []string
	status int
}

// newApp serves at addr, or anywhere if that is empty.
func newApp(t *testing.T, addr string) *app {
	t.Helper()
	a := &app{status: http.StatusOK}
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.status == http.StatusOK {
			a.got = append(a.got, string(body))
		}
		w.WriteHeader(a.status)
	}))
	if addr != "" {
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Listener.Close()
		a.Listener = l
	}
	a.Start()
	t.Cleanup(a.Close)
	return a
}

func (a *app) answer(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = status
}

func (a *app) want(t *testing.T, values ...string) {
	t.Helper()
	proxytest.Until(t, patience, fmt.Sprintf("%q to arrive", values), func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Equal(a.got, values)
	})
}

// running is a node within the test.
type running struct {
	t    *testing.T
	node *node
	stop context.CancelFunc // what a signal does
	done chan error
}

// start runs a node with one HTTP source. Its data is in dir.
func start(t *testing.T, dir, sink string, more ...string) *running {
	t.Helper()
	c := mustLoad(t, append([]string{
		"FTPROXY_SOURCE=http://127.0.0.1:0/in", "FTPROXY_SINK=" + sink, "FTPROXY_ADMIN_ADDR=127.0.0.1:0",
		"FTPROXY_DATA_DIR=" + dir, "FTPROXY_ELECTION_TIMEOUT=100ms",
	}, more...))
	n, err := newNode(c, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return startNode(t, n)
}

// startNode runs a node until the test ends.
func startNode(t *testing.T, n *node) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, node: n, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- n.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.done:
			r.done <- err
		case <-time.After(patience):
			t.Error("the node does not stop")
		}
	})
	proxytest.Until(t, patience, "the admin address and the source to listen", func() bool {
		return n.bound.Load() != nil && n.sources[0].listens().Addr() != nil
	})
	return r
}

// wait returns what run returned.
func (r *running) wait() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(patience):
		r.t.Fatal("the node does not stop")
		return nil
	}
}

func (r *running) ready() {
	r.t.Helper()
	proxytest.Until(r.t, patience, "readyz to be 200", func() bool {
		status, _ := r.admin("GET", "/readyz")
		return status == http.StatusOK
	})
}

func (r *running) notReady(why string) {
	r.t.Helper()
	status, body := r.admin("GET", "/readyz")
	if status != http.StatusServiceUnavailable || !strings.Contains(body, why) {
		r.t.Errorf("readyz: %d %s", status, body)
	}
}

func (r *running) admin(method, path string) (int, string) {
	r.t.Helper()
	return ask(r.t, method, "http://"+(*r.node.bound.Load()).String()+path, "")
}

func (r *running) post(value string) (int, string) {
	r.t.Helper()
	return ask(r.t, "POST", "http://"+r.node.sources[0].listens().Addr().String()+"/in", value)
}

func ask(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// freeAddr is an address at which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return l.Addr().String()
}

// TestStartsBeforeItsReceiver and the next are the two start orders: neither side may wait for the other.
func TestStartsBeforeItsReceiver(t *testing.T) {
	addr := freeAddr(t)
	r := start(t, t.TempDir(), "http://"+addr)
	r.ready() // it takes tuples, wherever the receiver is
	if status, body := r.post("a"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	proxytest.Until(t, patience, "the status to name the receiver that is away", func() bool {
		_, body := r.admin("GET", "/status")
		return strings.Contains(body, `"trouble": `) && strings.Contains(body, addr)
	})
	newApp(t, addr).want(t, "a")
}

func TestStartsAfterItsReceiver(t *testing.T) {
	a := newApp(t, "")
	r := start(t, t.TempDir(), a.URL)
	r.ready()
	r.post("a")
	a.want(t, "a")
}

// TestPeersAway: a node that finds nobody is live, not ready, says why, refuses tuples definitely, and stops when told.
func TestPeersAway(t *testing.T) {
	peers := fmt.Sprintf("FTPROXY_PEERS=host=%s,b=%s,c=%s", freeAddr(t), freeAddr(t), freeAddr(t))
	r := start(t, t.TempDir(), newApp(t, "").URL, peers)
	if status, _ := r.admin("GET", "/livez"); status != http.StatusOK {
		t.Errorf("livez: %d", status)
	}
	r.notReady("replica")
	began := time.Now()
	r.stop()
	if err := r.wait(); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("stopped after %v with %v", time.Since(began), err)
	}
}

// TestSlowOpening: while the replica reads its data, which may take long, the node listens, refuses and stops.
func TestSlowOpening(t *testing.T) {
	c := mustLoad(t, relay("FTPROXY_SOURCE=http://127.0.0.1:0/in", "FTPROXY_ADMIN_ADDR=127.0.0.1:0"))
	n, err := newNode(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	n.open = func(ctx context.Context, _ replica.Config) (*replica.Node, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r := startNode(t, n)
	if status, _ := r.admin("GET", "/livez"); status != http.StatusOK {
		t.Errorf("livez: %d", status)
	}
	r.notReady("the replica is starting")
	if status, body := r.post("a"); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, body)
	}
	for path, want := range map[string]int{
		"/status": http.StatusOK, "/metrics": http.StatusOK, "/dead": http.StatusServiceUnavailable,
	} {
		if status, body := r.admin("GET", path); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := r.admin("DELETE", "/dead/1"); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, body)
	}
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// TestDrains: what was taken before the signal is delivered before the end.
func TestDrains(t *testing.T) {
	a := newApp(t, "")
	a.answer(http.StatusServiceUnavailable)
	r := start(t, t.TempDir(), a.URL)
	r.ready()
	r.post("a")
	r.stop()
	<-r.node.closing
	r.notReady("shutting down")
	if status, _ := r.admin("GET", "/livez"); status != http.StatusOK {
		t.Errorf("livez during the drain: %d", status)
	}
	a.answer(http.StatusOK)
	if err := r.wait(); err != nil {
		t.Error(err)
	}
	a.want(t, "a")
}

// TestDrainDeadline: the end comes all the same, says that it is not clean, and the next start delivers.
func TestDrainDeadline(t *testing.T) {
	a, dir := newApp(t, ""), t.TempDir()
	a.answer(http.StatusServiceUnavailable)
	r := start(t, dir, a.URL, "FTPROXY_DRAIN_TIMEOUT=100ms")
	r.ready()
	r.post("a")
	r.stop()
	err := r.wait()
	if exitStatus(err) != exitUnclean || !strings.Contains(err.Error(), "1 tuples to deliver") {
		t.Errorf("ended with %v", err)
	}
	a.answer(http.StatusOK)
	start(t, dir, a.URL)
	a.want(t, "a")
}

func TestAdminAddressTaken(t *testing.T) {
	a := newApp(t, "")
	c := mustLoad(t, relay("FTPROXY_ADMIN_ADDR="+a.Listener.Addr().String(), "FTPROXY_DATA_DIR="+t.TempDir()))
	n, err := newNode(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.run(t.Context()); exitStatus(err) != exitConfig || !strings.Contains(err.Error(), "FTPROXY_ADMIN_ADDR") {
		t.Errorf("%v", err)
	}
}

func TestPeerAddressTaken(t *testing.T) {
	a := newApp(t, "")
	taken := a.Listener.Addr().String()
	peers := "=" + taken + ",b=127.0.0.1:1,c=127.0.0.1:2"
	for variable, more := range map[string][]string{
		"FTPROXY_PEERS":  {"FTPROXY_PEERS=host" + peers},
		"FTPROXY_LISTEN": {"FTPROXY_PEERS=host=127.0.0.1:3,b=127.0.0.1:1,c=127.0.0.1:2", "FTPROXY_LISTEN=" + taken},
	} {
		c := mustLoad(t, relay(append(more, "FTPROXY_ADMIN_ADDR=127.0.0.1:0", "FTPROXY_DATA_DIR="+t.TempDir(),
			"FTPROXY_SOURCE=http://127.0.0.1:0")...))
		n, err := newNode(c, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		err = n.run(t.Context())
		if exitStatus(err) != exitConfig || !strings.Contains(err.Error(), variable+"\n    problem: listen tcp") {
			t.Errorf("%s: %v", variable, err)
		}
	}
}

// TestDiskNearlyFull: sources that wait for free space make the node not ready, which says why.
func TestDiskNearlyFull(t *testing.T) {
	r := start(t, t.TempDir(), newApp(t, "").URL, "FTPROXY_DISK_FREE_BYTES=1000000TiB")
	proxytest.Until(t, patience, "the disk as the reason", func() bool {
		status, body := r.admin("GET", "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "FTPROXY_DISK_FREE_BYTES")
	})
	if _, body := r.admin("GET", "/status"); !strings.Contains(body, "sources wait: the disk of FTPROXY_DATA_DIR") {
		t.Error(body)
	}
}

func TestFolderInUse(t *testing.T) {
	a, dir := newApp(t, ""), t.TempDir()
	start(t, dir, a.URL).ready()
	c := mustLoad(t, relay("FTPROXY_ADMIN_ADDR=127.0.0.1:0", "FTPROXY_SOURCE=http://127.0.0.1:0", "FTPROXY_DATA_DIR="+dir))
	n, err := newNode(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.run(t.Context()); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("%v", err)
	}
}

func TestExitStatuses(t *testing.T) {
	for status, err := range map[int]error{
		exitFailure: errors.New("anything"), exitConfig: mistakes{{}}, exitQuarantined: replica.ErrQuarantined,
		exitStorage: replica.ErrStorage, exitDiverged: replica.ErrDiverged, exitNoQuorum: replica.ErrNoQuorum,
		exitLineage: replica.ErrLineage, exitVersion: replica.ErrVersion, exitUnclean: errUnclean,
		exitCorrupt: logbuffer.ErrCorrupt, exitRemoved: replica.ErrRemoved, exitVerdict: errVerdict,
	} {
		if got := exitStatus(fmt.Errorf("because: %w", err)); got != status {
			t.Errorf("%v: status %d, want %d", err, got, status)
		}
	}
}

// process starts the test binary as ftproxy.
func process(t *testing.T, environ []string, args ...string) (*exec.Cmd, *strings.Builder) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append([]string{asFtproxy + "=1"}, environ...)
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

func TestProcessWithMistakes(t *testing.T) {
	cmd, out := process(t, []string{"FTPROXY_SORCE=x"})
	err := cmd.Run()
	if cmd.ProcessState.ExitCode() != exitConfig || !strings.Contains(out.String(), "did you mean FTPROXY_SOURCE?") {
		t.Errorf("%v: %s", err, out)
	}
	cmd, out = process(t, nil, "chekc")
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != exitConfig {
		t.Errorf("%v: %s", err, out)
	}
}

// TestSecondSignal: the first signal begins to drain, which cannot end here; the second ends the process at once.
func TestSecondSignal(t *testing.T) {
	a, admin, source := newApp(t, ""), freeAddr(t), freeAddr(t)
	a.answer(http.StatusServiceUnavailable)
	cmd, out := process(t, []string{
		"FTPROXY_SOURCE=http://" + source, "FTPROXY_SINK=" + a.URL, "FTPROXY_ADMIN_ADDR=" + admin,
		"FTPROXY_DATA_DIR=" + t.TempDir(), "FTPROXY_DRAIN_TIMEOUT=1h", "FTPROXY_ELECTION_TIMEOUT=100ms",
	})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	readyz := func(want int) func() bool {
		return func() bool {
			response, err := http.Get("http://" + admin + "/readyz")
			if err != nil {
				return false
			}
			_ = response.Body.Close()
			return response.StatusCode == want
		}
	}
	proxytest.Until(t, patience, "ready", readyz(http.StatusOK))
	if status, body := ask(t, "POST", "http://"+source, "a"); status != http.StatusOK {
		t.Fatal(status, body)
	}
	signalTo(t, cmd, syscall.SIGTERM)
	proxytest.Until(t, patience, "not ready", readyz(http.StatusServiceUnavailable))
	signalTo(t, cmd, syscall.SIGTERM)
	began := time.Now()
	err := cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGTERM || time.Since(began) > 2*time.Second {
		t.Errorf("%v after %v: %s", err, time.Since(began), out)
	}
}

func signalTo(t *testing.T, cmd *exec.Cmd, s os.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// TestSinkThatIsGone takes a sink with tuples pending out of the configuration, and drops them.
func TestSinkThatIsGone(t *testing.T) {
	a, dead := newApp(t, ""), newApp(t, "")
	dead.answer(http.StatusServiceUnavailable)
	dir := t.TempDir()
	r := start(t, dir, "live="+a.URL+" gone="+dead.URL, "FTPROXY_DRAIN_TIMEOUT=100ms")
	r.ready()
	r.post("x")
	a.want(t, "x")
	proxytest.Until(t, patience, "bytes for the sink that is behind only", func() bool {
		return r.node.retained("gone") > 0 && r.node.retained("live") == 0
	})
	r.stop()
	_ = r.wait() // not drained
	r = start(t, dir, "live="+a.URL)
	r.ready()
	if _, metrics := r.admin("GET", "/metrics"); !strings.Contains(metrics,
		`ftproxy_reader_left_behind{buffer="in",name="ftproxy",reader="gone"} 1`) {
		t.Error("the sink left behind is not shown")
	}
	r.stop()
	if err := r.wait(); err != nil {
		t.Error("the shutdown waited for a sink that there is not:", err)
	}
	r = start(t, dir, "live="+a.URL, "FTPROXY_DROP_READERS=gone")
	r.ready()
	proxytest.Until(t, patience, "the buffer to be empty", func() bool {
		b := r.node.gate.node.Load().Status().Buffers[0]
		return len(b.Readers) == 1 && b.Bytes == 0
	})
	r.post("y")
	a.want(t, "x", "y")
}
