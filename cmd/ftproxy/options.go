package main

import "time"

// The options of URLs, one struct for each kind of source and sink. The tags are those of config, with query for env;
// what each is for stands in optionhelp.go.

type httpSource struct {
	Tuples   int           `query:"tuples" envDefault:"10000" unit:"tuples" min:"1"`
	Deadline time.Duration `query:"deadline" envDefault:"30s" unit:"duration"`
	Clients  string        `query:"clients" envDefault:"any" oneof:"any certified"`
}

type tcpSource struct {
	Framing string        `query:"framing" envDefault:"lines" oneof:"lines frames"`
	Replies string        `query:"replies" envDefault:"none" oneof:"none ack session"`
	Format  string        `query:"format" envDefault:"value" oneof:"value json"`
	Idle    time.Duration `query:"idle" envDefault:"10m" unit:"duration"`
	Clients string        `query:"clients" envDefault:"any" oneof:"any certified"`
}

type kafkaSource struct {
	Start  string `query:"start" envDefault:"earliest" unit:"earliest, latest, timestamp:…"`
	OnLoss string `query:"on_loss" envDefault:"stop" oneof:"stop earliest latest"`
	Group  string `query:"group" example:"ftproxy-orders" unit:"name"`
}

type linkSource struct {
	Sink    string `query:"sink" unit:"name" example:"orders"`
	Clients string `query:"clients" envDefault:"any" oneof:"any certified"`
}

type httpSink struct {
	Batch     int           `query:"batch" envDefault:"1" unit:"tuples" min:"1"`
	Format    string        `query:"format" envDefault:"cloudevents" oneof:"cloudevents ndjson"`
	InFlight  int           `query:"in_flight" envDefault:"16" unit:"requests" min:"1"`
	Timeout   time.Duration `query:"timeout" envDefault:"30s" unit:"duration"`
	Final     int           `query:"final_attempts" envDefault:"3" unit:"attempts" min:"1"`
	Query     string        `query:"query" unit:"text" example:"a%3D1"`
	Type      string        `query:"event_type" envDefault:"ftproxy.tuple" unit:"text"`
	Source    string        `query:"event_source" example:"/orders" unit:"text"`
	Over      string        `query:"over" envDefault:"wait" oneof:"wait drop dead-letter"`
	OverBytes byteSize      `query:"over_bytes" envDefault:"1GiB" unit:"bytes"`
}

type tcpSink struct {
	Framing   string        `query:"framing" envDefault:"lines" oneof:"lines frames"`
	Replies   string        `query:"replies" envDefault:"none" oneof:"none ack"`
	Format    string        `query:"format" envDefault:"value" oneof:"value json"`
	Window    int           `query:"window" envDefault:"256" unit:"tuples" min:"1"`
	Timeout   time.Duration `query:"timeout" envDefault:"30s" unit:"duration"`
	Over      string        `query:"over" envDefault:"wait" oneof:"wait drop dead-letter"`
	OverBytes byteSize      `query:"over_bytes" envDefault:"1GiB" unit:"bytes"`
}

type kafkaSink struct {
	Mode        string        `query:"mode" envDefault:"transactional" oneof:"transactional plain"`
	Cluster     string        `query:"cluster" envDefault:"kafka" unit:"name"`
	Compression string        `query:"compression" envDefault:"none" oneof:"none gzip snappy lz4 zstd"`
	Linger      time.Duration `query:"linger" unit:"duration" example:"5ms"`
	Replication int           `query:"replication" envDefault:"3" unit:"replicas" min:"1"`
	Resume      string        `query:"resume" oneof:"confirmed"`
}

type linkSink struct {
	Timeout   time.Duration `query:"timeout" envDefault:"35s" unit:"duration"`
	AllowLoss bool          `query:"allow_loss"`
	Over      string        `query:"over" envDefault:"wait" oneof:"wait drop dead-letter"`
	OverBytes byteSize      `query:"over_bytes" envDefault:"1GiB" unit:"bytes"`
}

// clients is whom a listening source serves.
func (e *endpoint) clients() string {
	switch o := e.options.(type) {
	case *httpSource:
		return o.Clients
	case *tcpSource:
		return o.Clients
	case *linkSource:
		return o.Clients
	default:
		return ""
	}
}
