package kafkaio

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"ftproxy/proxy"
)

// Names for the tests of package kafkaio_test.
type (
	Mutant  = mutant
	Marker  = marker
	Placed  = placed
	Refusal = refusal
	Cut     = cut
)

// Connect replaces the dialler of a configuration.
func (c *Connection) Connect(f func(ctx context.Context, network, addr string) (net.Conn, error)) {
	c.connect = f
}

// NewMarker makes a marker.
func NewMarker(lineage, buffer string, n, hash uint64, refused ...Refusal) Marker {
	return marker{lineage, buffer, "sink", n, hash, refused}
}

// NewRefusal makes a run of refused offsets.
func NewRefusal(label string, why byte, first, last uint64) Refusal {
	return refusal{label, reason(why), first, last}
}

// ParseMarker is parseMarker.
func ParseMarker(text string) (Marker, error) { return parseMarker(text) }

// NewPlaced is what a take-over knows.
func NewPlaced(lineage string, c proxy.Cursor, found string, absent bool, hash uint64, stored bool) Placed {
	return placed{
		lineage: lineage, buffer: "in", reader: "sink", cursor: c, found: found, absent: absent, hash: hash, stored: stored,
	}
}

// Judge is judge; it returns the offset to go on from.
func (p placed) Judge() (uint64, error) {
	m, err := p.judge()
	return m.n, err
}

// Mutate switches protections off.
func (s *Sink) Mutate(m Mutant) { s.mutant = m }

// Mutants, one protection off each.
func NoSentinel() Mutant     { return mutant{noSentinel: true} }
func BareInit() Mutant       { return mutant{bareInit: true} }
func InitUnchecked() Mutant  { return mutant{initUnchecked: true} }
func SteadyRanges() Mutant   { return mutant{steadyRanges: true} }
func TrustUnknown() Mutant   { return mutant{trustUnknown: true} }
func TornRange() Mutant      { return mutant{tornRange: true} }
func UnstableAbsent() Mutant { return mutant{unstableAbsent: true} }
func NoLetters() Mutant      { return mutant{noLetters: true} }
func FreshSequences() Mutant { return mutant{freshSequences: true} }

// Refresh sets how often the marker is written again.
func (s *Sink) Refresh(every time.Duration) { s.refreshFirst, s.refreshEvery = every, every }

// ParseNotes is parseNotes.
func ParseNotes(text, lineage string) map[string][16]byte { return parseNotes(text, lineage) }

// TLSFiles returns a function that gives the TLS configuration of a moment.
func TLSFiles(t *TLS) func(host string) (c *tls.Config, stale, err error) {
	return (&tlsFiles{files: t}).current
}

// Murmur2 is murmur2.
func Murmur2(b []byte) uint32 { return murmur2(b) }

// PartitionOf is partitionOf.
func PartitionOf(key []byte, source int32, n int) int32 { return partitionOf(key, source, n) }

// Inflate decompresses with a limit.
func Inflate(limit int, src []byte, codec int8) ([]byte, error) {
	f := newInflater(limit)
	defer f.close()
	return f.Decompress(src, kgo.CompressionCodecType(codec))
}

// StaleAnswer lets a fetcher take the answer for offset asked of a partition whose next offset is due. It returns what
// is due then.
func StaleAnswer(due, asked int64) int64 {
	r := &reading{s: &Source{}}
	p := &part{topic: "t", next: due, queue: make(chan chunk, queuedChunks)}
	f := &fetcher{r: r, inflate: newInflater(1 << 20)}
	f.take(wanted{p, asked}, &kmsg.FetchResponseTopicPartition{LastStableOffset: asked})
	return p.next
}

// Held is how many bytes are fetched and not yet in the log.
func (s *Source) Held() int64 { return s.stats.held.Load() }
