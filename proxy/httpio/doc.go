// Package httpio speaks HTTP: a source and a sink of tuples, and the link from ftproxy to ftproxy.
//
//	POST ─▶ Source ─Append─▶ IN ─Read─▶ Sink ─POST─▶ application
//	                                    LinkSink ─POST─▶ LinkSource ─Append─▶ IN of the next ftproxy
//
// Source files: source.go (requests to batches), server.go (a bounded listener), body.go and budget.go (bounded
// memory), split.go and cloudevents.go (bodies to tuples), headers.go (what travels with a tuple), ids.go (ids for
// deduplication), answer.go (answers), certs.go (TLS files).
//
// Sink files: sink.go (configuration), delivery.go (one run), lanes.go (order by key), attempt.go (one POST and its
// outcome), outcome.go (the table of outcomes), request.go (tuples to requests), track.go (what may be acknowledged),
// client.go (connections).
//
// Link files: link.go (the format on the wire), linksource.go, linksink.go (configuration, and who is asked),
// linkrun.go (one run).
//
// Not obvious:
//   - A request is one batch and one entry of the replicated log: it is admitted whole or not at all.
//   - The sink's order is by key. All tuples without a key share one order. A tuple that fails stops its key only; but
//     acknowledgements are cumulative, so what was delivered behind it is delivered again if the leader changes.
//   - The Idempotency-Key of a tuple is its lineage and offset, thus the same in each attempt of each leader.
package httpio
