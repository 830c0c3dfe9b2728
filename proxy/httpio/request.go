package httpio

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
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
	if it.batch.Sink != "" {
		h.Set(headerSink, escape([]byte(it.batch.Sink)))
	}
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/octet-stream")
	}
	for name, value := range d.eventOf(it) {
		if name != "partitionkey" && name != "datacontenttype" && h.Get("ce-"+name) == "" {
			h.Set("ce-"+name, escape([]byte(value)))
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
	for i := range it.tuple.Headers {
		header := &it.tuple.Headers[i]
		if name, ok := strings.CutPrefix(header.Key, "ce-"); ok && asAttribute(header, name) {
			event[name] = string(header.Value)
		}
		if header.Key == "content-type" {
			event["datacontenttype"] = string(header.Value)
		}
	}
	return event
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
	event := make(map[string]any, 12)
	for name, value := range d.eventOf(it) {
		event[name] = value
	}
	event["ftproxyorigin"] = escape(originOf(it))
	if key := it.tuple.Key; key != nil && (len(key) == 0 || !utf8.Valid(key)) {
		delete(event, "partitionkey")
		event["ftproxykey"] = escape(key)
	}
	if others := otherHeaders(it.tuple); others != "" {
		event["ftproxyheaders"] = others
	}
	value := it.tuple.Value
	contentType, _ := event["datacontenttype"].(string)
	switch {
	case value == nil:
	case (contentType == "" || jsonType(contentType)) && json.Valid(value) && string(value) != "null":
		event["data"] = json.RawMessage(value)
	default:
		event["data_base64"] = base64.StdEncoding.EncodeToString(value)
	}
	text, err := json.Marshal(event)
	if err != nil {
		return append(body, "null"...) // not reached: all members are strings, or JSON that was checked
	}
	return append(body, text...)
}

// asAttribute tells whether a header can stand as the attribute of that name.
func asAttribute(h *logbuffer.Header, name string) bool {
	return attributeName(name) && len(h.Value) > 0 && utf8.Valid(h.Value)
}

// otherHeaders writes the headers that are no attributes, as "name=value&name=value"; "name" alone is null.
func otherHeaders(t *logbuffer.Tuple) string {
	var b strings.Builder
	for i := range t.Headers {
		h := &t.Headers[i]
		name, ce := strings.CutPrefix(h.Key, "ce-")
		if h.Key == "content-type" && h.Value != nil || h.Key == originHeader || ce && asAttribute(h, name) {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('&')
		}
		b.WriteString(pairText([]byte(h.Key)))
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
