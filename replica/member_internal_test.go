package replica

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWhatANodeWithoutAGroupDoes(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c"}
	empty := func(name string) answer { return answer{ID: serverID(name + "#1"), Condition: isEmpty} }
	damaged := func(name string) answer { return answer{ID: serverID(name + "#1"), Condition: isQuarantined} }
	voters := []Member{{"a", "a#0", true}, {"b", "b#1", true}, {"c", "c#1", true}}
	has := func(name, life, leader string, members ...Member) answer {
		return answer{
			ID: serverID(name + "#1"), Condition: hasState, Lineage: life, Leader: serverID(leader), Members: members,
		}
	}
	type answers map[string]answer
	bEmpty := answers{"b": empty("b"), "c": empty("c")}
	for name, test := range map[string]struct {
		self        serverID
		quarantined bool
		names       []string
		answers     answers
		want        courseKind
		why         string
	}{
		"alone":            {self: "a#1", names: []string{"a"}, want: courseBootstrap},
		"alone, damaged":   {self: "a#1", names: []string{"a"}, quarantined: true, want: courseLost, why: "quarantined"},
		"nobody answers":   {self: "a#1", want: courseWait, why: "answer of b, c"},
		"one is silent":    {self: "a#1", answers: answers{"b": empty("b")}, want: courseWait, why: "of c"},
		"all empty, first": {self: "a#1", answers: bEmpty, want: courseBootstrap},
		"all empty, not first": {
			self: "b#1", answers: answers{"a": empty("a"), "c": empty("c")}, want: courseWait, why: "node a",
		},
		"others empty, self damaged": {
			self: "a#1", quarantined: true, answers: bEmpty, want: courseLost, why: "that of a is quarantined",
		},
		"one damaged, rest empty": {
			self: "a#1", answers: answers{"b": damaged("b"), "c": empty("c")}, want: courseLost, why: "that of b",
		},
		"bootstrapped by another": {
			self: "c#1", answers: answers{"a": has("a", "x", "", voters...)}, want: courseFollow,
		},
		"member, but damaged, no leader": {
			self: "c#1", quarantined: true, answers: answers{"a": has("a", "x", "", voters...)}, want: courseWait,
			why: "of b",
		},
		"a leader": {
			self: "a#1", answers: answers{"b": has("b", "x", "c#1", voters...)}, want: courseJoin,
		},
		"damaged, and a leader": {
			self: "a#1", quarantined: true, answers: answers{"b": has("b", "x", "c#1", voters...)}, want: courseJoin,
		},
		"a quorum without a leader": {
			self: "a#1", answers: answers{"b": has("b", "x", "", voters...), "c": has("c", "x", "", voters...)},
			want: courseWait, why: "elect",
		},
		"one of three left": {
			self: "a#1", answers: answers{"b": has("b", "x", "", voters...), "c": empty("c")},
			want: courseLost, why: "1 of 3 voters",
		},
		"two lives": {
			self: "a#1", answers: answers{"b": has("b", "x", "", voters...), "c": has("c", "y", "", voters...)},
			want: courseWait, why: "different lives",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.names == nil {
				test.names = names
			}
			got := seeking{self: test.self, quarantined: test.quarantined, names: test.names, answers: test.answers}.decide()
			if got.do != test.want || !strings.Contains(got.why, test.why) {
				t.Errorf("got %+v, want %d because of %q", got, test.want, test.why)
			}
		})
	}
}

// TestReplacedServerEnds brings back the data of a node that was replaced meanwhile: it must not wait for ever for a
// group that has another server of its name.
func TestReplacedServerEnds(t *testing.T) {
	t.Parallel()
	c := newTCPCluster(t, func(c *Config) { c.ElectionTimeout = 200 * time.Millisecond })
	c.ready()
	old := c.node("c").identity().id
	c.kill("c")
	dir, aside := filepath.Join(c.dir, "c"), filepath.Join(c.dir, "aside")
	if err := os.Rename(dir, aside); err != nil {
		t.Fatal(err)
	}
	c.becomesVoter(c.start("c"), old)
	c.kill("c")
	if err := errors.Join(os.RemoveAll(dir), os.Rename(aside, dir)); err != nil {
		t.Fatal(err)
	}
	if err := ends(t, c.start("c")); !errors.Is(err, ErrRemoved) || !strings.Contains(err.Error(), string(old)) {
		t.Fatal(err)
	}
}
