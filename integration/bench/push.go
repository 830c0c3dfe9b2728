package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"ftproxy/integration/fleet"
	"ftproxy/integration/traffic"
)

const (
	clients  = 8
	path     = "/tuples"
	patience = time.Minute
)

// newCounter serves a downstream that reads and forgets.
func newCounter(ctx context.Context) (*traffic.Server, error) {
	return traffic.Serve(ctx, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}))
}

func sinkURL(s *traffic.Server, options string) string { return "http://" + s.Addr + path + options }

// start starts replicas that take tuples over HTTP and waits until they are ready.
func (b *bench) start(ctx context.Context, name string, replicas int, sink string, env map[string]string) (
	*fleet.Fleet, error,
) {
	return b.startFrom(ctx, name, replicas, "http://127.0.0.1:PORT"+path, sink, env)
}

func (b *bench) startFrom(ctx context.Context, name string, replicas int, source, sink string, env map[string]string) (
	*fleet.Fleet, error,
) {
	all := map[string]string{"LOG_LEVEL": "warn", "DEDUP": "none"}
	maps.Copy(all, env)
	dir := filepath.Join(b.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := fleet.New(ctx, fleet.Config{
		Binary: b.binary, Dir: dir, Name: name, Replicas: replicas, Source: source,
		Sink: sink, Env: all,
	})
	if err != nil {
		return nil, err
	}
	if err := f.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := f.Ready(ctx); err != nil {
		f.Kill()
		return nil, err
	}
	return f, nil
}

// end ends replicas and frees their disk.
func end(f *fleet.Fleet) error {
	f.Kill()
	return os.RemoveAll(filepath.Dir(f.Replicas[0].Log))
}

func sourceURL(r *fleet.Replica) string { return "http://" + fleet.LoopbackAddr(r.SourcePort) + path }

// pushed is what clients brought in.
type pushed struct {
	requests int64
	took     time.Duration
}

// push posts the same body from several clients, for a time or until enough requests (0: no end) were answered 200.
func push(ctx context.Context, url, kind string, body []byte, long time.Duration, enough int64) (
	pushed, error,
) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var requests atomic.Int64
	began := time.Now()
	var wait sync.WaitGroup
	for range clients {
		wait.Go(func() {
			for time.Since(began) < long && (enough == 0 || requests.Load() < enough) && ctx.Err() == nil {
				if err := post(ctx, client, url, kind, body); err != nil {
					stop(err)
					return
				}
				requests.Add(1)
			}
		})
	}
	wait.Wait()
	return pushed{requests.Load(), time.Since(began)}, context.Cause(ctx)
}

func post(ctx context.Context, client *http.Client, url, kind string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", response.Status, answer)
	}
	return err
}
