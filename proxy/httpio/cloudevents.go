package httpio

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"ftproxy/logbuffer"
)

// A CloudEvent's attributes travel as headers "ce-<name>" of the tuple, its datacontenttype as header "content-type",
// its partitionkey as the tuple's key, its time (to the millisecond, too) as the tuple's time, its data as the value.

// maxAttributes bounds an event's members.
const maxAttributes = 64

// splitEvents makes a tuple of each event of a batch.
func splitEvents(body []byte, maxTuples int) ([]logbuffer.Tuple, error) {
	elements, err := elementsOf(body, maxTuples)
	if err != nil {
		return nil, err
	}
	tuples := make([]logbuffer.Tuple, 0, len(elements))
	for _, element := range elements {
		t, err := parseEvent(element)
		if err != nil {
			return nil, err
		}
		tuples = append(tuples, t)
	}
	return tuples, nil
}

func badEvent(format string, a ...any) error {
	return refuse(http.StatusBadRequest, "send CloudEvents as version 1.0 says; nothing was written",
		"not a CloudEvent: "+format, a...)
}

// parseEvent makes a tuple of an event in structured mode.
func parseEvent(text []byte) (t logbuffer.Tuple, err error) {
	var members map[string]json.RawMessage
	if err = checkJSON("the event", text); err != nil {
		return t, err
	}
	if json.Unmarshal(text, &members) != nil || members == nil {
		return t, badEvent("it is not a JSON object")
	}
	if len(members) > maxAttributes {
		return t, badEvent("it has more than %d attributes", maxAttributes)
	}
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.Sort(names)
	contentType := "application/json"
	for _, name := range names {
		if name == "data" || name == "data_base64" || string(members[name]) == "null" {
			continue
		}
		if !attributeName(name) {
			return t, badEvent("%q is no attribute's name", name)
		}
		value, ok := attributeValue(members[name])
		if !ok {
			return t, badEvent("attribute %q is neither a string nor a number nor a truth value", name)
		}
		if name == "datacontenttype" {
			contentType = value
			continue
		}
		t.Headers = append(t.Headers, logbuffer.Header{Key: "ce-" + name, Value: []byte(value)})
	}
	t.Headers = append(t.Headers, logbuffer.Header{Key: "content-type", Value: []byte(contentType)})
	if t.Value, err = eventData(members, contentType); err != nil {
		return t, err
	}
	if err := restoreEvent(&t); err != nil {
		return t, err
	}
	return t, settleEvent(&t)
}

// restoreEvent takes key and headers out of the extensions in which another ftproxy has put what is no attribute.
func restoreEvent(t *logbuffer.Tuple) error {
	attributes := t.Headers
	t.Headers = nil
	for _, h := range attributes {
		raw, err := unescape(string(h.Value))
		switch h.Key {
		case "ce-ftproxykey":
			t.Key = raw
		case "ce-ftproxyorigin":
			t.Headers = append(t.Headers, logbuffer.Header{Key: originHeader, Value: raw})
		case "ce-ftproxyheaders":
			var others []logbuffer.Header
			if others, err = pairsOf(string(h.Value)); err == nil {
				t.Headers = append(t.Headers, others...)
			}
		default:
			t.Headers, err = append(t.Headers, h), nil
		}
		if err != nil {
			return badEvent("attribute %q: %s", strings.TrimPrefix(h.Key, "ce-"), err.Error())
		}
	}
	return nil
}

// pairsOf reads "&name=value&name=value"; a name alone has the value null.
func pairsOf(text string) ([]logbuffer.Header, error) {
	var headers []logbuffer.Header
	for pair := range strings.SplitSeq(strings.TrimPrefix(text, "&"), "&") {
		name, value, has := strings.Cut(pair, "=")
		key, err := unescape(name)
		if err != nil {
			return nil, err
		}
		h := logbuffer.Header{Key: string(key)}
		if has {
			if h.Value, err = unescape(value); err != nil {
				return nil, err
			}
		}
		headers = append(headers, h)
	}
	return headers, nil
}

// settleEvent checks what every event must have, and takes key and time out of the attributes.
func settleEvent(t *logbuffer.Tuple) error {
	for _, name := range []string{"ce-specversion", "ce-id", "ce-source", "ce-type"} {
		if len(headerOf(t, name)) == 0 {
			return badEvent("attribute %q is missing", strings.TrimPrefix(name, "ce-"))
		}
	}
	if v := headerOf(t, "ce-specversion"); !bytes.HasPrefix(v, []byte("1.")) {
		return badEvent("specversion %q is not supported", v)
	}
	if key := headerOf(t, "ce-partitionkey"); key != nil {
		if t.Key == nil {
			t.Key = key
		}
		t.Headers = slices.DeleteFunc(t.Headers, func(h logbuffer.Header) bool { return h.Key == "ce-partitionkey" })
	}
	if text := headerOf(t, "ce-time"); text != nil {
		at, err := time.Parse(time.RFC3339Nano, string(text))
		if err != nil {
			return badEvent("time %q is not a timestamp as in RFC 3339", text)
		}
		t.Time = at.UnixMilli()
	}
	return nil
}

func headerOf(t *logbuffer.Tuple, key string) []byte {
	for i := range t.Headers {
		if t.Headers[i].Key == key {
			return t.Headers[i].Value
		}
	}
	return nil
}

func attributeName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

func attributeValue(raw json.RawMessage) (value string, ok bool) {
	switch raw[0] {
	case '"':
		return value, json.Unmarshal(raw, &value) == nil
	case '{', '[':
		return "", false
	}
	return string(raw), true
}

func eventData(members map[string]json.RawMessage, contentType string) ([]byte, error) {
	data, plain := members["data"]
	encoded, binary := members["data_base64"]
	plain = plain && string(data) != "null"
	binary = binary && string(encoded) != "null"
	switch {
	case plain && binary:
		return nil, badEvent("it has both data and data_base64")
	case binary:
		var text string
		if err := json.Unmarshal(encoded, &text); err != nil {
			return nil, badEvent("data_base64 is not a string")
		}
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, badEvent("data_base64 is not base64")
		}
		return raw, nil
	case !plain:
		return nil, nil
	case data[0] == '"' && !jsonType(contentType):
		var text string
		err := json.Unmarshal(data, &text)
		return []byte(text), err
	}
	return data, nil
}

// jsonType tells whether a content type means JSON.
func jsonType(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json"))
}
