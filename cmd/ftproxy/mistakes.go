package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// mistake is one thing that is wrong with the configuration.
type mistake struct {
	variable string
	problem  string
	example  string // a value that would do; empty: none is needed to see what to do
}

// mistakes are all of them. As an error it lists each with its variable, problem and example.
type mistakes []mistake

func (m *mistakes) add(variable, example, format string, args ...any) {
	*m = append(*m, mistake{variable: variable, problem: fmt.Sprintf(format, args...), example: example})
}

// sort puts the mistakes in the order of the variables; those of unknown ones come first.
func (m mistakes) sort(fields []field) {
	place := map[string]int{}
	for i, f := range fields {
		place[prefix+f.key], place[prefix+f.key+"_FILE"] = i+1, i+1
	}
	slices.SortStableFunc(m, func(a, b mistake) int {
		return cmp.Or(cmp.Compare(place[a.variable], place[b.variable]), cmp.Compare(a.variable, b.variable))
	})
}

// Error lists the mistakes, a block of lines each.
func (m mistakes) Error() string {
	var s strings.Builder
	if len(m) == 1 {
		s.WriteString("the configuration has 1 mistake:\n")
	} else {
		fmt.Fprintf(&s, "the configuration has %d mistakes:\n", len(m))
	}
	for _, x := range m {
		fmt.Fprintf(&s, "\n  %s\n    problem: %s\n", x.variable, strings.ReplaceAll(x.problem, "\n", "\n             "))
		if x.example != "" {
			fmt.Fprintf(&s, "    example: %s=%s\n", x.variable, x.example)
		}
	}
	return s.String()
}

// nearest returns the name that is closest to what was written, and whether it is close enough to be what was meant.
func nearest(written string, names []string) (string, bool) {
	best, distance := "", len(written)+1
	for _, name := range names {
		if d := editDistance(written, name); d < distance {
			best, distance = name, d
		}
	}
	return best, best != "" && distance <= max(2, len(written)/3)
}

// editDistance counts the insertions, deletions, replacements and exchanges of neighbours that make b of a.
func editDistance(a, b string) int {
	row := func() []int { return make([]int, len(b)+1) }
	before, last, now := row(), row(), row()
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			now[j] = min(last[j]+1, now[j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		before, last, now = last, now, before
	}
	return last[len(b)]
}

// didYouMean words the nearest name, or lists all there are.
func didYouMean(written string, names []string) string {
	if name, ok := nearest(written, names); ok {
		return "did you mean " + name + "?"
	}
	names = slices.Sorted(slices.Values(names))
	return "known are " + strings.Join(names, ", ")
}
