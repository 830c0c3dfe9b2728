package httpio

import (
	"encoding/hex"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"ftproxy/logbuffer"
)

// What travels with a tuple over HTTP, both ways:
//
//	Ftproxy-Key: k             the key; absent: none. Percent-encoded, as are all values below
//	Ftproxy-Time: 1700000000000   the tuple's time, in milliseconds since the Unix epoch
//	Ftproxy-Null: value        the value is null (the body is empty), or "header/<name>": that header is
//	Ftproxy-Header-<name>: v   a header. The name is in lower case, percent-encoded where it is not
//	Content-Type, traceparent, tracestate, ce-*   headers of that name
const (
	headerPrefix  = "Ftproxy-Header-"
	headerKey     = "Ftproxy-Key"
	headerTime    = "Ftproxy-Time"
	headerNull    = "Ftproxy-Null"
	headerSink    = "Ftproxy-Sink"
	headerSession = "Ftproxy-Session"
	headerPos     = "Ftproxy-Position"
	headerAttempt = "Ftproxy-Attempt"
	headerOffsets = "Ftproxy-Offsets"
	headerLineage = "Ftproxy-Lineage"
	headerOrigin  = "Ftproxy-Origin"
	headerIdem    = "Idempotency-Key"
)

// originHeader is the header of a tuple that names its place at its first source, "source@position", over hops.
const originHeader = "ftproxy-origin"

// single refuses a request that has one of the headers twice: which of the two counts would be a guess.
func single(h http.Header, names ...string) error {
	for _, name := range names {
		if n := len(h.Values(name)); name != "" && n > 1 {
			return refuse(http.StatusBadRequest, "send it once", "header %s stands %d times; nothing was written",
				http.CanonicalHeaderKey(name), n)
		}
	}
	return nil
}

// plain tells whether a tuple's header goes by its own name.
func plain(name string) bool {
	return name == "content-type" || name == "traceparent" || name == "tracestate"
}

// escape percent-encodes what a header's value cannot hold as it is.
func escape(value []byte) string {
	var b strings.Builder
	for _, c := range value {
		if c <= ' ' || c > '~' || c == '%' || c == '"' {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// escapeName percent-encodes what a header's name cannot hold as it is; upper case too, since names have no case.
func escapeName(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || strings.IndexByte("-_.~!#$&'*+^`|", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02x", c)
	}
	return b.String()
}

// unescape undoes escape and escapeName.
func unescape(text string) ([]byte, error) {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			out = append(out, text[i])
			continue
		}
		if i+3 > len(text) {
			return nil, fmt.Errorf("%q: %% must be followed by two hexadecimal digits; a plain %% is %%25", text)
		}
		c, err := hex.DecodeString(text[i+1 : i+3])
		if err != nil {
			return nil, fmt.Errorf("%q: %% must be followed by two hexadecimal digits; a plain %% is %%25", text)
		}
		out, i = append(out, c[0]), i+2
	}
	return out, nil
}

// carried is what a request's headers say about its tuples.
type carried struct {
	key     []byte
	time    int64
	null    bool
	headers []logbuffer.Header
	shared  []logbuffer.Header // the same, as the tuples of a batch share them
}

// bytes returns about what the headers take when they are written with a tuple.
func (c *carried) bytes() int {
	n := len(c.key)
	for _, h := range c.headers {
		n += len(h.Key) + len(h.Value) + 4
	}
	return n
}

// readCarried reads the headers that travel with every tuple of a request. The order of headers of different names is
// not kept by HTTP: they are sorted.
func readCarried(h http.Header) (c carried, err error) {
	bad := func(name string, err error) (carried, error) {
		return c, refuse(http.StatusBadRequest, "correct the header", "header %s: %s", name, err.Error())
	}
	if values, ok := h[headerKey]; ok {
		if c.key, err = unescape(values[0]); err != nil {
			return bad(headerKey, err)
		}
	}
	if text := h.Get(headerTime); text != "" {
		if c.time, err = strconv.ParseInt(text, 10, 64); err != nil {
			return bad(headerTime, err)
		}
	}
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		lower := strings.ToLower(name)
		suffix, own := strings.CutPrefix(lower, strings.ToLower(headerPrefix))
		switch {
		case own:
			raw, badName := unescape(suffix)
			if badName != nil {
				return bad(name, badName)
			}
			lower = string(raw)
		case lower != originHeader && !plain(lower) && !strings.HasPrefix(lower, "ce-"):
			continue
		}
		for _, value := range h[name] {
			raw := []byte(value)
			if own || !plain(lower) {
				if raw, err = unescape(value); err != nil {
					return bad(name, err)
				}
			}
			c.headers = append(c.headers, logbuffer.Header{Key: lower, Value: raw})
		}
	}
	return c, c.readNulls(h)
}

// readNulls reads Ftproxy-Null.
func (c *carried) readNulls(h http.Header) error {
	for part := range strings.SplitSeq(strings.Join(h[headerNull], ","), ",") {
		part = strings.TrimSpace(part)
		name, isHeader := strings.CutPrefix(part, "header/")
		switch {
		case part == "":
		case part == "value":
			c.null = true
		case isHeader:
			raw, err := unescape(name)
			if err != nil {
				return refuse(http.StatusBadRequest, "correct the header", "header %s: %s", headerNull, err.Error())
			}
			c.headers = append(c.headers, logbuffer.Header{Key: string(raw)})
		default:
			return refuse(http.StatusBadRequest, `use "value" or "header/<name>"`, "header %s: %q is unknown",
				headerNull, part)
		}
	}
	return nil
}

// writeCarried writes into h what travels with t.
func writeCarried(h http.Header, t *logbuffer.Tuple) {
	if t.Key != nil {
		h[headerKey] = []string{escape(t.Key)}
	}
	if t.Time != 0 {
		h.Set(headerTime, strconv.FormatInt(t.Time, 10))
	}
	if t.Value == nil {
		h.Add(headerNull, "value")
	}
	for i := range t.Headers {
		name, value := t.Headers[i].Key, t.Headers[i].Value
		switch {
		case name == originHeader: // written by the caller, for every tuple
		case value == nil:
			h.Add(headerNull, "header/"+escapeName(name))
		case plain(name) && fieldValue(value) && h.Get(name) == "" && (name != "content-type" || mediaType(value)):
			h.Set(name, string(value))
		case strings.HasPrefix(name, "ce-") && attributeName(name[3:]):
			h.Add(name, escape(value))
		default:
			h.Add(headerPrefix+escapeName(name), escape(value))
		}
	}
}

// mediaType tells whether a Content-Type would be understood.
func mediaType(value []byte) bool {
	_, _, err := mime.ParseMediaType(string(value))
	return err == nil
}

// fieldValue tells whether a header's value survives HTTP as it is.
func fieldValue(value []byte) bool {
	if len(value) == 0 || value[0] == ' ' || value[len(value)-1] == ' ' {
		return false
	}
	return !slices.ContainsFunc(value, func(c byte) bool { return c < ' ' || c > '~' })
}
