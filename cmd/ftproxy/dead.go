package main

import (
	"time"
	"unicode/utf8"

	"ftproxy/logbuffer"
)

// deadPage is what GET /dead shows. After is what to ask for next.
type deadPage struct {
	Letters []deadLetter `json:"letters"`
	After   uint64       `json:"after"`
}

// collect makes a page of at most so many letters above after, and of not much more than deadBytes.
func collect(list func(uint64, int) ([]logbuffer.Letter, error), after uint64, most int) (deadPage, error) {
	page := deadPage{Letters: []deadLetter{}, After: after}
	for size := 0; size < deadBytes && len(page.Letters) < most; {
		letters, err := list(page.After, min(deadStep, most-len(page.Letters)))
		if err != nil || len(letters) == 0 {
			return page, err
		}
		for i := range letters {
			page.Letters = append(page.Letters, shown(&letters[i]))
			page.After = letters[i].Offset
			size += len(letters[i].Tuple.Key) + len(letters[i].Tuple.Value)
		}
	}
	return page, nil
}

// deadLetter is a dead letter for people. Bytes that are not text are shown in base64, as key64 and value64.
type deadLetter struct {
	Offset    uint64       `json:"offset"`
	From      uint64       `json:"from"`
	Reader    string       `json:"reader"`
	Reason    string       `json:"reason"`
	Attempts  int          `json:"attempts"`
	Time      time.Time    `json:"time"`
	Source    string       `json:"source"`
	Partition int32        `json:"partition"`
	Position  int64        `json:"position"`
	Sink      string       `json:"sink,omitempty"`
	Key       *string      `json:"key"`
	Key64     []byte       `json:"key64,omitempty"`
	Value     *string      `json:"value"`
	Value64   []byte       `json:"value64,omitempty"`
	Headers   []deadHeader `json:"headers,omitempty"`
	TupleTime int64        `json:"tuple_time,omitempty"`
}

type deadHeader struct {
	Name    string  `json:"name"`
	Value   *string `json:"value"`
	Value64 []byte  `json:"value64,omitempty"`
}

func shown(l *logbuffer.Letter) deadLetter {
	d := deadLetter{
		Offset: l.Offset, From: l.From, Reader: l.Reader, Reason: l.Reason, Attempts: l.Attempts,
		Time: time.UnixMilli(l.Time).UTC(), Source: l.Source, Partition: l.Partition, Position: l.Tuple.Position,
		Sink: l.Sink, TupleTime: l.Tuple.Time,
	}
	d.Key, d.Key64 = asText(l.Tuple.Key)
	d.Value, d.Value64 = asText(l.Tuple.Value)
	for _, h := range l.Tuple.Headers {
		x := deadHeader{Name: h.Key}
		x.Value, x.Value64 = asText(h.Value)
		d.Headers = append(d.Headers, x)
	}
	return d
}

func asText(p []byte) (*string, []byte) {
	switch {
	case p == nil:
		return nil, nil
	case !utf8.Valid(p):
		return nil, p
	}
	return new(string(p)), nil
}
