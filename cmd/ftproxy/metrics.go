package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"ftproxy/replica"
)

// registry has what /metrics shows. Labels are the names of configured things only, so that no client can make series.
func (n *node) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	r.MustRegister(collectors.NewGoCollector(), process, &meter{n})
	return r
}

// meter reads the node's status when it is asked. It is unchecked: what exists depends on the configuration.
type meter struct{ node *node }

// Describe says nothing, which makes the collector an unchecked one.
func (*meter) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *meter) Collect(out chan<- prometheus.Metric) {
	s := sample{out: out, constant: prometheus.Labels{"name": m.node.c.Name}}
	s.gauge("ready", "Whether this node takes and delivers tuples.", truth(m.node.ready() == nil))
	s.gauge("info", "Always 1; the labels tell what runs.", 1,
		"version", version(), "node", m.node.c.Node, "recovery", m.node.c.holds().String())
	m.stages(&s)
	if replicated := m.node.gate.node.Load(); replicated != nil {
		status := replicated.Status()
		s.replica(&status)
		s.buffers(&status)
	}
}

func (m *meter) stages(s *sample) {
	for _, stage := range m.node.stages.Status() {
		labels := []string{"kind", stage.Kind, "stage", stage.Name}
		for _, state := range []string{"running", "waiting", "halted", "idle"} {
			s.gauge("stage_state", "1 for the state that a source or sink is in.", truth(stage.State == state),
				append(labels, "state", state)...)
		}
		s.counter("stage_restarts_total", "How often it failed and was started again.", float64(stage.Restarts), labels...)
		s.counter("stage_done_total", "Tuples appended by a source, offsets acknowledged by a sink.", float64(stage.Done),
			labels...)
		s.gauge("stage_stuck_seconds", "How long it has owed something and got nothing done.", stage.StuckSeconds, labels...)
	}
	for _, source := range m.node.sources {
		s.source(source.name, source.source)
	}
	for _, sink := range m.node.sinks {
		s.sink(sink.reader.Name, sink.sink)
	}
	s.counter("bad_certificates_total", "Changed TLS files of sources and sinks that could not be read.",
		float64(m.node.badCertificates()))
}

func (s *sample) replica(r *replica.Status) {
	s.gauge("leader", "Whether this node leads.", truth(r.Role == "leader"))
	for _, role := range []string{"leader", "follower", "candidate", "joining", "stopped"} {
		s.gauge("role", "1 for the role that this node has.", truth(r.Role == role), "role", role)
	}
	s.gauge("members", "Servers of the group.", float64(len(r.Members)))
	s.gauge("raft_term", "Raft's term.", float64(r.Term))
	s.gauge("raft_last_index", "Index of the newest entry of the log.", float64(r.Raft.LastIndex))
	s.gauge("raft_commit_index", "Index of the newest committed entry known here.", float64(r.Raft.CommitIndex))
	s.gauge("raft_applied_index", "Index of the newest applied entry.", float64(r.Raft.AppliedIndex))
	s.gauge("raft_last_contact_seconds", "Time since the leader was heard.", float64(r.Raft.LastContact)/1e3)
	s.counter("raft_elections_total", "Elections that this node stood for.", float64(r.Raft.Elections))
	s.counter("snapshots_total", "Snapshots that this node took.", float64(r.Raft.Snapshots))
	s.gauge("log_since_snapshot_bytes", "Log applied since the last snapshot.", float64(r.Raft.SnapshotLag))
	s.gauge("proposals", "Commands that wait for their verdict.", float64(r.Proposals))
	s.gauge("dedup_ids", "Tuple ids remembered.", float64(r.Dedup.IDs))
	s.gauge("dedup_ids_max", "Bound of the tuple ids remembered.", float64(r.Dedup.MaxIDs))
	s.gauge("dedup_id_age_seconds", "How long a tuple id is remembered.", float64(r.Dedup.IDAge)/1e3)
	s.gauge("dedup_sources", "Sources whose position is remembered.", float64(r.Dedup.Sources))
	s.gauge("sessions", "Client sessions remembered.", float64(r.Dedup.Sessions))
	s.gauge("dead_letters", "Unresolved dead letters.", float64(r.Letters.Unresolved))
	s.gauge("dead_letters_max", "Bound of the unresolved dead letters.", float64(r.Letters.Max))
	s.counter("link_sent_bytes_total", "Sent to other nodes.", float64(r.Links.SentBytes))
	s.counter("link_received_bytes_total", "Received from other nodes.", float64(r.Links.ReceivedBytes))
	s.counter("link_refused_total", "Connections of other nodes that were refused.", float64(r.Links.Refused))
	s.counter("link_bad_certificates_total", "Changed TLS files of the links that could not be read.",
		float64(r.Links.BadCertificates))
	s.gauge("certificate_expiry_seconds", "When this node's certificate expires, Unix time; 0 without TLS.",
		float64(r.Links.CertificateExpiry)/1e3)
	s.gauge("disk_free_bytes", "Free space of the data folder's disk.", float64(r.Disk.FreeBytes))
	s.gauge("disk_wait_below_bytes", "Free space below which sources wait.", float64(r.Disk.WaitBelow))
	const fsync = "Duration of the log's fsync, over the last few thousand."
	s.gauge("fsync_seconds", fsync, float64(r.Disk.SyncP50)/1e6, "quantile", "0.5")
	s.gauge("fsync_seconds", fsync, float64(r.Disk.SyncP999)/1e6, "quantile", "0.999")
	s.counter("log_written_bytes_total", "Written to the log.", float64(r.Disk.LogBytes))
}

// buffers shows cursors and the ledger: received = delivered + dead_lettered + dropped + retained, at any moment.
func (s *sample) buffers(r *replica.Status) {
	for _, b := range r.Buffers {
		s.gauge("buffer_bytes", "Retained bytes.", float64(b.Bytes), "buffer", b.Name)
		s.gauge("buffer_max_bytes", "Retained bytes at which sources wait.", float64(b.MaxBytes), "buffer", b.Name)
		s.gauge("buffer_end", "Offset of the last tuple.", float64(b.End), "buffer", b.Name)
		s.gauge("buffer_trimmed", "Offset up to which nothing is retained.", float64(b.Trimmed), "buffer", b.Name)
		s.gauge("buffer_unread", "Retained tuples for sinks that nobody reads.", float64(b.Unread), "buffer", b.Name)
		for _, reader := range b.Readers {
			labels := []string{"buffer", b.Name, "reader", reader.Name}
			s.gauge("reader_acked", "Offset up to which the reader has acknowledged.", float64(reader.Acked), labels...)
			s.gauge("reader_lag", "Tuples that the reader has not acknowledged.", float64(reader.Retained), labels...)
			s.gauge("reader_retained_bytes", "Stored size of what the reader has not acknowledged.",
				float64(reader.RetainedBytes), labels...)
			s.gauge("reader_left_behind", "Whether the reader has tuples but is not configured any more.",
				truth(reader.LeftBehind), labels...)
			for _, x := range []struct {
				outcome string
				tuples  uint64
			}{
				{"received", reader.Received},
				{"deduplicated", reader.Duplicate},
				{"delivered", reader.Delivered},
				{"dead_lettered", reader.Dead},
				{"dropped", reader.Dropped},
			} {
				s.counter("tuples_total", "The ledger.", float64(x.tuples), append(labels, "outcome", x.outcome)...)
			}
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// sample sends metrics that are read from a status.
type sample struct {
	out      chan<- prometheus.Metric
	constant prometheus.Labels
}

func (s *sample) gauge(name, help string, value float64, labels ...string) {
	s.send(prometheus.GaugeValue, name, help, value, labels)
}

func (s *sample) counter(name, help string, value float64, labels ...string) {
	s.send(prometheus.CounterValue, name, help, value, labels)
}

// send takes labels as name, value, name, value, and so on.
func (s *sample) send(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, values []string
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	desc := prometheus.NewDesc("ftproxy_"+name, help, names, s.constant)
	s.out <- prometheus.MustNewConstMetric(desc, kind, value, values...)
}
