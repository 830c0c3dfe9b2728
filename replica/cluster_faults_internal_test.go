package replica

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// runs is how often each random cluster test is run; FTPROXY_TEST_RUNS overrides it.
func runs(t *testing.T, def int) int {
	t.Helper()
	if v, err := strconv.Atoi(os.Getenv("FTPROXY_TEST_RUNS")); err == nil {
		return v
	}
	if testing.Short() {
		return 1
	}
	return def
}

// TestThreeNodesSurviveFaults kills, cuts off and deposes nodes at random under traffic. Nothing may be lost, twice or
// out of order, and the replicas must agree.
func TestThreeNodesSurviveFaults(t *testing.T) {
	for run := range runs(t, 10) {
		seed := uint64(time.Now().UnixNano()) + uint64(run)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := underFaults(t, seed, nil); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestMutantWithoutDedupAtApplyDuplicates leaves deduplication to who sends: what is repeated because its outcome was
// unknown then comes twice.
func TestMutantWithoutDedupAtApplyDuplicates(t *testing.T) {
	for seed := range uint64(5) {
		var err error
		synctest.Test(t, func(t *testing.T) {
			err = underFaults(t, seed, func(c *Config) { c.hooks.state.admitAll = true })
		})
		if err != nil {
			t.Log(err)
			return
		}
	}
	t.Fatal("five runs without deduplication had no duplicate: the test above proves nothing")
}

func underFaults(t *testing.T, seed uint64, tune func(*Config)) error {
	t.Helper()
	c := newCluster(t, tune)
	c.ready()
	tr := newTraffic(c, seed)
	names := []string{"a", "b", "c"}
	producing, stopProducing := context.WithCancel(t.Context())
	consuming, stopConsuming := context.WithCancel(t.Context())
	var producers, consumers sync.WaitGroup
	for i := range 3 {
		r := rand.New(rand.NewPCG(seed, uint64(i)+7))
		producers.Go(func() { //nolint:contextcheck // it finishes its batch after ctx has ended
			tr.produce(producing.Done(), fmt.Sprintf("s%d", i), names, r)
		})
	}
	for _, name := range names {
		n := c.node(name)
		consumers.Go(func() { tr.consume(consuming, n) })
	}
	for range 12 {
		wait(t.Context(), time.Duration(200+tr.rand.IntN(2000))*time.Millisecond)
		victim := names[tr.rand.IntN(3)]
		switch tr.rand.IntN(4) {
		case 0:
			c.kill(victim)
			wait(t.Context(), time.Duration(tr.rand.IntN(3000))*time.Millisecond)
			n := c.start(victim)
			consumers.Go(func() { tr.consume(consuming, n) })
		case 1:
			rest := slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == victim })
			c.net.separate(true, []string{victim}, rest)
			wait(t.Context(), time.Duration(tr.rand.IntN(3000))*time.Millisecond)
			c.net.heal()
		case 2:
			c.net.separate(true, []string{victim}, []string{names[tr.rand.IntN(3)]})
			wait(t.Context(), time.Duration(tr.rand.IntN(3000))*time.Millisecond)
			c.net.heal()
		case 3:
			if n := c.node(victim); n.raft() != nil {
				_ = n.raft().LeadershipTransfer().Error() // it may not lead
			}
		}
	}
	stopProducing()
	producers.Wait()
	err := tr.judge(t)
	c.ready()
	c.agree()
	stopConsuming()
	c.stop()
	consumers.Wait()
	return err
}
