package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/replica"
)

const (
	adminTimeout  = 30 * time.Second
	adminMaxBytes = 16 << 10 // of headers
	deadDefault   = 100      // letters in one answer
	deadMost      = 1000
	deadStep      = 16      // letters that are read at once
	deadBytes     = 4 << 20 // after so many an answer ends
)

// serveAdmin listens at the admin address until the returned function is called, which waits for requests under way.
func (n *node) serveAdmin(ctx context.Context) (closeAdmin func(), err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", n.c.AdminAddr)
	if err != nil {
		return nil, n.c.cannotListen(err)
	}
	addr := l.Addr()
	n.bound.Store(&addr)
	server := &http.Server{
		Handler: n.admin(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: adminTimeout, WriteTimeout: 2 * adminTimeout,
		IdleTimeout: time.Minute, MaxHeaderBytes: adminMaxBytes,
		ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.log.ErrorContext(ctx, "admin address failed", slog.String("error", err.Error()))
		}
	})
	n.log.InfoContext(ctx, "admin address", slog.String("addr", addr.String()))
	return func() {
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(patience) != nil {
			_ = server.Close()
		}
		serving.Wait()
	}, nil
}

// admin is the handler of the admin address. A page in a browser cannot use it across origins.
func (n *node) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "live\n") })
	mux.HandleFunc("GET /readyz", n.readyz)
	mux.HandleFunc("GET /status", n.status)
	mux.Handle("GET /metrics", promhttp.HandlerFor(n.registry(), promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /dead", n.dead)
	mux.HandleFunc("POST /dead/{offset}/requeue", n.letter((*replica.Node).Requeue))
	mux.HandleFunc("DELETE /dead/{offset}", n.letter((*replica.Node).DropLetter))
	mux.HandleFunc("POST /stages/{kind}/{name}/resume", n.resume)
	return http.NewCrossOriginProtection().Handler(http.MaxBytesHandler(mux, adminMaxBytes))
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // the client may be gone
}

func sayJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the client may be gone
}

// ready tells why this node takes no tuples or delivers none; nil if it does.
func (n *node) ready() error {
	select {
	case <-n.closing:
		return errors.New("shutting down")
	default:
	}
	var reasons []error
	for _, s := range n.sources {
		if l := s.listens(); l != nil && l.Addr() == nil {
			reasons = append(reasons, fmt.Errorf("source %q does not listen yet", s.name))
		}
	}
	if replicated, err := n.gate.open(); err != nil {
		reasons = append(reasons, err)
	} else if err := cmp.Or(replicated.Ready(), crowded(replicated.Status().Disk)); err != nil {
		reasons = append(reasons, fmt.Errorf("replica: %w", err))
	}
	return errors.Join(append(reasons, n.stages.Ready())...)
}

// crowded tells that the sources wait for free space; nil if they do not.
func crowded(d replica.DiskStatus) error {
	if d.FreeBytes >= d.WaitBelow {
		return nil
	}
	return fmt.Errorf("sources wait: the disk of FTPROXY_DATA_DIR has %d MiB free, FTPROXY_DISK_FREE_BYTES asks for %d",
		d.FreeBytes>>20, d.WaitBelow>>20)
}

func (n *node) readyz(w http.ResponseWriter, _ *http.Request) {
	if err := n.ready(); err != nil {
		say(w, http.StatusServiceUnavailable, err.Error()+"\n")
		return
	}
	say(w, http.StatusOK, "ready\n")
}

// statusPage is what /status shows: the replica's own status, and what is around it.
type statusPage struct {
	replica.Status
	Version    string         `json:"version"`
	UptimeS    int64          `json:"uptime_s"`
	Ready      bool           `json:"ready"`
	Reasons    string         `json:"reasons,omitempty"`
	Recovery   string         `json:"recovery"`
	Guarantees []string       `json:"guarantees"`
	Stages     []proxy.Status `json:"stages"`
}

func (n *node) status(w http.ResponseWriter, _ *http.Request) {
	page := statusPage{
		Version: version(), UptimeS: int64(time.Since(n.started).Seconds()), Ready: true,
		Recovery: n.c.holds().String(), Guarantees: n.c.promise(), Stages: n.stages.Status(),
	}
	if replicated, err := n.gate.open(); err == nil {
		page.Status = replicated.Status()
	} else {
		page.Status = replica.Status{Name: n.c.Name, Node: n.c.Node, Role: "starting"}
	}
	if err := n.ready(); err != nil {
		page.Ready, page.Reasons = false, err.Error()
	}
	sayJSON(w, page)
}

// dead lists dead letters above the offset after, at most max of them.
func (n *node) dead(w http.ResponseWriter, r *http.Request) {
	after, err1 := number(r.FormValue("after"), 0)
	most, err2 := number(r.FormValue("max"), deadDefault)
	if err := errors.Join(err1, err2); err != nil {
		say(w, http.StatusBadRequest, err.Error()+"; such as /dead?after=0&max=100\n")
		return
	}
	replicated, err := n.gate.open()
	if err != nil {
		say(w, http.StatusServiceUnavailable, err.Error()+"\n")
		return
	}
	page, err := collect(replicated.Letters, after, int(min(most, deadMost)))
	if err != nil {
		n.refuse(w, err)
		return
	}
	sayJSON(w, page)
}

func number(text string, unset uint64) (uint64, error) {
	if text == "" {
		return unset, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return n, nil
}

// letter does something with one dead letter. Any node answers; the fact is committed through the leader.
func (n *node) letter(do func(*replica.Node, context.Context, uint64) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		offset, err := strconv.ParseUint(r.PathValue("offset"), 10, 64)
		if err != nil {
			say(w, http.StatusBadRequest, fmt.Sprintf("%q is not an offset of a dead letter\n", r.PathValue("offset")))
			return
		}
		replicated, err := n.gate.open()
		if err == nil {
			ctx, cancel := context.WithTimeout(r.Context(), adminTimeout)
			defer cancel()
			err = do(replicated, ctx, offset)
		}
		if errors.Is(err, logbuffer.ErrUnavailable) && absent(replicated, offset) {
			say(w, http.StatusNotFound, fmt.Sprintf("there is no dead letter %d\n", offset))
			return
		}
		if err != nil {
			n.refuse(w, err)
			return
		}
		say(w, http.StatusOK, "done\n")
	}
}

// absent tells whether a node that is up to date has no such letter.
func absent(replicated *replica.Node, offset uint64) bool {
	if replicated == nil || replicated.Ready() != nil || offset == 0 {
		return offset == 0
	}
	found, err := replicated.Letters(offset-1, 1)
	return err == nil && (len(found) == 0 || found[0].Offset != offset)
}

func (n *node) refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, logbuffer.ErrUnknown):
		say(w, http.StatusGatewayTimeout, err.Error()+": look whether the letter is still there\n")
	case errors.Is(err, logbuffer.ErrUnavailable):
		say(w, http.StatusServiceUnavailable, err.Error()+"\n")
	default:
		n.log.Error("admin request failed", slog.String("error", err.Error()))
		say(w, http.StatusInternalServerError, err.Error()+"\n")
	}
}

// resume lets a halted source or sink of this node run again.
func (n *node) resume(w http.ResponseWriter, r *http.Request) {
	if err := n.stages.Resume(r.PathValue("kind"), r.PathValue("name")); err != nil {
		say(w, http.StatusConflict, err.Error()+"; ask the node that leads, see leader in /status\n")
		return
	}
	say(w, http.StatusOK, "resumed\n")
}
