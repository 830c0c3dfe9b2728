package main

import (
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"

	"ftproxy/proxy"
	"ftproxy/proxy/httpio"
	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/tcpio"
)

// newSource makes one source.
func (c *config) newSource(e *endpoint, log *slog.Logger) (source, error) {
	switch o := e.options.(type) {
	case *httpSource:
		return httpio.NewSource(httpio.SourceConfig{
			Name: e.name, Listen: e.address(), Path: e.path, Dedup: c.dedup("header:Idempotency-Key"), Sinks: c.sinkNames(),
			MaxRequestBytes: int64(c.TupleMaxBytes), MaxTuples: o.Tuples, MaxConnections: c.Connections,
			Deadline: o.Deadline, TLS: c.listenFiles(e, o.Clients), Logger: log,
		})
	case *tcpSource:
		secure, err := c.serverTLS(e, o.Clients)
		if err != nil {
			return nil, err
		}
		return tcpio.NewSource(tcpio.SourceConfig{
			Name: e.name, Listen: e.address(), Framing: framing(o.Framing), Replies: replies(o.Replies),
			JSON: o.Format == "json", ID: c.dedup("none"), TLS: secure, MaxTupleBytes: int(c.TupleMaxBytes),
			MaxConnections: c.Connections, IdleTimeout: o.Idle, Logger: log,
		})
	case *kafkaSource:
		return kafkaio.NewSource(kafkaio.SourceConfig{
			Connection: c.kafkaConnection(e), Name: c.Name, Topics: strings.Split(strings.Trim(e.path, "/"), ","),
			Start: o.Start, OnLoss: o.OnLoss, Group: o.Group, Replication: c.replicationBeside(e), ID: c.dedup("none"),
			Scope: e.name, Logger: log,
		})
	case *linkSource:
		return httpio.NewLinkSource(httpio.LinkSourceConfig{
			Name: e.name, Listen: e.address(), Sink: o.Sink, MaxConnections: c.Connections,
			MaxRequestBytes: max(4<<20, int64(c.TupleMaxBytes)+1<<20), // the largest tuple, with what goes around it
			TLS:             c.listenFiles(e, o.Clients), Logger: log,
		})
	default:
		panic(fmt.Sprintf("options of type %T", o))
	}
}

// newSink makes one sink of a group that shares a reader.
func (c *config) newSink(group []*endpoint, log *slog.Logger) (sink, proxy.Policy, error) {
	var s sink
	var policy proxy.Policy
	var err error
	e := group[0]
	switch o := e.options.(type) {
	case *httpSink:
		policy = proxy.Policy{Over: o.Over, MaxBytes: int64(o.OverBytes)}
		s, err = httpio.NewSink(httpio.SinkConfig{
			Name: e.name, URL: e.receiver(o.Query), Batch: o.Batch, Format: o.Format, Concurrency: o.InFlight,
			Timeout: o.Timeout, MaxAttempts: c.MaxAttempts, FinalAttempts: o.Final, Idempotent: c.SinkIdempotent,
			EventType: o.Type, EventSource: o.Source, Authorization: c.SinkAuthorization, TLS: c.dialFiles(e), Logger: log,
		})
	case *tcpSink:
		policy = proxy.Policy{Over: o.Over, MaxBytes: int64(o.OverBytes)}
		s, err = c.newTCPSink(e, o, log)
	case *kafkaSink:
		s, err = c.newKafkaSink(group, o, log)
	case *linkSink:
		policy = proxy.Policy{Over: o.Over, MaxBytes: int64(o.OverBytes)}
		var urls []string
		for _, h := range e.hosts {
			urls = append(urls, e.scheme.name+"://"+h)
		}
		s, err = httpio.NewLinkSink(httpio.LinkSinkConfig{
			Name: e.name, URLs: urls, Timeout: o.Timeout, AllowLoss: o.AllowLoss, TLS: c.dialFiles(e), Logger: log,
		})
	default:
		panic(fmt.Sprintf("options of type %T", o))
	}
	return s, policy, err
}

func (c *config) newTCPSink(e *endpoint, o *tcpSink, log *slog.Logger) (*tcpio.Sink, error) {
	secure, err := c.clientTLS(e)
	if err != nil {
		return nil, err
	}
	return tcpio.NewSink(tcpio.SinkConfig{
		Name: e.name, Address: e.address(), Framing: framing(o.Framing), Replies: replies(o.Replies),
		JSON: o.Format == "json", Idempotent: c.SinkIdempotent, TLS: secure, Window: o.Window, MaxAttempts: c.MaxAttempts,
		ReplyTimeout: o.Timeout, Logger: log,
	})
}

func (c *config) newKafkaSink(group []*endpoint, o *kafkaSink, log *slog.Logger) (*kafkaio.Sink, error) {
	routes := map[string]string{}
	for _, e := range group {
		routes[e.name] = strings.Trim(e.path, "/")
	}
	return kafkaio.NewSink(kafkaio.SinkConfig{
		Connection: c.kafkaConnection(group[0]), Name: c.Name, Routes: routes, Transactional: o.Mode == "transactional",
		Compression: o.Compression, Linger: o.Linger, Replication: o.Replication, Resume: o.Resume, Logger: log,
	})
}

// replicationBeside is the replication of ftproxy's own topic as a sink on the source's cluster has it, since whoever
// comes first creates the topic for both; 0, for the default, if there is none.
func (c *config) replicationBeside(e *endpoint) int {
	for _, s := range c.sinks {
		o, ok := s.options.(*kafkaSink)
		if ok && slices.ContainsFunc(s.hosts, func(host string) bool { return slices.Contains(e.hosts, host) }) {
			return o.Replication
		}
	}
	return 0
}

func (c *config) kafkaConnection(e *endpoint) kafkaio.Connection {
	k := kafkaio.Connection{Brokers: e.hosts}
	if e.scheme.secure() {
		k.TLS = &kafkaio.TLS{CAFile: c.KafkaTLSCAFile, CertFile: c.KafkaTLSCertFile, KeyFile: c.KafkaTLSKeyFile}
	}
	if c.KafkaSASL != "" {
		k.SASL = &kafkaio.SASL{Mechanism: c.KafkaSASL, Username: c.KafkaUser, Password: c.KafkaPassword}
	}
	return k
}

// dedup is the rule for ids, unset if FTPROXY_DEDUP is.
func (c *config) dedup(unset string) proxy.IDRule {
	text := c.Dedup
	if text == "" {
		text = unset
	}
	rule, err := proxy.ParseIDRule(text)
	if err != nil {
		panic(err) // load has read it before
	}
	return rule
}

func (c *config) sinkNames() []string {
	var all []string
	for i := range c.sinks {
		all = append(all, c.sinks[i].name)
	}
	return all
}

// receiver is the URL of an HTTP receiver, without the options that are for ftproxy.
func (e *endpoint) receiver(query string) string {
	u := url.URL{Scheme: e.scheme.name, Host: e.authority, Path: e.path, RawQuery: query}
	return u.String()
}

// listenFiles and dialFiles are the certificates for an HTTP endpoint.
func (c *config) listenFiles(e *endpoint, clients string) httpio.TLS {
	if !e.scheme.secure() {
		return httpio.TLS{}
	}
	files := httpio.TLS{CertFile: c.TLSCertFile, KeyFile: c.TLSKeyFile}
	if clients == "certified" {
		files.CAFile = c.TLSCAFile
	}
	return files
}

func (c *config) dialFiles(e *endpoint) httpio.TLS {
	if !e.scheme.secure() {
		return httpio.TLS{}
	}
	return httpio.TLS{CertFile: c.TLSCertFile, KeyFile: c.TLSKeyFile, CAFile: c.TLSCAFile}
}

func framing(name string) tcpio.Framing {
	if name == "frames" {
		return tcpio.Frames
	}
	return tcpio.Lines
}

func replies(name string) tcpio.Replies {
	switch name {
	case "ack":
		return tcpio.RepliesAck
	case "session":
		return tcpio.RepliesSession
	default:
		return tcpio.RepliesNone
	}
}
