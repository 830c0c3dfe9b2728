package kafkaio

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"ftproxy/proxy"
)

// marker is the sink's position as it is committed with each transaction: the metadata of a consumer-group offset.
//
//	v1 <lineage> <buffer> <reader> <n> <hash at n, hex> <refused>
//
// The reader tells apart two sinks that were configured for two clusters, but reach the same one.
//
// refused lists what the transaction did not write because Kafka refuses it for good, so that a new owner which finds
// the marker ahead of the acknowledged offset can still write the dead letters.
type marker struct {
	lineage, buffer, reader string
	n, hash                 uint64
	refused                 []refusal
}

// refusal is a run of offsets, first to last, that were not written for a route.
type refusal struct {
	label       string
	reason      reason
	first, last uint64
}

// reason is why Kafka would refuse a record for good.
type reason byte

const (
	tooLarge     reason = 's'
	unauthorised reason = 'a'
	invalid      reason = 'i'
)

// String says it in words.
func (r reason) String() string {
	switch r {
	case tooLarge:
		return "larger than the topic's max.message.bytes"
	case unauthorised:
		return "not authorised to write to the topic"
	case invalid:
		return "refused by the broker as invalid (timestamp out of bounds, or no key in a compacted topic)"
	}
	return "refused for an unknown reason"
}

// maxMarker bounds the metadata: Kafka's offset.metadata.max.bytes is 4096 by default.
const maxMarker = 4096

// String encodes the marker.
func (m marker) String() string {
	b := fmt.Appendf(nil, "v1 %s %s %s %d %016x ", url.QueryEscape(m.lineage), url.QueryEscape(m.buffer),
		url.QueryEscape(m.reader), m.n, m.hash)
	if len(m.refused) == 0 {
		return string(append(b, '-'))
	}
	for i, r := range m.refused {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, "%s:%c:%d:%d", url.QueryEscape(r.label), r.reason, r.first, r.last-r.first)
	}
	return string(b)
}

// parseMarker decodes a marker.
func parseMarker(text string) (m marker, err error) {
	f := strings.Split(text, " ")
	if len(f) != 7 || f[0] != "v1" {
		return m, fmt.Errorf("the marker %q is not in the form that this version writes", text)
	}
	if m.lineage, err = url.QueryUnescape(f[1]); err == nil {
		m.buffer, err = url.QueryUnescape(f[2])
	}
	if err == nil {
		m.reader, err = url.QueryUnescape(f[3])
	}
	if err == nil {
		m.n, err = strconv.ParseUint(f[4], 10, 63)
	}
	if err == nil {
		m.hash, err = strconv.ParseUint(f[5], 16, 64)
	}
	if err == nil && f[6] != "-" {
		for item := range strings.SplitSeq(f[6], ",") {
			var r refusal
			if r, err = parseRefusal(item); err != nil {
				break
			}
			m.refused = append(m.refused, r)
		}
	}
	if err != nil {
		return marker{}, fmt.Errorf("the marker %q cannot be read: %w", text, err)
	}
	return m, nil
}

func parseRefusal(text string) (r refusal, err error) {
	f := strings.Split(text, ":")
	if len(f) != 4 || len(f[1]) != 1 {
		return r, fmt.Errorf("%q is not a run of refused offsets", text)
	}
	if r.label, err = url.QueryUnescape(f[0]); err != nil {
		return r, err
	}
	r.reason = reason(f[1][0])
	if r.first, err = strconv.ParseUint(f[2], 10, 63); err != nil {
		return r, err
	}
	more, err := strconv.ParseUint(f[3], 10, 32)
	r.last = r.first + more
	return r, err
}

// placed is what the take-over knows when it judges the marker.
type placed struct {
	lineage, buffer, reader string
	cursor                  proxy.Cursor
	// found is the marker as stored; absent if there certainly is none.
	found  string
	absent bool
	// hash is the log's own hash at the marker's offset, stored whether that offset ends a batch of the log.
	hash   uint64
	stored bool
}

// judge says from which marker the new owner goes on. An error names what does not fit; then nothing may be written.
func (p placed) judge() (marker, error) {
	if p.absent {
		if p.cursor.EverAcked {
			return marker{}, fmt.Errorf("the marker is gone although everything up to offset %d was confirmed: "+
				"the topic or its group was deleted, or this is another cluster", p.cursor.Acked)
		}
		return marker{n: p.cursor.Acked, hash: p.cursor.Hash}, nil
	}
	m, err := parseMarker(p.found)
	if err != nil {
		return marker{}, err
	}
	switch {
	case m.lineage != p.lineage:
		err = fmt.Errorf("the marker is of another log: lineage %s, ours is %s", m.lineage, p.lineage)
	case m.buffer != p.buffer:
		err = fmt.Errorf("the marker is of the buffer %q, this sink reads %q", m.buffer, p.buffer)
	case m.reader != p.reader:
		err = fmt.Errorf("the marker is of the sink %q, this one is %q: if both are on one Kafka cluster, give them one "+
			"cluster's name; if this one was renamed, give it its former name", m.reader, p.reader)
	case m.n < p.cursor.Acked:
		err = fmt.Errorf("the marker stands at offset %d, but everything up to %d was confirmed: an old marker came back",
			m.n, p.cursor.Acked)
	case m.n > p.cursor.End:
		err = fmt.Errorf("the marker stands at offset %d, but the log ends at %d: it has lost its end", m.n, p.cursor.End)
	case !p.stored:
		err = fmt.Errorf("the marker stands at offset %d, where no batch of the log ends", m.n)
	case p.hash != m.hash:
		err = fmt.Errorf("the marker's hash at offset %d is %016x, the log's is %016x: another history", m.n, m.hash,
			p.hash)
	}
	return m, err
}
