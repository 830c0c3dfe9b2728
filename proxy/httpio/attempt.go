package httpio

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"ftproxy/proxy"
)

// end is how the attempts at some tuples end.
type end uint8

const (
	endStopped   end = iota // ctx ended: nothing is known, nothing is concluded
	endDelivered            // acknowledged by the application
	endSplit                // several tuples were not delivered together: deliver each alone
	endDead                 // a single tuple was refused for good, or retried too often
)

// togetherAttempts is how often several tuples are tried together before each is delivered alone.
const togetherAttempts = 3

// attempts repeats the same POST until it has an end. While it waits it gives its slot to others; it holds it again
// when it returns.
func (d *delivery) attempts(ctx context.Context, items []item) (e end, reason string, count int) {
	cfg := &d.sink.cfg
	backoff := proxy.Backoff{Min: cfg.MinWait, Max: cfg.MaxWait}
	retries, refusals := 0, 0
	for {
		if ctx.Err() != nil && !d.sink.mutant.lettersOnStop {
			return endStopped, "", 0
		}
		if d.sink.mutant.ackBeforeAnswer {
			for i := range items {
				d.tracker.finish(items[i].offset, nil)
			}
		}
		count = retries + refusals + 1
		got, err := d.post(ctx, items, count)
		what := verdictOf(got.status)
		if err != nil && ctx.Err() != nil && !d.sink.mutant.lettersOnStop {
			return endStopped, "", 0 // cut off by our own end: this was no attempt
		}
		reason = reasonOf(got, err)
		switch what {
		case verdictAck:
			d.sink.trouble.Store(nil)
			return endDelivered, "", count
		case verdictRetry:
			retries++
			d.sink.stats.retries.Add(1)
			if len(items) > 1 && got.status != 0 && retries >= togetherAttempts {
				return endSplit, "", count
			}
			if len(items) == 1 && cfg.MaxAttempts > 0 && retries >= cfg.MaxAttempts {
				return endDead, reason, count
			}
		case verdictFinal:
			refusals++
			d.sink.stats.refusals.Add(1)
			if len(items) > 1 {
				return endSplit, "", count
			}
			if refusals >= cfg.FinalAttempts {
				return endDead, reason, count
			}
		}
		d.report(ctx, items, count, reason)
		wait := backoff.Next()
		if !d.sink.mutant.ignoreRetryAfter {
			wait = max(wait, got.retryAfter)
		}
		if !d.yield(ctx, wait) {
			return endStopped, "", 0
		}
	}
}

// report tells of an attempt that failed: the first failure of a tuple in the log, each in the status.
func (d *delivery) report(ctx context.Context, items []item, attempt int, reason string) {
	before := d.sink.trouble.Swap(&trouble{fmt.Errorf("offset %d, attempt %d: %s", items[0].offset, attempt, reason)})
	if before == nil {
		d.sink.cfg.Logger.WarnContext(ctx, "delivery failed, it will be tried again",
			slog.String("sink", d.sink.cfg.Name), slog.Uint64("offset", items[0].offset),
			slog.Int("attempt", attempt), slog.String("reason", reason))
	}
}

// yield gives the slot away for as long as the wait lasts; false if ctx ended. The slot is held again in both cases.
func (d *delivery) yield(ctx context.Context, wait time.Duration) bool {
	<-d.slots
	waited := pause(ctx, wait)
	d.slots <- struct{}{}
	return waited
}

// post makes one attempt. It may outlive ctx by the grace, so that what the application has just taken can still be
// acknowledged.
func (d *delivery) post(ctx context.Context, items []item, attempt int) (reply, error) {
	cfg := &d.sink.cfg
	attemptCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Timeout)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(cfg.Grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-over:
		}
	})
	defer stop()
	r, err := d.request(attemptCtx, items, attempt)
	if err != nil {
		return reply{}, err
	}
	d.sink.stats.posts.Add(1)
	return roundTrip(d.sink.client, r)
}

// reasonOf says in a line why an attempt failed.
func reasonOf(got reply, err error) string {
	if err != nil {
		return "no answer: " + err.Error()
	}
	text := fmt.Sprintf("answered %d %s", got.status, http.StatusText(got.status))
	if len(got.body) > 0 {
		text += ": " + string(got.body[:min(len(got.body), 200)])
	}
	return text
}
