package replica

import (
	"slices"
	"sort"
	"sync"
	"time"
)

// sizes knows about how many bytes of log stand between two indexes, to the accuracy of sizeStep. All methods may be
// called concurrently.
type sizes struct {
	mu sync.Mutex
	// marks ascend in index and total; total counts the bytes up to and including index. Empty: the log is.
	marks []sizeMark
	last  sizeMark // of the newest entry
	base  int64    // total when the process started
}

type sizeMark struct {
	index uint64
	total int64
}

// sizeStep is the number of bytes between two marks.
const sizeStep = 1 << 20

// seed notes a file that was found at start, with the entries first to last.
func (s *sizes) seed(first, last uint64, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.marks) == 0 {
		s.marks = append(s.marks, sizeMark{index: first - 1})
	}
	s.last = sizeMark{index: last, total: s.last.total + bytes}
	s.marks = append(s.marks, s.last)
	s.base = s.last.total
}

func (s *sizes) add(index uint64, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.marks) == 0 {
		s.marks = append(s.marks, sizeMark{index: index - 1, total: s.last.total})
	}
	s.last = sizeMark{index: index, total: s.last.total + bytes}
	if s.last.total-s.marks[len(s.marks)-1].total >= sizeStep {
		s.marks = append(s.marks, s.last)
	}
}

// cutHead forgets what it can of the marks up to index.
func (s *sizes) cutHead(index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if index >= s.last.index {
		s.marks = nil
	} else if i := s.below(index); i > 0 {
		s.marks = slices.Delete(s.marks, 0, i)
	}
}

// cutTail forgets marks above index; the bytes there count as written all the same.
func (s *sizes) cutTail(index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = slices.DeleteFunc(s.marks, func(m sizeMark) bool { return m.index > index })
	s.last.index = min(s.last.index, index)
}

// below returns the place of the last mark at or below index, -1 if there is none.
func (s *sizes) below(index uint64) int {
	return sort.Search(len(s.marks), func(i int) bool { return s.marks[i].index > index }) - 1
}

func (s *sizes) after(index uint64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.marks) == 0 || s.last.index <= index {
		return 0
	}
	i := s.below(index)
	if i < 0 {
		return s.last.total - s.marks[0].total
	}
	low, high := s.marks[i], s.last
	if i+1 < len(s.marks) {
		high = s.marks[i+1]
	}
	share := float64(high.index-index) / float64(high.index-low.index) // of the step that index is in
	return s.last.total - high.total + int64(share*float64(high.total-low.total))
}

func (s *sizes) within(bytes int64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.marks {
		if s.last.total-m.total <= bytes && m.index < s.last.index {
			return s.last.index - m.index
		}
	}
	return 1
}

func (s *sizes) written() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.total - s.base
}

// latencies keeps the durations of the last few thousand fsyncs of the log. All methods may be called concurrently.
type latencies struct {
	mu    sync.Mutex
	ring  [4096]time.Duration
	count int // of all that were ever added
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.count%len(l.ring)] = d
	l.count++
}

// quantile returns the duration that a share of q (0 to 1) of those kept does not exceed; 0 if there are none.
func (l *latencies) quantile(q float64) time.Duration {
	l.mu.Lock()
	kept := slices.Clone(l.ring[:min(l.count, len(l.ring))])
	l.mu.Unlock()
	if len(kept) == 0 {
		return 0
	}
	slices.Sort(kept)
	return kept[min(int(q*float64(len(kept))), len(kept)-1)]
}
