package main

import (
	"ftproxy/proxy/httpio"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/tcpio"
)

// source shows what a source counts.
func (s *sample) source(name string, of source) {
	labels := []string{"source", name}
	switch x := of.(type) {
	case interface{ Stats() httpio.SourceStats }: // HTTP and ftproxy
		stats := x.Stats()
		for _, r := range []struct {
			outcome string
			count   uint64
		}{
			{"accepted", stats.Requests},
			{"refused", stats.Refused - stats.Unknown},
			{"unknown", stats.Unknown},
		} {
			s.counter("requests_total", "Requests to a listening source.", float64(r.count),
				append(labels, "outcome", r.outcome)...)
		}
		s.withoutID(stats.WithoutID, labels)
	case *tcpio.Source:
		stats := x.Stats()
		s.gauge("connections", "Open client connections.", float64(stats.Connections), labels...)
		s.counter("connections_refused_total", "Client connections that the source ended.", float64(stats.Refused), labels...)
		s.withoutID(stats.WithoutID, labels)
	case *kafkaio.Source:
		stats := x.Stats()
		s.gauge("kafka_source_lag", "Offsets between the log and the ends of the partitions.", float64(stats.Lag), labels...)
		s.gauge("kafka_source_partitions", "Partitions that are read.", float64(stats.Partitions), labels...)
		s.counter("kafka_source_retries_total", "Failed requests that were repeated.", float64(stats.Retries), labels...)
		s.withoutID(stats.WithoutID, labels)
	}
}

func (s *sample) withoutID(count uint64, labels []string) {
	s.counter("tuples_without_id_total", "Tuples admitted without the id that FTPROXY_DEDUP names.", float64(count),
		labels...)
}

// sink shows what a sink counts beyond the ledger.
func (s *sample) sink(name string, of sink) {
	labels := []string{"sink", name}
	switch x := of.(type) {
	case interface{ Stats() httpio.SinkStats }:
		stats := x.Stats()
		s.counter("sink_attempts_total", "Attempts to deliver.", float64(stats.Posts), labels...)
		s.counter("sink_retries_total", "Attempts that failed for now.", float64(stats.Retries), labels...)
		s.counter("sink_refusals_total", "Attempts that were refused for good.", float64(stats.Refusals), labels...)
	case *tcpio.Sink:
		s.counter("sink_retries_total", "Attempts that failed for now.", float64(x.Failures()), labels...)
	case *kafkaio.Sink:
		stats := x.Stats()
		s.counter("kafka_sink_records_total", "Records that the brokers acknowledged.", float64(stats.Records), labels...)
		s.counter("kafka_sink_transactions_total", "Transactions committed.", float64(stats.Transactions), labels...)
		s.counter("kafka_sink_take_overs_total", "Times that ownership was settled.", float64(stats.TakeOvers), labels...)
		s.counter("kafka_sink_fenced_total", "Times that another producer was the reason.", float64(stats.Fenced), labels...)
		s.counter("kafka_sink_resets_total", "Idempotent producers that were rebuilt.", float64(stats.Resets), labels...)
		s.counter("sink_retries_total", "Attempts that failed for now.", float64(stats.Retries), labels...)
	}
}

// badCertificates counts the times that changed TLS files of sources and sinks could not be read.
func (n *node) badCertificates() uint64 {
	bad := n.c.badCertificates.Load()
	for _, s := range n.sources {
		if x, ok := s.source.(interface{ Stats() httpio.SourceStats }); ok {
			bad += x.Stats().CertificateFailures
		}
	}
	return bad
}
