package httpio

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"ftproxy/logbuffer"
)

// request makes the POST of some items: one as it is, several in the configured format.
func (d *delivery) request(ctx context.Context, items []item, attempt int) (*http.Request, error) {
	var body []byte
	h := http.Header{}
	switch {
	case len(items) == 1:
		body = d.single(h, &items[0])
	case d.sink.cfg.Format == "ndjson":
		body = d.lines(h, items)
	default:
		body = d.events(h, items)
	}
	h.Set(headerAttempt, strconv.Itoa(attempt))
	if d.sink.mutant.keyPerAttempt {
		h.Set(headerIdem, h.Get(headerIdem)+"#"+strconv.Itoa(attempt))
	}
	if a := d.sink.cfg.Authorization; a != "" {
		h.Set("Authorization", a)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.sink.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header = h
	return r, nil
}

// single writes a tuple as it is: its value is the body, all else stands in headers. CloudEvents call this binary mode.
func (d *delivery) single(h http.Header, it *item) []byte {
	writeCarried(h, it.tuple)
	key := tupleKey(d.out.Lineage(), it.offset)
	h.Set(headerIdem, key)
	h.Set(headerOrigin, escape(originOf(it)))
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/octet-stream")
	}
	for name, value := range d.eventOf(it) {
		header := http.CanonicalHeaderKey("ce-" + name)
		if _, there := h[header]; !there && name != "partitionkey" && name != "datacontenttype" {
			h.Set(header, escape([]byte(value)))
		}
	}
	return it.tuple.Value
}

// originOf names where the tuple stood at its first source.
func originOf(it *item) []byte {
	if first := headerOf(it.tuple, originHeader); first != nil {
		return first
	}
	return fmt.Appendf(nil, "%s@%d", it.batch.Source, it.tuple.Position)
}

// eventOf returns the CloudEvents attributes of a tuple: its own, and those that it must have.
func (d *delivery) eventOf(it *item) map[string]string {
	event := map[string]string{
		"specversion": "1.0", "id": tupleKey(d.out.Lineage(), it.offset), "source": d.sink.cfg.EventSource,
		"type": d.sink.cfg.EventType,
	}
	if it.tuple.Time != 0 {
		event["time"] = time.UnixMilli(it.tuple.Time).UTC().Format("2006-01-02T15:04:05.000Z")
	}
	if it.tuple.Key != nil {
		event["partitionkey"] = string(it.tuple.Key)
	}
	own, _ := sortHeaders(it.tuple)
	maps.Copy(event, own)
	return event
}

// sortHeaders tells a tuple's headers that stand as attributes of an event from the others. Of two of one name only the
// first can be an attribute.
func sortHeaders(t *logbuffer.Tuple) (attributes map[string]string, others []logbuffer.Header) {
	attributes = map[string]string{}
	for _, h := range t.Headers {
		name, fits := strings.CutPrefix(h.Key, "ce-")
		fits = fits && attributeName(name) && name != "partitionkey" && !strings.HasPrefix(name, "ftproxy")
		if h.Key == "content-type" {
			name, fits = "datacontenttype", mediaType(h.Value)
		}
		_, taken := attributes[name]
		switch {
		case h.Key == originHeader: // written by the caller, for every tuple
		case fits && !taken && len(h.Value) > 0 && utf8.Valid(h.Value):
			attributes[name] = string(h.Value)
		default:
			others = append(others, h)
		}
	}
	return attributes, others
}

// listed names the tuples of a POST, so that each can be told from its repetition.
func (d *delivery) listed(h http.Header, items []item) {
	offsets := make([]uint64, len(items))
	for i := range items {
		offsets[i] = items[i].offset
	}
	h.Set(headerLineage, d.out.Lineage())
	h.Set(headerOffsets, offsetList(offsets))
}

// lines writes the values as NDJSON.
func (d *delivery) lines(h http.Header, items []item) []byte {
	d.listed(h, items)
	h.Set("Content-Type", "application/x-ndjson")
	var body bytes.Buffer
	for i := range items {
		if err := json.Compact(&body, items[i].tuple.Value); err != nil {
			body.WriteString("null") // not reached: what is not JSON is delivered alone
		}
		body.WriteByte('\n')
	}
	return body.Bytes()
}

// events writes a CloudEvents batch.
func (d *delivery) events(h http.Header, items []item) []byte {
	d.listed(h, items)
	h.Set("Content-Type", "application/cloudevents-batch+json")
	body := []byte{'['}
	for i := range items {
		if i > 0 {
			body = append(body, ',')
		}
		body = d.appendEvent(body, &items[i])
	}
	return append(body, ']')
}

// appendEvent writes one tuple as an event in structured mode. Headers that are no attributes become the extension
// "ftproxyheaders", which holds them as Ftproxy-Header-… does in single POSTs.
func (d *delivery) appendEvent(body []byte, it *item) []byte {
	event := d.eventOf(it)
	event["ftproxyorigin"] = escape(originOf(it))
	if key := it.tuple.Key; key != nil && (len(key) == 0 || !utf8.Valid(key)) {
		delete(event, "partitionkey")
		event["ftproxykey"] = escape(key)
	}
	if _, others := sortHeaders(it.tuple); len(others) > 0 {
		event["ftproxyheaders"] = pairsText(others)
	}
	text, err := json.Marshal(event)
	if err != nil {
		return append(body, "null"...) // not reached: all members are strings
	}
	body = append(body, text[:len(text)-1]...)
	value := it.tuple.Value
	contentType := event["datacontenttype"]
	switch {
	case value == nil:
	case (contentType == "" || jsonType(contentType)) && json.Valid(value) && string(value) != "null":
		body = append(append(body, `,"data":`...), value...)
	default:
		body = append(body, `,"data_base64":"`...)
		body = append(base64.StdEncoding.AppendEncode(body, value), '"')
	}
	return append(body, '}')
}

// pairsText writes headers as "&name=value&name=value"; "&name" alone is null.
func pairsText(headers []logbuffer.Header) string {
	var b strings.Builder
	for _, h := range headers {
		b.WriteString("&" + pairText([]byte(h.Key)))
		if h.Value != nil {
			b.WriteString("=" + pairText(h.Value))
		}
	}
	return b.String()
}

// pairText escapes what separates pairs as well.
func pairText(raw []byte) string {
	return strings.NewReplacer("&", "%26", "=", "%3D").Replace(escape(raw))
}
