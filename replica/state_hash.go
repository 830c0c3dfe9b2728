package replica

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// Sample is the running hash of a state after the entry at Index.
type Sample struct{ Index, Hash uint64 }

// mix adds x to a running hash.
func mix(h, x uint64) uint64 {
	h = (h ^ x) * 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// maxRounds is how many comparisons are kept that may not be complete.
const maxRounds = 4

// comparison is what the replicas' hashes say: the latest rounds and the judgement, which is for ever.
type comparison struct {
	sample Sample
	rounds []round // by index
	judged []string
	reason string
}

// round is the hashes that servers gave for one index.
type round struct {
	index uint64
	votes map[string]uint64
}

// take keeps the sample of an index if it is the first at or after a multiple of every.
func (c *comparison) take(index, hash, every uint64) {
	if index/every > c.sample.Index/every {
		c.sample = Sample{Index: index, Hash: hash}
	}
}

// vote adds a server's hash and judges its round. A server's first hash for an index counts.
func (c *comparison) vote(server string, index, hash uint64, s *Settings) {
	at, found := slices.BinarySearchFunc(c.rounds, index, func(r round, i uint64) int {
		switch {
		case r.index < i:
			return -1
		case r.index > i:
			return 1
		}
		return 0
	})
	if !found {
		if at == 0 && len(c.rounds) == maxRounds {
			return // too old
		}
		c.rounds = slices.Insert(c.rounds, at, round{index: index, votes: make(map[string]uint64)})
		if len(c.rounds) > maxRounds {
			c.rounds = slices.Delete(c.rounds, 0, 1)
			at--
		}
	}
	r := c.rounds[at]
	if _, again := r.votes[server]; again {
		return
	}
	r.votes[server] = hash
	c.judge(r, s)
}

// judge says which servers must stop: those that differ from a quorum of the voters; all, if no quorum can agree.
func (c *comparison) judge(r round, s *Settings) {
	count, missing := map[uint64]int{}, 0
	for _, voter := range s.Voters {
		if hash, ok := r.votes[voter]; ok {
			count[hash]++
		} else {
			missing++
		}
	}
	quorum, most := len(s.Voters)/2+1, 0
	var right uint64
	for hash, n := range count {
		most = max(most, n)
		if n >= quorum {
			right = hash
		}
	}
	switch {
	case most >= quorum:
		for server, hash := range r.votes {
			if hash != right {
				c.condemn(fmt.Sprintf("its state differs from that of the majority after entry %d", r.index), server)
			}
		}
	case most+missing < quorum:
		c.condemn(fmt.Sprintf("the replicas' states differ after entry %d and no majority agrees", r.index),
			slices.Concat(s.Members, s.Voters)...)
	}
}

func (c *comparison) condemn(reason string, servers ...string) {
	if len(c.judged) == 0 {
		c.reason = reason
	}
	c.judged = append(c.judged, servers...)
	slices.Sort(c.judged)
	c.judged = slices.Compact(c.judged)
}

// acquit forgets every judgement: a voter alone differs from nobody. It is how a group goes on that a human recovered.
func (c *comparison) acquit() { c.judged, c.reason, c.rounds = nil, "", nil }

// retain forgets what concerns other servers than the members.
func (c *comparison) retain(member func(string) bool) {
	c.judged = slices.DeleteFunc(c.judged, func(s string) bool { return !member(s) })
	if len(c.judged) == 0 {
		c.reason = ""
	}
	for _, r := range c.rounds {
		maps.DeleteFunc(r.votes, func(s string, _ uint64) bool { return !member(s) })
	}
}

// appendTo encodes: sample index | sample hash (8) | n | (index | n | (server | hash (8)) × n, by server) × n |
// judged | reason.
func (c *comparison) appendTo(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, c.sample.Index)
	dst = binary.LittleEndian.AppendUint64(dst, c.sample.Hash)
	dst = binary.AppendUvarint(dst, uint64(len(c.rounds)))
	for _, r := range c.rounds {
		dst = binary.AppendUvarint(dst, r.index)
		dst = binary.AppendUvarint(dst, uint64(len(r.votes)))
		for _, server := range slices.Sorted(maps.Keys(r.votes)) {
			dst = appendString(dst, server)
			dst = binary.LittleEndian.AppendUint64(dst, r.votes[server])
		}
	}
	return appendString(appendStrings(dst, c.judged), c.reason)
}

// restoreComparison reads what appendTo wrote.
func restoreComparison(d *bodyReader) comparison {
	c := comparison{sample: Sample{Index: d.uvarint(), Hash: d.uint64()}}
	for range d.count(2) {
		r := round{index: d.uvarint(), votes: make(map[string]uint64)}
		for range d.count(9) {
			server := d.stringOf(maxName)
			r.votes[server] = d.uint64()
		}
		if n := len(c.rounds); n == maxRounds || n > 0 && c.rounds[n-1].index >= r.index {
			d.fail("rounds out of order")
			return c
		}
		c.rounds = append(c.rounds, r)
	}
	c.judged, c.reason = d.strings(), d.stringOf(maxReason)
	return c
}

func (d *bodyReader) uint64() uint64 {
	b := d.fixed(8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}
