package httpio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"ftproxy/logbuffer"
)

// The link, from one ftproxy to the next, is HTTP:
//
//	GET  /?source=ftproxy/<lineage>/<buffer>/<reader>  ─▶ 200 {"lineage": …, "position": n, "known": true}
//	POST /  Ftproxy-Lineage, Ftproxy-Buffer, Ftproxy-Reader, Ftproxy-After: the offset that the first batch follows on
//	        (first offset (8, LE) | encoded batch) × n ─▶ 200 {"admitted": …, "duplicates": …, "position": n}
//	                                                   ─▶ 409 Ftproxy-Expected: the Ftproxy-After that is due
//
// The range (after, last offset] of a POST is judged as logbuffer.RuleRange says, so that repeats and overlaps are cut
// and nothing can be missing in between: the link is precise whatever is lost, repeated or killed.
const (
	linkPath     = "/"
	linkType     = "application/vnd.ftproxy.batches"
	headerBuffer = "Ftproxy-Buffer"
	headerReader = "Ftproxy-Reader"
	headerAfter  = "Ftproxy-After"
)

// linkSource names a reader of a replicated buffer as a source of the next one.
func linkSource(lineage, buffer, reader string) (string, error) {
	for _, part := range []string{lineage, buffer, reader} {
		if part == "" || strings.ContainsAny(part, "/\r\n") || len(part) > 256 {
			return "", fmt.Errorf("%q cannot be a part of a source's name", part)
		}
	}
	return "ftproxy/" + lineage + "/" + buffer + "/" + reader, nil
}

// linkPosition answers a GET.
type linkPosition struct {
	Lineage  string `json:"lineage"`
	Position int64  `json:"position"`
	Known    bool   `json:"known"`
}

// appendLink appends one batch, whose first tuple has the given offset, to a POST's body.
func appendLink(body []byte, first uint64, e logbuffer.Encoded) []byte {
	body = binary.LittleEndian.AppendUint64(body, first)
	return append(body, e...)
}

// linkTupleBytes is about what a tuple takes in memory besides its bytes in the body: itself, and its headers with the
// origin.
const linkTupleBytes = 500

// linkWeight estimates what the tuples of a body take in memory besides the body, by what its batches say.
func linkWeight(body []byte) (bytes int64) {
	for len(body) > 8 {
		encoded, rest, err := logbuffer.NextEncoded(body[8:])
		if err != nil {
			break // decodeLink says why
		}
		bytes += int64(min(max(encoded.Count(), 0), len(encoded))) * linkTupleBytes
		body = rest
	}
	return bytes
}

// decodeLink reads a POST's body: batches whose positions are the sender's offsets, each following on the one before.
// Every checksum is checked.
func decodeLink(body []byte, after int64, source, sink string) ([]logbuffer.Batch, error) {
	var batches []logbuffer.Batch
	for len(body) > 0 {
		if len(body) < 8 {
			return nil, fmt.Errorf("%w: %d bytes are left over", logbuffer.ErrCorrupt, len(body))
		}
		first := binary.LittleEndian.Uint64(body)
		encoded, rest, err := logbuffer.NextEncoded(body[8:])
		if err != nil {
			return nil, err
		}
		batch, err := encoded.Decode()
		if err != nil {
			return nil, err
		}
		n := uint64(len(batch.Tuples))
		if n == 0 || first == 0 || first > 1<<62 || int64(first+n-1) <= after {
			if n > 0 && first > 0 && first <= 1<<62 {
				body = rest // wholly known
				continue
			}
			return nil, fmt.Errorf("%w: a batch of %d tuples from offset %d", logbuffer.ErrCorrupt, n, first)
		}
		for i := range batch.Tuples {
			t := &batch.Tuples[i]
			if headerOf(t, originHeader) == nil {
				origin := fmt.Appendf(nil, "%s@%d", batch.Source, t.Position)
				t.Headers = append(slices.Clip(t.Headers),
					logbuffer.Header{Key: originHeader, Value: origin})
			}
			t.Position = int64(first + uint64(i))
		}
		batch.Source, batch.Sink, batch.Rule, batch.After = source, sink, logbuffer.RuleRange, after
		after = int64(first + n - 1)
		batches, body = append(batches, batch), rest
	}
	return batches, nil
}

// linkHeaders reads who sends, and what it follows on.
func linkHeaders(h http.Header) (source string, after int64, err error) {
	source, err = linkSource(h.Get(headerLineage), h.Get(headerBuffer), h.Get(headerReader))
	if err != nil {
		return "", 0, err
	}
	after, err = strconv.ParseInt(h.Get(headerAfter), 10, 64)
	if err != nil || after < 0 {
		return "", 0, errors.New(headerAfter + " is no offset")
	}
	return source, after, nil
}
