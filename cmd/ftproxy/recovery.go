package main

import (
	"fmt"
	"strings"

	"ftproxy/proxy"
)

// recovery is a recovery type; a stronger one is greater.
type recovery int

const (
	gap      recovery = iota // at most once
	rollback                 // at least once
	precise                  // exactly once
)

func (r recovery) String() string { return [...]string{"gap", "rollback", "precise"}[r] }

func parseRecovery(text string) (recovery, bool) {
	for _, r := range []recovery{gap, rollback, precise} {
		if r.String() == text {
			return r, true
		}
	}
	return precise, false
}

// edge is one source or sink, the strongest recovery type that it can hold, and what a stronger one takes.
type edge struct {
	what  string // "source orders (http://:8080)"
	holds recovery
	lacks string
}

// edges judges every source and sink by its options.
func (c *config) edges() []edge {
	var all []edge
	for i := range c.sources {
		e := &c.sources[i]
		holds, lacks := c.sourceHolds(e)
		all = append(all, edge{what: fmt.Sprintf("source %s (%s)", e.name, e.text), holds: holds, lacks: lacks})
	}
	for i := range c.sinks {
		e := &c.sinks[i]
		holds, lacks := c.sinkHolds(e)
		all = append(all, edge{what: fmt.Sprintf("sink %s (%s)", e.name, e.text), holds: holds, lacks: lacks})
	}
	return all
}

func (c *config) sourceHolds(e *endpoint) (recovery, string) {
	switch o := e.options.(type) {
	case *tcpSource:
		id, err := proxy.ParseIDRule(c.Dedup)
		switch {
		case o.Replies == "session" || o.Replies == "ack" && err == nil && id.Wanted():
			return precise, ""
		case o.Replies == "ack":
			return rollback, "set replies=session, or FTPROXY_DEDUP to an id in the tuple"
		}
		return gap, "set replies=ack or replies=session"
	case *httpSource, *kafkaSource, *linkSource:
		return precise, ""
	default:
		panic(fmt.Sprintf("options of type %T", o))
	}
}

// dropsOver is the cure of a sink that may drop tuples.
const dropsOver = "tuples beyond over_bytes are dropped: set over=wait or over=dead-letter"

func (c *config) sinkHolds(e *endpoint) (recovery, string) {
	switch o := e.options.(type) {
	case *tcpSink:
		switch {
		case o.Over == "drop":
			return gap, dropsOver
		case o.Replies == "none":
			return gap, "set replies=ack"
		case !c.SinkIdempotent:
			return rollback, "if the receiver drops repeats, declare FTPROXY_SINK_IDEMPOTENT=true"
		}
		return precise, ""
	case *httpSink:
		switch {
		case o.Over == "drop":
			return gap, dropsOver
		case !c.SinkIdempotent:
			return rollback, "if the receiver drops repeats by Idempotency-Key, declare FTPROXY_SINK_IDEMPOTENT=true"
		}
		return precise, ""
	case *kafkaSink:
		if o.Mode == "plain" {
			return rollback, "set mode=transactional"
		}
		return precise, ""
	case *linkSink:
		if o.AllowLoss {
			return gap, "unset allow_loss"
		}
		return precise, ""
	default:
		panic(fmt.Sprintf("options of type %T", o))
	}
}

// holds is the recovery type from end to end: that of the weakest edge.
func (c *config) holds() recovery {
	weakest := precise
	for _, e := range c.edges() {
		weakest = min(weakest, e.holds)
	}
	return weakest
}

// validateRecovery refuses a recovery type that the configuration cannot hold, naming every edge that is too weak.
func (c *config) validateRecovery(wrong *mistakes) {
	wanted, ok := parseRecovery(c.Recovery)
	if !ok {
		return
	}
	var reasons []string
	for _, e := range c.edges() {
		if e.holds < wanted {
			reasons = append(reasons, fmt.Sprintf("%s holds %s only: %s", e.what, e.holds, e.lacks))
		}
	}
	if len(reasons) > 0 {
		wrong.add(prefix+"RECOVERY", c.holds().String(), "%s cannot be held:\n%s", wanted, strings.Join(reasons, "\n"))
	}
}

// promise words the recovery type that holds, and what is missing for a stronger one.
func (c *config) promise() []string {
	holds := c.holds()
	lines := []string{fmt.Sprintf("recovery: %s (%s)", holds, map[recovery]string{
		gap: "at most once", rollback: "at least once", precise: "exactly once",
	}[holds])}
	for _, e := range c.edges() {
		if e.lacks != "" {
			lines = append(lines, fmt.Sprintf("for more than %s at %s: %s", e.holds, e.what, e.lacks))
		}
	}
	return lines
}
