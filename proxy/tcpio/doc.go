// Package tcpio brings tuples in and out over plain TCP: one tuple a line, or one tuple a frame of four bytes of length
// (big-endian) and as many bytes. TLS is optional.
//
//	client ──tuples──▶ Source ──Append──▶ IN buffer ──Read──▶ Sink ──tuples──▶ receiver
//	       ◀─replies──                                             ◀─replies──
//
// # What replies mean
//
// Bytes that a kernel has taken are not bytes that an application has taken, so TCP alone can only give gap (at most
// once). A reply for each tuple, in order, makes it rollback, and a session makes it precise:
//
//	replies   source                                            sink
//	none      gap                                               gap: the cursor moves before the bytes leave
//	ack       rollback; precise with an id in the tuple         rollback
//	session   precise                                           -
//
// A reply has the framing of its tuple. "ok <n>" says that the first n tuples of this connection are durable on a
// quorum. "error <text>" says that this tuple was not taken, and why; the connection is closed after it and nothing
// that follows is taken. A sink takes every reply that does not begin with "error" as the acknowledgement of one tuple,
// so that a sink can feed a source, and any server that answers line by line will do.
//
// With sessions the client's first tuple is "session" (open one) or "session <id>" (go on with it), answered by
// "session <id> <next>": the number of the tuple that is due, counted from 1 over the life of the session. The client
// sends on from there; what it repeats by mistake cannot exist, since tuples are numbered by their order.
//
// # Non-obvious
//
//   - A line that the end of the connection cuts off is refused, never taken: it may be half of one.
//   - A tuple with a line feed cannot be sent as a line. It becomes a dead letter; use frames or the JSON format.
//   - A plain line or frame carries the value only. The JSON format carries key, headers, time and nulls too.
//
// Files: source.go (listener), conn.go (one client), scanner.go (bounded reading, memory shared by the clients),
// framing.go (lines and frames), json.go (the JSON format), sink.go (delivery), send.go (replies, the window).
package tcpio
