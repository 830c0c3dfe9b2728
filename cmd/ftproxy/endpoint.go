package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// endpoint is one entry of FTPROXY_SOURCE or FTPROXY_SINK: [name=]scheme://host:port[/path][?option=value&…].
type endpoint struct {
	name      string
	scheme    scheme
	hosts     []string // "host:port"; one, unless the scheme has several
	path      string   // with its leading slash, or empty
	authority string   // the hosts as written
	text      string   // the URL as written, but for secrets
	options   any      // a pointer to the scheme's struct
}

// scheme is one kind of URL that a source or a sink may have.
type scheme struct {
	name    string
	form    string // what such a URL looks like
	listens bool   // the host may be empty
	path    bool   // a path is needed
	several bool   // several hosts are possible
	options func() any
}

func sourceSchemes() []scheme {
	web := func() any { return &httpSource{} }
	lines := func() any { return &tcpSource{} }
	topic := func() any { return &kafkaSource{} }
	link := func() any { return &linkSource{} }
	return []scheme{
		{name: "http", form: "http://:8080/orders", listens: true, options: web},
		{name: "https", form: "https://:8443/orders", listens: true, options: web},
		{name: "tcp", form: "tcp://:7000", listens: true, options: lines},
		{name: "tcps", form: "tcps://:7000", listens: true, options: lines},
		{name: "kafka", form: "kafka://kafka:9092/orders", path: true, several: true, options: topic},
		{name: "kafkas", form: "kafkas://kafka:9093/orders", path: true, several: true, options: topic},
		{name: "ftproxy", form: "ftproxy://:7500", listens: true, options: link},
		{name: "ftproxys", form: "ftproxys://:7500", listens: true, options: link},
	}
}

func sinkSchemes() []scheme {
	web := func() any { return &httpSink{} }
	lines := func() any { return &tcpSink{} }
	topic := func() any { return &kafkaSink{} }
	link := func() any { return &linkSink{} }
	return []scheme{
		{name: "http", form: "http://127.0.0.1:3000/orders", options: web},
		{name: "https", form: "https://orders.example/in", options: web},
		{name: "tcp", form: "tcp://host:7000", options: lines},
		{name: "tcps", form: "tcps://host:7000", options: lines},
		{name: "kafka", form: "kafka://kafka:9092/enriched", path: true, several: true, options: topic},
		{name: "kafkas", form: "kafkas://kafka:9093/enriched", path: true, several: true, options: topic},
		{name: "ftproxy", form: "ftproxy://host:7500", several: true, options: link},
		{name: "ftproxys", form: "ftproxys://host:7500", several: true, options: link},
	}
}

// secure tells whether the scheme is the one with TLS of its kind; bare is the kind.
func (s scheme) secure() bool { return s.bare() != s.name }
func (s scheme) bare() string { return strings.TrimSuffix(s.name, "s") }

var (
	entryStart = regexp.MustCompile(`^([A-Za-z0-9._-]+=)?[a-z]+://`)
	entryName  = regexp.MustCompile(`^([A-Za-z0-9._-]+)=(.*)$`)
)

// splitList cuts a list at white space, and at commas that another entry follows: Kafka's brokers have commas too.
func splitList(text string) []string {
	var entries []string
	for word := range strings.FieldsSeq(text) {
		begin := 0
		for i, r := range word {
			if r == ',' && entryStart.MatchString(word[i+1:]) {
				entries = append(entries, strings.Trim(word[begin:i], ","))
				begin = i + 1
			}
		}
		entries = append(entries, strings.Trim(word[begin:], ","))
	}
	return slices.DeleteFunc(entries, func(s string) bool { return s == "" })
}

// parseEndpoints reads a list of endpoints.
func parseEndpoints(variable, text string, known []scheme, wrong *mistakes) []endpoint {
	var all []endpoint
	names := map[string]bool{}
	for _, entry := range splitList(text) {
		e, ok := parseEndpoint(variable, entry, known, wrong)
		if !ok {
			continue
		}
		if names[e.name] {
			wrong.add(variable, fmt.Sprintf("a=%s b=%s", e.text, e.text),
				"two entries are called %q: give each a name of its own, since positions and cursors are kept under it", e.name)
			continue
		}
		names[e.name] = true
		all = append(all, e)
	}
	return all
}

func parseEndpoint(variable, entry string, known []scheme, wrong *mistakes) (e endpoint, ok bool) {
	if m := entryName.FindStringSubmatch(entry); m != nil && entryStart.MatchString(entry) {
		e.name, entry = m[1], m[2]
	}
	e.text = redact(entry)
	before := len(*wrong)
	name, rest, found := strings.Cut(entry, "://")
	i := slices.IndexFunc(known, func(s scheme) bool { return s.name == name })
	if !found || i < 0 {
		wrong.add(variable, known[0].form, "%q is not [name=]url with a known scheme; %s", e.text,
			didYouMean(name, schemeNames(known)))
		return e, false
	}
	e.scheme = known[i]
	if e.name == "" {
		e.name = e.scheme.bare()
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	e.parseHosts(variable, rest[:end], wrong)
	tail, err := url.Parse("x://x" + rest[end:])
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL
		}
		wrong.add(variable, e.scheme.form, "%q: %v", e.text, err)
		return e, false
	}
	if tail.Fragment != "" {
		wrong.add(variable, e.scheme.form, "%q: what follows # has no meaning; write # as %%23", e.text)
	}
	e.path = tail.Path
	if e.scheme.path && strings.Trim(e.path, "/") == "" {
		wrong.add(variable, e.scheme.form, "%q: the topic is missing", e.text)
	}
	e.parseOptions(variable, tail.RawQuery, wrong)
	return e, len(*wrong) == before
}

// hidden stands for a user and password in what is shown of a URL.
const hidden = "…@"

var hostList = regexp.MustCompile(`^[^@/?#]*:[0-9]+$|^[^@:/?#]*$`)

// redact hides what may be a user and password: all before the last @, unless that stands behind hosts that are whole.
func redact(text string) string {
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		scheme, rest = "", text
	}
	at := strings.LastIndexByte(rest, '@')
	end := strings.IndexAny(rest, "/?#")
	if at < 0 || end >= 0 && end < at && hostList.MatchString(rest[:end]) {
		return text
	}
	if found {
		scheme += "://"
	}
	return scheme + hidden + rest[at+1:]
}

func (e *endpoint) parseHosts(variable, authority string, wrong *mistakes) {
	if strings.Contains(e.text, hidden) {
		wrong.add(variable, e.scheme.form, "%q: a user or password does not belong into a URL; use FTPROXY_KAFKA_USER and "+
			"FTPROXY_KAFKA_PASSWORD_FILE, or FTPROXY_SINK_AUTHORIZATION_FILE", e.text)
		return
	}
	e.authority = authority
	hosts := strings.Split(authority, ",")
	if len(hosts) > 1 && !e.scheme.several {
		wrong.add(variable, e.scheme.form, "%q: a %s URL has one host", e.text, e.scheme.name)
		return
	}
	for _, h := range hosts {
		host, port, err := net.SplitHostPort(h)
		if err != nil && e.scheme.bare() == "http" && !e.scheme.listens { // the protocol has a port of its own
			host, port, err = h, map[bool]string{false: "80", true: "443"}[e.scheme.secure()], nil
		}
		if err != nil || port == "" || host == "" && !e.scheme.listens {
			wrong.add(variable, e.scheme.form, "%q: %q is not host:port", e.text, h)
			return
		}
		e.hosts = append(e.hosts, net.JoinHostPort(host, port))
	}
}

func (e *endpoint) parseOptions(variable, query string, wrong *mistakes) {
	values, err := url.ParseQuery(query)
	if err != nil {
		wrong.add(variable, e.scheme.form, "%q: %v", e.text, err)
		return
	}
	e.options = e.scheme.options()
	fields := fieldsOf(e.options, "query")
	flat := map[string]string{}
	for key, all := range values {
		flat[key] = all[0]
		known := slices.ContainsFunc(fields, func(f field) bool { return f.key == key })
		if _, kafka := e.options.(*kafkaSink); kafka && (key == "over" || key == "over_bytes") {
			wrong.add(variable, "", "%q: a Kafka sink has no policy but to wait: giving up tuples would leave its marker "+
				"behind what is acknowledged; remove the option %q", e.text, key)
		} else if !known {
			wrong.add(variable, "", "%q: a %s URL has no option %q; %s", e.text, e.scheme.name, key,
				didYouMean(key, keys(fields)))
		} else if len(all) > 1 {
			wrong.add(variable, "", "%q: the option %q is given twice", e.text, key)
		}
	}
	parse(e.options, "query", flat, func(f field, problem string) {
		wrong.add(variable, "", "%q: option %q: %s; such as %s=%s", e.text, f.key, problem, f.key, f.example)
	})
}

// address is the only host of an endpoint whose scheme has one.
func (e *endpoint) address() string { return e.hosts[0] }

func keys(fields []field) []string {
	var all []string
	for _, f := range fields {
		all = append(all, f.key)
	}
	return all
}

func schemeNames(known []scheme) []string {
	var all []string
	for _, s := range known {
		all = append(all, s.name)
	}
	return all
}
