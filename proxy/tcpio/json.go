package tcpio

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"ftproxy/logbuffer"
)

// jsonTuple is the JSON format: what a bare line cannot carry. Text that is valid UTF-8 stands in key and value, other
// bytes, in base64, in key64 and value64. A missing or null key or value is null, which is not empty.
//
//	{"key":"k","value":"v","headers":[{"name":"h","value":"x"}],"time":1700000000000}
//
// A sink adds an id that is the same each time the tuple is sent, and source, partition and position, where the tuple
// came from; a source ignores them.
type jsonTuple struct {
	ID        string       `json:"id,omitempty"`
	Key       *string      `json:"key,omitempty"`
	Key64     []byte       `json:"key64,omitempty"`
	Value     *string      `json:"value,omitempty"`
	Value64   []byte       `json:"value64,omitempty"`
	Headers   []jsonHeader `json:"headers,omitempty"`
	Time      int64        `json:"time,omitempty"`
	Source    string       `json:"source,omitempty"`
	Partition int32        `json:"partition,omitempty"`
	Position  int64        `json:"position,omitempty"`
}

type jsonHeader struct {
	Name    string  `json:"name"`
	Value   *string `json:"value,omitempty"`
	Value64 []byte  `json:"value64,omitempty"`
}

func encodeJSON(id string, b *logbuffer.Batch, t *logbuffer.Tuple) ([]byte, error) {
	j := jsonTuple{ID: id, Time: t.Time, Source: b.Source, Partition: b.Partition, Position: t.Position}
	j.Key, j.Key64 = toText(t.Key)
	j.Value, j.Value64 = toText(t.Value)
	for _, h := range t.Headers {
		x := jsonHeader{Name: h.Key}
		x.Value, x.Value64 = toText(h.Value)
		j.Headers = append(j.Headers, x)
	}
	return json.Marshal(j)
}

func decodeJSON(p []byte) (logbuffer.Tuple, error) {
	var j jsonTuple
	d := json.NewDecoder(bytes.NewReader(p))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil {
		return logbuffer.Tuple{}, &refusal{fmt.Sprintf(`not a JSON tuple like {"key":"k","value":"v"}: %v`, err)}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return logbuffer.Tuple{}, &refusal{"more than one JSON object in a tuple"}
	}
	t := logbuffer.Tuple{Time: j.Time}
	var err error
	if t.Key, err = fromText("key", j.Key, j.Key64); err != nil {
		return t, err
	}
	if t.Value, err = fromText("value", j.Value, j.Value64); err != nil {
		return t, err
	}
	for _, h := range j.Headers {
		v, err := fromText("header "+h.Name, h.Value, h.Value64)
		if err != nil {
			return t, err
		}
		t.Headers = append(t.Headers, logbuffer.Header{Key: h.Name, Value: v})
	}
	return t, nil
}

func toText(p []byte) (*string, []byte) {
	if p == nil {
		return nil, nil
	}
	if !utf8.Valid(p) {
		return nil, p
	}
	return new(string(p)), nil
}

func fromText(what string, text *string, raw []byte) ([]byte, error) {
	switch {
	case text != nil && raw != nil:
		return nil, &refusal{what + " is given as text and as base64"}
	case text != nil:
		return append([]byte{}, *text...), nil
	default:
		return raw, nil
	}
}
