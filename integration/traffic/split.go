package traffic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// split reads a POST of ftproxy's HTTP sink: one tuple with its Idempotency-Key, or several, as NDJSON or a batch of
// CloudEvents, whose keys follow from Ftproxy-Lineage and Ftproxy-Offsets ("5-9,12") in the same way.
func split(h http.Header, body []byte) (keys []string, tuples [][]byte, err error) {
	if key := h.Get("Idempotency-Key"); key != "" {
		return []string{key}, [][]byte{body}, nil
	}
	switch kind := h.Get("Content-Type"); kind {
	case "application/x-ndjson":
		tuples = bytes.Split(bytes.TrimSuffix(body, []byte("\n")), []byte("\n"))
	case "application/cloudevents-batch+json":
		var events []struct {
			Data json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(body, &events); err != nil {
			return nil, nil, err
		}
		for _, event := range events {
			tuples = append(tuples, event.Data)
		}
	default:
		return nil, nil, fmt.Errorf("no Idempotency-Key, and %q is no batch", kind)
	}
	lineage := h.Get("Ftproxy-Lineage")
	if lineage == "" {
		return nil, nil, errors.New("no Ftproxy-Lineage")
	}
	for part := range strings.SplitSeq(h.Get("Ftproxy-Offsets"), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, fromErr := strconv.ParseUint(first, 10, 64)
		to, toErr := strconv.ParseUint(last, 10, 64)
		if fromErr != nil || toErr != nil || to < from || to-from >= uint64(len(tuples)) {
			return nil, nil, fmt.Errorf("Ftproxy-Offsets: %q", part)
		}
		for n := from; n <= to; n++ {
			keys = append(keys, lineage+"/"+strconv.FormatUint(n, 10))
		}
	}
	if len(keys) != len(tuples) {
		return nil, nil, fmt.Errorf("%d tuples, but %d offsets", len(tuples), len(keys))
	}
	return keys, tuples, nil
}
