package replica

import "testing"

// TestMutant switches one protection off at a time. The story that is about it must then go another way.
func TestMutantState(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, story string
		mutant      mutant
	}{
		{"a verdict is forgotten on a repeat", "verdicts_are_kept", mutant{forgetVerdicts: true}},
		{"proposals have no number", "order_of_proposals", mutant{unnumbered: map[string]bool{}}},
		{"dedup before apply", "leader_dies_before_commit", mutant{admitAll: true}},
		{"a requeued letter is judged by dedup", "dead_letters", mutant{requeueDedup: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if v := recover(); v != nil {
					t.Logf("an assertion of the state itself fails: %v", v)
				}
			}()
			if want, got := tell(t, "testdata/stories/"+c.story+".txt", c.mutant); got == want {
				t.Errorf("the story %s goes as it should with its protection off", c.story)
			} else {
				t.Log(firstDifference(want, got))
			}
		})
	}
}
