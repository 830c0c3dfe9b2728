package httpio

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"ftproxy/logbuffer"
)

// form is how a request's body holds its tuples.
type form uint8

const (
	formOpaque form = iota // one tuple, any bytes
	formJSON               // one tuple, checked to be JSON
	formLines              // NDJSON: a tuple a line
	formArray              // JSON array: a tuple an element
	formEvent              // CloudEvents, structured
	formEvents             // CloudEvents, batch
)

// batch tells whether the form may hold several tuples.
func (f form) batch() bool { return f == formLines || f == formArray || f == formEvents }

// What a tuple takes in memory besides its bytes in the body, of a CloudEvent and of any other.
const (
	eventBytes = 1000
	tupleBytes = 200
)

// weight estimates what the tuples of a body take in memory besides the body, without cutting it; never too little.
func (f form) weight(body []byte, maxTuples int) int64 {
	switch f {
	case formLines:
		return int64(min(bytes.Count(body, []byte{'\n'})+1, maxTuples)) * tupleBytes
	case formArray:
		return int64(min(bytes.Count(body, []byte{','})+1, maxTuples)) * tupleBytes
	case formEvents:
		return int64(min(bytes.Count(body, []byte{'{'})+1, maxTuples)) * eventBytes
	case formEvent:
		return eventBytes
	case formOpaque, formJSON:
	}
	return tupleBytes
}

// formOf reads Content-Type, Content-Encoding and ?split.
func formOf(r *http.Request) (form, error) {
	const unsupported = http.StatusUnsupportedMediaType
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return 0, refuse(unsupported, "send the body uncompressed", "Content-Encoding %q is not supported", e)
	}
	split, err := splitOf(r.URL.RawQuery)
	if err != nil {
		return 0, err
	}
	header := r.Header.Get("Content-Type")
	if header == "" {
		header = "application/octet-stream"
	}
	media, _, err := mime.ParseMediaType(header)
	if err != nil {
		return 0, refuse(unsupported, "send a Content-Type such as application/json",
			"Content-Type %q is malformed: %s", header, err.Error())
	}
	isJSON := media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
	event := r.Header.Get("Ce-Specversion") != ""
	switch {
	case media == "application/cloudevents+json":
		return formEvent, nil
	case media == "application/cloudevents-batch+json":
		return formEvents, nil
	case strings.HasPrefix(media, "application/cloudevents"):
		return 0, refuse(unsupported, "send CloudEvents as JSON or in binary mode",
			"the CloudEvents format %s is not supported", media)
	case strings.HasPrefix(media, "multipart/"):
		return 0, refuse(unsupported, "send each part as a request, or NDJSON", "%s is not supported", media)
	case split == "array" && (!isJSON || event):
		return 0, refuse(unsupported, "send a JSON array as application/json", "?split=array goes with JSON only")
	case split == "array":
		return formArray, nil
	case media == "application/x-ndjson", media == "application/ndjson", media == "application/jsonl",
		media == "application/x-jsonlines", media == "application/json-lines":
		return formLines, nil
	case isJSON:
		return formJSON, nil
	}
	return formOpaque, nil
}

// splitOf reads a request's query, of which "split" is all there is.
func splitOf(query string) (string, error) {
	const cure = "use ?split=array, or NDJSON"
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", refuse(http.StatusBadRequest, cure, "the query is malformed: %s", err.Error())
	}
	for name, all := range values {
		switch {
		case name != "split":
			return "", refuse(http.StatusBadRequest, cure, "the query has %.64q, which is unknown; did you mean split?", name)
		case len(all) > 1 || all[0] != "" && all[0] != "array":
			return "", refuse(http.StatusBadRequest, cure, "?split=%s is unknown", strings.Join(all, ","))
		}
	}
	return values.Get("split"), nil
}

// splitBody cuts a body into its tuples, whose values alias it. Nothing is ever returned of a malformed body.
func splitBody(f form, body []byte, maxTuples int) ([]logbuffer.Tuple, error) {
	switch f {
	case formLines:
		return splitLines(body, maxTuples)
	case formArray:
		return splitArray(body, maxTuples)
	case formEvent:
		t, err := parseEvent(body)
		return []logbuffer.Tuple{t}, err
	case formEvents:
		return splitEvents(body, maxTuples)
	case formJSON:
		if err := checkJSON("the body", body); err != nil {
			return nil, err
		}
	case formOpaque:
	}
	if body == nil {
		body = []byte{}
	}
	return []logbuffer.Tuple{{Value: body}}, nil
}

// checkJSON tells why a text cannot be read as JSON; nil if it can.
func checkJSON(what string, text []byte) error {
	if json.Valid(text) {
		return nil
	}
	err := json.Unmarshal(text, new(json.RawMessage))
	if err != nil && strings.Contains(err.Error(), "max depth") {
		return refuse(http.StatusBadRequest, "nest it less, or send it with another Content-Type",
			"%s is JSON that is nested deeper than 10,000; nothing was written", what)
	}
	return refuse(http.StatusBadRequest, "send JSON as its Content-Type says, or another Content-Type",
		"%s is not JSON; nothing was written", what)
}

func tooMany(maxTuples int) error {
	return refuse(http.StatusRequestEntityTooLarge, "send fewer tuples in a request",
		"the request holds more than %d tuples; nothing was written", maxTuples)
}

// splitLines makes a tuple of each line; blank lines are none.
func splitLines(body []byte, maxTuples int) ([]logbuffer.Tuple, error) {
	var tuples []logbuffer.Tuple
	number := 0
	for line := range bytes.SplitSeq(body, []byte{'\n'}) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if len(tuples) == maxTuples {
			return nil, tooMany(maxTuples)
		}
		if err := checkJSON(fmt.Sprintf("line %d", number), line); err != nil {
			return nil, err
		}
		tuples = append(tuples, logbuffer.Tuple{Value: line})
	}
	return tuples, nil
}

// splitArray makes a tuple of each element.
func splitArray(body []byte, maxTuples int) ([]logbuffer.Tuple, error) {
	elements, err := elementsOf(body, maxTuples)
	if err != nil {
		return nil, err
	}
	tuples := make([]logbuffer.Tuple, len(elements))
	for i := range elements {
		tuples[i].Value = elements[i]
	}
	return tuples, nil
}

// elementsOf returns the elements of a JSON array as they are written. They alias body.
func elementsOf(body []byte, maxElements int) ([][]byte, error) {
	body = bytes.TrimSpace(body)
	if err := checkJSON("the body", body); err != nil {
		return nil, err
	}
	if body[0] != '[' {
		return nil, refuse(http.StatusBadRequest, "send an array of tuples", "the body is not a JSON array")
	}
	var elements [][]byte
	depth, start, inString := 0, 1, false
	for i := 0; i < len(body); i++ { // body is valid JSON, so brackets match
		switch c := body[i]; {
		case inString:
			if c == '\\' {
				i++
			}
			inString = c != '"'
		case c == '"':
			inString = true
		case c == '[' || c == '{':
			depth++
		case c == ',' && depth == 1, (c == ']' || c == '}') && depth == 1:
			if element := bytes.TrimSpace(body[start:i]); len(element) > 0 {
				if len(elements) == maxElements {
					return nil, tooMany(maxElements)
				}
				elements = append(elements, element)
			}
			start = i + 1
			if c != ',' {
				depth--
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return elements, nil
}
