// Package replica keeps the replicated state of one operator (or relay) and Raft around it. It is the only package that
// imports Raft, and knows nothing of sources, sinks and protocols.
//
//	Node.Append, Outlet.Ack, …          the callers' goroutines
//	      │ command
//	      ▼
//	    lane ──▶ leader's committer      numbering; several commands become one entry
//	               │ entry
//	               ▼
//	             Raft ──▶ log store      durable on a quorum
//	               │ committed
//	               ▼
//	             State.Apply             dedup, buffers, dead letters, ledger; a verdict for each command
//	               │
//	               ▼
//	          verdicts, in order         back to whom they are for
//
// The core is pure (state*.go, command*.go): no clock, no goroutine, no network, no log; files only through
// logbuffer.Folder. Everything else owns time, disk, network and goroutines.
//
// # Files
//
//   - command.go, command_body.go: the codec of the log's entries and of the commands in them.
//   - state.go: State and how it applies an entry. state_effects.go has what each command does, state_configure.go what
//     settings do, state_proposers.go numbers and verdicts, state_verdict.go the verdicts' codec, state_ledger.go the
//     account of every tuple, state_hash.go the comparison of replicas, state_manifest.go images and their restoration,
//     state_settings.go what all replicas agree on, state_read.go all that the state tells.
//   - logstore*.go, watermark.go: the log on disk. snapshotstore*.go: manifests on disk. quarantine.go, disk.go,
//     storage.go: what is done with damage and a disk that is full or hangs.
//   - stream*.go, transport.go: the links between nodes. member*.go: how a node finds or founds its group.
//   - lane*.go: numbering, retry, forwarding and group commit. fsm.go: the state as Raft drives it.
//   - node*.go, tenure*.go, outlet.go, config.go: what callers use.
//
// # What is not obvious
//
//   - Only an applied entry changes the state. A proposal leaves no trace before, so that losing its leader neither
//     loses its tuples nor blocks their repetition.
//   - A proposer numbers its commands; the state accepts the next number only. That gives retry, order and fencing at
//     once: a repeat gets the first verdict again, a number too high is refused, and so is another incarnation.
//     Incarnations ascend over the whole state, so that one is never given twice, even after its proposer was dropped.
//   - Open names the incarnation that it replaces and bears a nonce: one that turns up late fences nobody, and one
//     whose answer was lost is recognised.
//   - Gap and fenced are the only verdicts that consume no number. A batch that is refused (a gap in its positions, an
//     expired session) is a receipt of a command that is done, so it consumes one.
//   - A command whose body does not decode in an entry that is whole was damaged before the entry was made. It is
//     refused; stopping every replica, now and at each replay, would make nothing better. A damaged entry stops.
//   - The running hash covers entries, verdicts and cursors, and nothing that may differ between replicas, such as
//     which batches stand in which file.
//   - A requeued letter gets a label that only its reader reads. Therefore each of several readers has sinks.
package replica
