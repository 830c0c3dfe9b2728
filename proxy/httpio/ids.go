package httpio

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

// idsOf returns an id for each tuple of a request, and how many have none. In a batch a header's id is header/index,
// unless the tuple has a header of that name itself (a CloudEvent's attribute). The id "header:ce-id" counts together
// with the event's source, as CloudEvents asks. Tuples that another ftproxy delivers in a batch have the ids that they
// have in deliveries of one.
func idsOf(scope string, rule proxy.IDRule, h http.Header, f form, tuples []logbuffer.Tuple) ([]logbuffer.ID, int,
	error,
) {
	if !rule.Wanted() {
		return nil, 0, nil
	}
	var listed []string
	if strings.EqualFold(rule.Header(), headerIdem) && f.batch() {
		var err error
		if listed, err = listedKeys(h, len(tuples)); err != nil {
			return nil, 0, err
		}
	}
	shared := ""
	if rule.Header() != "" {
		shared = h.Get(rule.Header())
	}
	event := strings.EqualFold(rule.Header(), "ce-id")
	ids := make([]logbuffer.ID, len(tuples))
	missing := 0
	for i := range tuples {
		id, ok := rule.ID(scope, &tuples[i])
		switch {
		case listed != nil:
			id = proxy.TupleID(scope, []byte(listed[i]))
		case ok && event:
			source := headerOf(&tuples[i], "ce-source")
			id = proxy.TupleID(scope, fmt.Appendf(nil, "%d/%s%s", len(source), source, headerOf(&tuples[i], "ce-id")))
		case ok:
		case shared != "" && f.batch():
			id = proxy.TupleID(scope, []byte(shared+"/"+strconv.Itoa(i)))
		case shared != "":
			id = proxy.TupleID(scope, []byte(shared))
		default:
			missing++
		}
		ids[i] = id
	}
	return ids, missing, nil
}

// tupleKey is the Idempotency-Key of a tuple: the same in every attempt, by whatever leader.
func tupleKey(lineage string, offset uint64) string {
	return lineage + "/" + strconv.FormatUint(offset, 10)
}

// offsetList writes ascending offsets as "5-9,12".
func offsetList(offsets []uint64) string {
	var b strings.Builder
	for i := 0; i < len(offsets); {
		j := i
		for j+1 < len(offsets) && offsets[j+1] == offsets[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(offsets[i], 10))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.FormatUint(offsets[j], 10))
		}
		i = j + 1
	}
	return b.String()
}

// listedKeys returns the Idempotency-Keys that Ftproxy-Lineage and Ftproxy-Offsets give to n tuples, nil if they are
// not there.
func listedKeys(h http.Header, n int) ([]string, error) {
	lineage, list := h.Get(headerLineage), h.Get(headerOffsets)
	if lineage == "" || list == "" {
		return nil, nil
	}
	bad := refuse(http.StatusBadRequest, "write offsets as 5-9,12, one for each tuple",
		"header %s does not name the offsets of %d tuples", headerOffsets, n)
	var keys []string
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 64)
		last, err2 := strconv.ParseUint(to, 10, 64)
		if err1 != nil || err2 != nil || last < first || last-first >= uint64(n-len(keys)) {
			return nil, bad
		}
		for o := first; o <= last && len(keys) < n; o++ {
			keys = append(keys, tupleKey(lineage, o))
		}
	}
	if len(keys) != n {
		return nil, bad
	}
	return keys, nil
}
