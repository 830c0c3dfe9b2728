// Package proxy holds the stages between the outside world and the replicated log, and runs them.
//
//	          every node                          leader, within its tenure
//	    ┌──────────────────────┐     ┌────────────────────────────────────────────────────┐
//	──▶ │ listening sources    │     │ polling sources                                    │
//	    │ HTTP, TCP, ftproxy   │     │ Kafka                                              │
//	    └──────────┬───────────┘     └─────────┬──────────────────────────────────────────┘
//	               │ Intake.Append             │ Intake.Append
//	               ▼                           ▼
//	    ════════════════ IN: replicated, deduplicated, in one order ═══════════
//	               │ Outlet.Read                                   ▲ Outlet.Ack
//	               ▼                                               │
//	    (deliver ─▶ operator ─▶ collect ─Commit─▶ OUT: the next step; today sinks read IN)
//	               │                                               │
//	    ┌──────────▼───────────────────────────────────────────────┴┐
//	    │ sinks: Policy (what to do when the sink holds up too much) │ ──▶
//	    │        ▸ HTTP, Kafka, TCP, ftproxy                         │
//	    └────────────────────────────────────────────────────────────┘
//
// A stage never calls another: it reads committed state by a cursor and proposes the next fact. What flows back
// upstream is a return value. deliver and collect, when they come, are stages like the others: deliver reads IN through
// an Outlet, collect commits inputs and outputs together, and sinks then read OUT through the same Outlet interface.
//
// Files: ports.go (the interfaces: Source, Intake, Sink, Outlet), supervisor.go (runs stages, restarts them, knows
// their state), stage.go (makes stages of sources and sinks and watches their progress), policy.go (what happens when a
// sink holds up too much), tupleid.go (ids for deduplication), backoff.go (waits between attempts).
//
// Not obvious: a stage that returned a [Halt] stays down, over changes of leadership too, until [Supervisor.Resume]. An
// error of class logbuffer.ErrCorrupt is not retried: Supervisor.Run returns it, and the process has to end.
package proxy
