package main

import (
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"ftproxy/proxy"
)

// load reads the configuration from an environment of NAME=value. Its error is of type mistakes and lists all of them.
// hostname is what the node is called if nothing else says so.
func load(environ []string, hostname string) (*config, error) {
	var wrong mistakes
	c := &config{badCertificates: &atomic.Uint64{}}
	fields := fieldsOf(c, "env")
	values := ours(environ, fields, &wrong)
	unread := map[string]bool{} // variables whose value says nothing that could be judged further
	parse(c, "env", values, func(f field, problem string) {
		wrong.add(prefix+f.key, f.example, "%s", problem)
		unread[prefix+f.key] = true
	})
	if c.Node == "" { // alone it keeps its name wherever it runs
		c.Node = map[bool]string{true: c.Name, false: hostname}[c.Peers == ""]
	}
	if c.DataDir == "" {
		c.DataDir = filepath.Join("ftproxy-data", c.Name)
	}
	c.sources = parseEndpoints(prefix+"SOURCE", c.Source, sourceSchemes(), &wrong)
	c.sinks = parseEndpoints(prefix+"SINK", c.Sink, sinkSchemes(), &wrong)
	before := len(wrong)
	c.peers = parsePeers(c.Peers, &wrong)
	if len(wrong) > before {
		unread[prefix+"PEERS"], unread[prefix+"NODE"], unread[prefix+"INSECURE"] = true, true, true
	}
	c.dropReaders = strings.Fields(strings.ReplaceAll(c.DropReaders, ",", " "))
	var judged mistakes
	c.validate(&judged, hostname)
	wrong = append(wrong, slices.DeleteFunc(judged, func(m mistake) bool { return unread[m.variable] })...)
	if len(wrong) > 0 {
		wrong.sort(fields)
		return nil, wrong
	}
	return c, nil
}

// ours picks ftproxy's variables, refuses unknown ones, and reads secrets from the files that …_FILE names.
func ours(environ []string, fields []field, wrong *mistakes) map[string]string {
	known := map[string]field{}
	var names []string
	for _, f := range fields {
		known[f.key] = f
		names = append(names, prefix+f.key)
		if f.secret {
			names = append(names, prefix+f.key+"_FILE")
		}
	}
	values, files := map[string]string{}, map[string]string{}
	for _, entry := range environ {
		full, value, _ := strings.Cut(entry, "=")
		key, isOurs := strings.CutPrefix(full, prefix)
		if !isOurs {
			continue
		}
		bare, isFile := strings.CutSuffix(key, "_FILE")
		switch {
		case known[key].key != "":
			values[key] = value
		case isFile && known[bare].secret:
			files[bare] = value
		default:
			wrong.add(full, "", "there is no such variable; %s", unknownHint(full, names))
		}
	}
	for key, path := range files {
		readSecret(prefix+key, path, key, values, wrong)
	}
	return values
}

// unknownHint names the nearest variable; when none is near, where the list of all is.
func unknownHint(written string, names []string) string {
	if name, ok := nearest(written, names); ok {
		return "did you mean " + name + "?"
	}
	return "`ftproxy config` lists all there are"
}

func readSecret(variable, path, key string, values map[string]string, wrong *mistakes) {
	if path == "" {
		return
	}
	if values[key] != "" {
		wrong.add(variable+"_FILE", "", "%s is set too: unset one of the two", variable)
		return
	}
	content, err := readFile(path, maxSecretBytes)
	if err != nil {
		wrong.add(variable+"_FILE", "/run/secrets/"+strings.ToLower(key), "%v", err)
		return
	}
	values[key] = strings.TrimRight(string(content), "\r\n")
	if values[key] == "" {
		wrong.add(variable+"_FILE", "", "the file %s is empty", path)
	}
}

func parsePeers(text string, wrong *mistakes) map[string]string {
	peers := map[string]string{}
	for entry := range strings.FieldsSeq(strings.ReplaceAll(text, ",", " ")) {
		name, addr, found := strings.Cut(entry, "=")
		_, port, err := net.SplitHostPort(addr)
		switch {
		case !found || err != nil || port == "" || !nodeName.MatchString(name):
			wrong.add(prefix+"PEERS", peersExample, "%q is not name=host:port", entry)
		case slices.Contains(slices.Collect(maps.Values(peers)), addr):
			wrong.add(prefix+"PEERS", peersExample, "the address %q stands twice", addr)
		case peers[name] != "":
			wrong.add(prefix+"PEERS", peersExample, "the name %q stands twice", name)
		default:
			peers[name] = addr
		}
	}
	return peers
}

const maxPeers = 9

const peersExample = "enrich-0=host0:7400,enrich-1=host1:7400,enrich-2=host2:7400"

var nodeName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// validate judges what no variable can be wrong about alone. hostname is this machine's.
func (c *config) validate(wrong *mistakes, hostname string) {
	if !nodeName.MatchString(c.Name) || len(c.Name) > 64 {
		wrong.add(prefix+"NAME", "enrich", "%q is not a name of at most 64 letters, digits, dots, dashes "+
			"and underscores", c.Name)
	}
	if !nodeName.MatchString(c.Node) {
		wrong.add(prefix+"NODE", "enrich-0", "%q is not a name of letters, digits, dots, dashes and underscores", c.Node)
	}
	if c.Source == "" {
		wrong.add(prefix+"SOURCE", "http://:8080/orders", "it is not set: where do tuples come from?")
	}
	if c.Sink == "" {
		wrong.add(prefix+"SINK", "http://127.0.0.1:3000/orders", "it is not set: where do tuples go?")
	}
	if _, err := proxy.ParseIDRule(c.Dedup); err != nil {
		wrong.add(prefix+"DEDUP", "header:Idempotency-Key", "%v", err)
	}
	if _, _, err := net.SplitHostPort(c.AdminAddr); err != nil {
		wrong.add(prefix+"ADMIN_ADDR", "127.0.0.1:7401", "%q is not host:port", c.AdminAddr)
	}
	if c.TupleMaxBytes < 1 || c.TupleMaxBytes > 16<<20 {
		wrong.add(prefix+"TUPLE_MAX_BYTES", "1MiB", "%v is not within 1 byte and 16MiB", c.TupleMaxBytes)
	}
	if c.BufferMaxBytes < 2*c.TupleMaxBytes {
		wrong.add(prefix+"BUFFER_MAX_BYTES", "4GiB", "%v does not hold two tuples of FTPROXY_TUPLE_MAX_BYTES (%v)",
			c.BufferMaxBytes, c.TupleMaxBytes)
	}
	c.validateReplication(wrong)
	c.validateTLS(wrong)
	c.validateKafka(wrong)
	c.validateSinks(wrong)
	c.validateAddresses(wrong, hostname)
	c.validateRecovery(wrong)
}

func (c *config) validateSinks(wrong *mistakes) {
	if strings.ContainsFunc(c.SinkAuthorization, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		wrong.add(prefix+"SINK_AUTHORIZATION", "Bearer …", "it has a line feed or another control character within, which "+
			"no HTTP header can hold")
	}
	for i := range c.sinks {
		e := &c.sinks[i]
		if o, ok := e.options.(*linkSink); ok && o.Over != "wait" && !o.AllowLoss {
			wrong.add(prefix+"SINK", "", "%q: over=%s gives up tuples that the receiver then misses, and it would stop the "+
				"link: add allow_loss=true, or set over=wait", e.text, o.Over)
		}
		if name := readerName(e); slices.Contains(c.dropReaders, name) {
			wrong.add(prefix+"DROP_READERS", "", "%q is a sink of FTPROXY_SINK: take it out of one of the two", name)
		}
	}
}

func (c *config) validateReplication(wrong *mistakes) {
	if len(c.peers) > 0 && c.peers[c.Node] == "" {
		wrong.add(prefix+"NODE", slices.Sorted(maps.Keys(c.peers))[0],
			"this node is called %q, which is not among FTPROXY_PEERS: the peers include this node", c.Node)
	}
	if n := len(c.peers); n > 0 && n%2 == 0 && !c.PeersEven {
		wrong.add(prefix+"PEERS", peersExample, "%d nodes survive no more failures than %d: name an odd number, or set "+
			"FTPROXY_PEERS_EVEN=true", n, n-1)
	}
	if n := len(c.peers); n > maxPeers {
		wrong.add(prefix+"PEERS", peersExample, "%d nodes are more than %d", n, maxPeers)
	}
	if c.ElectionTimeout < 100*time.Millisecond || c.ElectionTimeout > 30*time.Second {
		wrong.add(prefix+"ELECTION_TIMEOUT", "500ms", "%v is not within 100ms and 30s", c.ElectionTimeout)
	}
	if c.Listen != "" {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			wrong.add(prefix+"LISTEN", ":7400", "%q is not host:port", c.Listen)
		}
	}
	listen := c.listenAddr()
	if len(c.peers) > 1 && c.TLSCertFile == "" && !c.Insecure && listen != "" && !loopback(listen) {
		wrong.add(prefix+"INSECURE", "true", "peers would talk without TLS on %s, which is not loopback: set "+
			"FTPROXY_TLS_CERT_FILE, FTPROXY_TLS_KEY_FILE and FTPROXY_TLS_CA_FILE, or allow it", listen)
	}
}

// listenAddr is where peers reach this node.
func (c *config) listenAddr() string {
	if c.Listen != "" {
		return c.Listen
	}
	return c.peers[c.Node]
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

func (c *config) validateTLS(wrong *mistakes) {
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		wrong.add(prefix+"TLS_CERT_FILE", "/etc/ftproxy/tls.crt",
			"FTPROXY_TLS_CERT_FILE and FTPROXY_TLS_KEY_FILE go together")
	}
	if c.TLSCertFile != "" && c.TLSCAFile == "" && len(c.peers) > 1 {
		wrong.add(prefix+"TLS_CA_FILE", "/etc/ftproxy/ca.crt", "peers check each other's certificates: who signs them?")
	}
	for _, e := range c.sources {
		if e.scheme.listens && e.scheme.secure() && c.TLSCertFile == "" {
			wrong.add(prefix+"TLS_CERT_FILE", "/etc/ftproxy/tls.crt", "the source %s needs a certificate", e.text)
		}
		if e.clients() == "certified" && (!e.scheme.secure() || c.TLSCAFile == "") {
			wrong.add(prefix+"TLS_CA_FILE", "/etc/ftproxy/ca.crt", "the source %s wants certified clients: that takes TLS "+
				"(%ss://) and who signs them", e.text, e.scheme.bare())
		}
	}
	validatePEM(prefix+"TLS_", c.TLSCertFile, c.TLSKeyFile, c.TLSCAFile, wrong)
}

func (c *config) validateKafka(wrong *mistakes) {
	if (c.KafkaTLSCertFile == "") != (c.KafkaTLSKeyFile == "") {
		wrong.add(prefix+"KAFKA_TLS_CERT_FILE", "/etc/kafka/client.crt",
			"FTPROXY_KAFKA_TLS_CERT_FILE and FTPROXY_KAFKA_TLS_KEY_FILE go together")
	}
	validatePEM(prefix+"KAFKA_TLS_", c.KafkaTLSCertFile, c.KafkaTLSKeyFile, c.KafkaTLSCAFile, wrong)
	if c.KafkaSASL != "" && (c.KafkaUser == "" || c.KafkaPassword == "") {
		wrong.add(prefix+"KAFKA_USER", "ftproxy", "FTPROXY_KAFKA_SASL needs FTPROXY_KAFKA_USER and FTPROXY_KAFKA_PASSWORD "+
			"(or FTPROXY_KAFKA_PASSWORD_FILE)")
	}
	if c.KafkaSASL == "" && (c.KafkaUser != "" || c.KafkaPassword != "") {
		wrong.add(prefix+"KAFKA_SASL", "SCRAM-SHA-512", "a user or password for Kafka is set, but not how to authenticate")
	}
}
