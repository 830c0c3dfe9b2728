package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/proxy/kafkaio"
	"ftproxy/replica"
)

// source and sink are what the protocol packages make, as seen from here.
type (
	source interface {
		proxy.Source
		port
	}
	sink interface {
		proxy.Sink
		port
	}
	// port is what both can say about themselves.
	port interface {
		Check(ctx context.Context) ([]string, error)
		Guarantee() string
	}
	// listener is a source that listens: it runs on every node.
	listener interface{ Addr() net.Addr }
)

// wiredSource is a source with its name.
type wiredSource struct {
	name string
	source
}

// listens returns the source as a listener, nil if it polls.
func (w wiredSource) listens() listener {
	l, _ := w.source.(listener)
	return l
}

// wiredSink is a sink with its name and the reader whose tuples it delivers.
type wiredSink struct {
	reader logbuffer.Reader
	sink
	limited proxy.Sink // with its policy
}

// voiced is a sink or source that can say what troubles it, which the supervisor looks for.
type (
	voicedSink struct {
		proxy.Sink
		trouble func() error
	}
	voicedSource struct {
		proxy.Source
		trouble func() error
	}
)

// Trouble is what keeps it from getting on right now; nil if nothing does.
func (v voicedSink) Trouble() error   { return v.trouble() }
func (v voicedSource) Trouble() error { return v.trouble() }

// troubleOf is how a port of any protocol is asked for its trouble.
func troubleOf(p port) func() error {
	switch x := p.(type) {
	case interface{ Trouble() error }:
		return x.Trouble
	case *kafkaio.Source:
		return func() error { return asError(x.Stats().LastError) }
	case *kafkaio.Sink:
		return func() error { return asError(x.Stats().LastError) }
	default:
		return func() error { return nil }
	}
}

func asError(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// wire makes all sources and sinks. Nothing is started.
func wire(c *config, log *slog.Logger, retained func(reader string) int64) ([]wiredSource, []wiredSink, error) {
	var wrong mistakes
	var sources []wiredSource
	for i := range c.sources {
		s, err := c.newSource(&c.sources[i], log)
		if err != nil {
			wrong.add(prefix+"SOURCE", c.sources[i].scheme.form, "%q: %v", c.sources[i].text, err)
			continue
		}
		sources = append(sources, wiredSource{c.sources[i].name, s})
	}
	sinks := c.newSinks(log, retained, &wrong)
	if len(wrong) > 0 {
		return nil, nil, wrong
	}
	return sources, sinks, nil
}

// outlet gives replica's outlet the method set of proxy's.
type outlet struct{ *replica.Outlet }

// Cursor implements proxy.Outlet.
func (o outlet) Cursor(ctx context.Context) (proxy.Cursor, error) {
	acked, end, hash, ever, err := o.Outlet.Cursor(ctx)
	return proxy.Cursor{Acked: acked, End: end, Hash: hash, EverAcked: ever}, err
}

// newSinks makes all sinks; those on one Kafka cluster become one.
func (c *config) newSinks(log *slog.Logger, retained func(string) int64, wrong *mistakes) []wiredSink {
	var all []wiredSink
	for _, group := range c.sinkGroups(wrong) {
		s, policy, err := c.newSink(group, log)
		if err != nil {
			wrong.add(prefix+"SINK", group[0].scheme.form, "%q: %v", group[0].text, err)
			continue
		}
		reader := logbuffer.Reader{Name: readerName(group[0])}
		for _, e := range group {
			reader.Sinks = append(reader.Sinks, e.name)
		}
		policy.Retained, policy.Logger = func() int64 { return retained(reader.Name) }, log
		limited, err := policy.Wrap(s)
		if err != nil {
			wrong.add(prefix+"SINK", "", "%q: %v", group[0].text, err)
			continue
		}
		all = append(all, wiredSink{reader: reader, sink: s, limited: limited})
	}
	return all
}

// readerName is what a sink's cursor is kept under: its name, or that of its Kafka cluster.
func readerName(e *endpoint) string {
	if k, ok := e.options.(*kafkaSink); ok {
		return k.Cluster
	}
	return e.name
}

// sinkGroups puts the sinks on one Kafka cluster together; each other sink is a group of its own.
func (c *config) sinkGroups(wrong *mistakes) [][]*endpoint {
	var groups [][]*endpoint
	for i := range c.sinks {
		e := &c.sinks[i]
		g := slices.IndexFunc(groups, func(group []*endpoint) bool { return readerName(group[0]) == readerName(e) })
		if g < 0 {
			if other := sameBrokers(groups, e); other != nil {
				wrong.add(prefix+"SINK", "", "%q and %q: the same brokers under two cluster names: sinks on one Kafka cluster "+
					"share one marker, so that they need one name", other.text, e.text)
				continue
			}
			groups = append(groups, []*endpoint{e})
			continue
		}
		if problem := differ(groups[g][0], e); problem != "" {
			wrong.add(prefix+"SINK", "", "%q and %q: %s", groups[g][0].text, e.text, problem)
			continue
		}
		groups[g] = append(groups[g], e)
	}
	return groups
}

// sameBrokers returns a Kafka sink of another group that has a broker in common with e, nil if there is none.
func sameBrokers(groups [][]*endpoint, e *endpoint) *endpoint {
	if _, ok := e.options.(*kafkaSink); !ok {
		return nil
	}
	for _, group := range groups {
		_, ok := group[0].options.(*kafkaSink)
		if ok && slices.ContainsFunc(e.hosts, func(h string) bool { return slices.Contains(group[0].hosts, h) }) {
			return group[0]
		}
	}
	return nil
}

// differ tells why two sinks with one reader's name cannot share the reader.
func differ(a, b *endpoint) string {
	x, ok := a.options.(*kafkaSink)
	y, ok2 := b.options.(*kafkaSink)
	switch {
	case !ok || !ok2:
		return "a sink is called like the other's Kafka cluster: give one of them another name, as in orders=http://…"
	case !sameSet(a.hosts, b.hosts) || a.scheme.name != b.scheme.name:
		return "the brokers differ: if these are two clusters, give each a name of its own, as in ?cluster=west"
	case *x != *y:
		return "sinks on one Kafka cluster share its transactions, so that their options must be the same"
	}
	return ""
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
