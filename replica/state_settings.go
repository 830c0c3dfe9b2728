package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"ftproxy/dedup"
	"ftproxy/logbuffer"
)

// Settings is what the leader's configuration says that every replica must agree on. A Settings command replaces them
// as a whole.
type Settings struct {
	// In and Out are the readers of the two buffers. Their names differ over both buffers, and no sink belongs to two of
	// them. Where a buffer has several readers, one without Sinks has the sink of its own name.
	In, Out []logbuffer.Reader
	// Verdicts is how many of its last verdicts the state keeps for each proposer (W): more than a proposer has in
	// flight. 1 to 1 << 16.
	Verdicts int
	// Dedup bounds what is remembered of sources, sessions and ids.
	Dedup dedup.Bounds
	// Letters is the number of unresolved dead letters from which a sink with more is refused; its last Ack before
	// may go over it. 1 to 1 << 20.
	Letters int
	// LetterBytes bounds their encoded size likewise. 1 to 1 << 40.
	LetterBytes int64
	// HashEvery is the number of log indexes between two comparisons of the replicas' hashes.
	HashEvery uint64
	// Members are the ids of all servers and Voters those that vote. Lanes, announcements and judgements of a server that
	// is not a member are forgotten. No members: membership is not known yet, and nothing is forgotten or judged.
	Members, Voters []string
}

// DefaultSettings returns the settings of a new state: no readers, no members, 256 verdicts, 10,000 dead letters of
// 16 MiB, hashes compared every 1,024 entries, and dedup's default bounds.
func DefaultSettings() Settings {
	return Settings{
		Verdicts: 256, Dedup: dedup.DefaultBounds(),
		Letters: 10_000, LetterBytes: 16 << 20, HashEvery: 1024,
	}
}

// maxList bounds the readers, their sinks and the servers.
const maxList = 1024

// Check returns an error that names the first setting that is out of range.
func (s Settings) Check() error {
	if err := s.Dedup.Check(); err != nil {
		return err
	}
	switch {
	case s.Verdicts < 1 || s.Verdicts > 1<<16:
		return fmt.Errorf("%d verdicts kept for each proposer, must be 1 to %d", s.Verdicts, 1<<16)
	case s.Letters < 1 || s.Letters > 1<<20:
		return fmt.Errorf("room for %d dead letters, must be 1 to %d", s.Letters, 1<<20)
	case s.LetterBytes < 1 || s.LetterBytes > 1<<40:
		return fmt.Errorf("room for %d bytes of dead letters, must be 1 to %d", s.LetterBytes, int64(1<<40))
	case s.HashEvery < 1:
		return errors.New("hashes are compared every 0 entries, must be 1 or more")
	case len(s.Members) > maxList || len(s.Voters) > maxList || len(s.In) > maxList || len(s.Out) > maxList:
		return fmt.Errorf("more than %d members, voters or readers", maxList)
	}
	readers, sinks := map[string]bool{}, map[string]bool{}
	for _, r := range s.readers() {
		if r.Name == "" || len(r.Name) > maxName || readers[r.Name] {
			return fmt.Errorf("reader %q: the name is empty, too long or used twice", r.Name)
		}
		readers[r.Name] = true
		if len(r.Sinks) > maxList {
			return fmt.Errorf("reader %q has more than %d sinks", r.Name, maxList)
		}
		for _, sink := range r.Sinks {
			if sink == "" || len(sink) > maxName || sinks[sink] {
				return fmt.Errorf("sink %q of reader %q: the name is empty, too long or used twice", sink, r.Name)
			}
			sinks[sink] = true
		}
	}
	return nil
}

// readers returns the readers of both buffers.
func (s Settings) readers() []logbuffer.Reader { return slices.Concat(s.In, s.Out) }

// letters returns the bounds of DEAD.
func (s Settings) letters() logbuffer.DeadOptions {
	return logbuffer.DeadOptions{Letters: s.Letters, Bytes: s.LetterBytes}
}

// normal returns the settings with sinks for every one of several readers, so that a tuple can be labelled for one.
func (s Settings) normal() Settings {
	s.In, s.Out = withSinks(s.In), withSinks(s.Out)
	return s
}

func withSinks(readers []logbuffer.Reader) []logbuffer.Reader {
	readers = slices.Clone(readers)
	for i := range readers {
		if len(readers) > 1 && len(readers[i].Sinks) == 0 {
			readers[i].Sinks = []string{readers[i].Name}
		}
	}
	return readers
}

// reads tells whether a reader reads the batches with this sink.
func reads(r logbuffer.Reader, sink string) bool {
	return sink == "" || len(r.Sinks) == 0 || slices.Contains(r.Sinks, sink)
}

// appendTo encodes the settings, which is also the body of a Settings command: readers of IN | readers of OUT |
// verdicts | ids | their age | sessions | their age | sources | letters | their bytes | hash every | members | voters.
// Readers are n | (name | strings) × n, and strings are n | string × n.
func (s Settings) appendTo(dst []byte) []byte {
	dst = appendReaders(appendReaders(dst, s.In), s.Out)
	for _, v := range []uint64{
		uint64(s.Verdicts), uint64(s.Dedup.IDs), uint64(s.Dedup.IDAge), uint64(s.Dedup.Sessions),
		uint64(s.Dedup.SessionAge), uint64(s.Dedup.Sources), uint64(s.Letters),
		uint64(s.LetterBytes), s.HashEvery,
	} {
		dst = binary.AppendUvarint(dst, v)
	}
	return appendStrings(appendStrings(dst, s.Members), s.Voters)
}

func appendReaders(dst []byte, readers []logbuffer.Reader) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(readers)))
	for _, r := range readers {
		dst = appendStrings(appendString(dst, r.Name), r.Sinks)
	}
	return dst
}

func appendStrings(dst []byte, list []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for _, s := range list {
		dst = appendString(dst, s)
	}
	return dst
}

// settings reads what Settings.appendTo wrote. What it returns satisfies Check unless d has failed.
func (d *bodyReader) settings() Settings {
	const most = 1 << 62
	s := Settings{
		In: d.readers(), Out: d.readers(),
		Verdicts: d.int(most),
		Dedup: dedup.Bounds{
			IDs: d.int(most), IDAge: int64(d.int(most)),
			Sessions: d.int(most), SessionAge: int64(d.int(most)),
			Sources: d.int(most),
		},
		Letters: d.int(most), LetterBytes: int64(d.int(most)), HashEvery: d.uvarint(),
		Members: d.strings(), Voters: d.strings(),
	}
	if d.err == nil {
		if err := s.Check(); err != nil {
			d.fail(err.Error())
		}
	}
	return s
}

func (d *bodyReader) readers() []logbuffer.Reader {
	var readers []logbuffer.Reader
	for range d.count(2) {
		readers = append(readers, logbuffer.Reader{Name: d.stringOf(maxName), Sinks: d.strings()})
	}
	return readers
}

func (d *bodyReader) strings() []string {
	var list []string
	for range d.count(1) {
		list = append(list, d.stringOf(maxName))
	}
	return list
}
