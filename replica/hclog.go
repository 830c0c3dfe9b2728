package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// hclogger gives Raft's messages to slog, one level lower than Raft thinks of them: what a human must act on, the node
// says itself. A message that repeats (a peer is down) is let through once in repeatEvery. What is no fault is for
// debugging only.
type hclogger struct {
	log  *slog.Logger
	name string
	args []any
	seen *repeats
}

// repeatEvery is the shortest time between two equal messages of Raft.
const repeatEvery = 10 * time.Second

// repeats remembers when a message was let through. Raft has a fixed, small set of them.
type repeats struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func newHCLogger(log *slog.Logger) *hclogger {
	return &hclogger{log: log, seen: &repeats{last: map[string]time.Time{}}}
}

func (r *repeats) pass(msg string) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[msg]; ok && now.Sub(last) < repeatEvery {
		return false
	}
	r.last[msg] = now
	return true
}

// Log implements hclog.Logger.
func (l *hclogger) Log(level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case hclog.Error:
		to = slog.LevelWarn
	case hclog.Warn:
		to = slog.LevelInfo
	default:
	}
	if slices.ContainsFunc(args, harmless) {
		to = slog.LevelDebug
	}
	ctx := context.Background()
	if !l.log.Enabled(ctx, to) || to > slog.LevelDebug && !l.seen.pass(msg) {
		return
	}
	attrs := make([]slog.Attr, 0, 1+(len(l.args)+len(args))/2)
	if l.name != "" {
		attrs = append(attrs, slog.String("part", l.name))
	}
	for _, kv := range [][]any{l.args, args} {
		for i := 0; i+1 < len(kv); i += 2 {
			key := strings.ReplaceAll(fmt.Sprint(kv[i]), "-", "_")
			attrs = append(attrs, slog.Any(key, plain(kv[i+1])))
		}
	}
	l.log.LogAttrs(ctx, to, msg, attrs...) //nolint:sloglint // the message is Raft's
}

// harmless tells whether a message's value is an error of the node's own doing: it closed what failed, or there was
// nothing to do.
func harmless(v any) bool {
	err, ok := v.(error)
	return ok && (errors.Is(err, net.ErrClosed) || errors.Is(err, raft.ErrNothingNewToSnapshot) ||
		errors.Is(err, raft.ErrRaftShutdown))
}

// plain turns hclog's own value types into what slog prints well.
func plain(v any) any {
	switch v := v.(type) {
	case hclog.Format:
		if len(v) > 0 {
			if format, ok := v[0].(string); ok {
				return fmt.Sprintf(format, v[1:]...)
			}
		}
	case fmt.Stringer:
		return v.String()
	}
	return v
}

// Trace implements hclog.Logger.
func (l *hclogger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }

// Debug implements hclog.Logger.
func (l *hclogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }

// Info implements hclog.Logger.
func (l *hclogger) Info(msg string, args ...any) { l.Log(hclog.Info, msg, args...) }

// Warn implements hclog.Logger.
func (l *hclogger) Warn(msg string, args ...any) { l.Log(hclog.Warn, msg, args...) }

// Error implements hclog.Logger.
func (l *hclogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *hclogger) enabled(level slog.Level) bool {
	return l.log.Enabled(context.Background(), level)
}

// IsTrace implements hclog.Logger.
func (l *hclogger) IsTrace() bool { return l.enabled(slog.LevelDebug) }

// IsDebug implements hclog.Logger.
func (l *hclogger) IsDebug() bool { return l.enabled(slog.LevelDebug) }

// IsInfo implements hclog.Logger.
func (l *hclogger) IsInfo() bool { return l.enabled(slog.LevelDebug) }

// IsWarn implements hclog.Logger.
func (l *hclogger) IsWarn() bool { return l.enabled(slog.LevelInfo) }

// IsError implements hclog.Logger.
func (l *hclogger) IsError() bool { return l.enabled(slog.LevelWarn) }

// ImpliedArgs implements hclog.Logger.
func (l *hclogger) ImpliedArgs() []any { return l.args }

// With implements hclog.Logger.
func (l *hclogger) With(args ...any) hclog.Logger {
	with := *l
	with.args = append(append([]any{}, l.args...), args...)
	return &with
}

// Name implements hclog.Logger.
func (l *hclogger) Name() string { return l.name }

// Named implements hclog.Logger.
func (l *hclogger) Named(name string) hclog.Logger {
	if l.name != "" {
		name = l.name + "." + name
	}
	return l.ResetNamed(name)
}

// ResetNamed implements hclog.Logger.
func (l *hclogger) ResetNamed(name string) hclog.Logger {
	named := *l
	named.name = name
	return &named
}

// SetLevel implements hclog.Logger; the level is slog's.
func (*hclogger) SetLevel(hclog.Level) {}

// GetLevel implements hclog.Logger.
func (l *hclogger) GetLevel() hclog.Level {
	switch {
	case l.IsDebug():
		return hclog.Debug
	case l.IsWarn():
		return hclog.Warn
	default:
		return hclog.Error
	}
}

// StandardLogger implements hclog.Logger.
func (l *hclogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(nil), "", 0)
}

// StandardWriter implements hclog.Logger.
func (l *hclogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer {
	return slog.NewLogLogger(l.log.Handler(), slog.LevelInfo).Writer()
}
