package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"ftproxy/proxy/proxytest"
)

// trio starts three nodes.
func trio(t *testing.T, sink string, more ...string) []*running {
	t.Helper()
	peers := fmt.Sprintf("FTPROXY_PEERS=a=%s,b=%s,c=%s", freeAddr(t), freeAddr(t), freeAddr(t))
	var all []*running
	for _, name := range []string{"a", "b", "c"} {
		environ := append([]string{peers, "FTPROXY_NODE=" + name, "FTPROXY_ELECTION_TIMEOUT=300ms"}, more...)
		all = append(all, start(t, t.TempDir(), sink, environ...))
	}
	for _, r := range all {
		r.ready()
	}
	return all
}

func (r *running) role() string {
	r.t.Helper()
	_, body := r.admin("GET", "/status")
	var page statusPage
	if err := json.Unmarshal([]byte(body), &page); err != nil {
		r.t.Fatal(err)
	}
	return page.Role
}

// TestThreeNodes: any node takes tuples and answers for dead letters; an orderly end of the leader hands over, and what
// it could not deliver the next one does.
func TestThreeNodes(t *testing.T) {
	a := newApp(t, "")
	a.answer(http.StatusBadRequest)
	nodes := trio(t, a.URL+"?final_attempts=1", "FTPROXY_DRAIN_TIMEOUT=100ms", "FTPROXY_DEDUP=content")
	for i, r := range nodes {
		if status, body := r.post(fmt.Sprint(i)); status != http.StatusOK {
			t.Fatalf("node %d: %d %s", i, status, body)
		}
	}
	for _, r := range nodes {
		r.letters("", 3)
	}
	var leader *running
	proxytest.Until(t, patience, "one leader", func() bool {
		for _, r := range nodes {
			if r.role() == "leader" {
				leader = r
			}
		}
		return leader != nil
	})
	var followers []*running
	for _, r := range nodes {
		if r != leader {
			followers = append(followers, r)
		}
	}
	if status, body := followers[0].admin("DELETE", "/dead/1"); status != http.StatusOK {
		t.Errorf("a follower: %d %s", status, body)
	}
	leader.letters("", 2)

	a.answer(http.StatusServiceUnavailable)
	if status, body := leader.post("last"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	leader.stop()
	if err := leader.wait(); err != nil && !strings.Contains(err.Error(), errUnclean.Error()) {
		t.Errorf("the leader ended with %v", err)
	}
	a.answer(http.StatusOK)
	a.want(t, "last")
	proxytest.Until(t, patience, "the others to go on", func() bool {
		status, _ := followers[1].post("more")
		return status == http.StatusOK
	})
	a.want(t, "last", "more") // the repeats of the loop are dropped: the id is the content
}

// TestRollingRestart: under a backlog a leader hands over at once if the others can go on without it, and the next one
// delivers; if they cannot, it drains.
func TestRollingRestart(t *testing.T) {
	a := newApp(t, "")
	a.answer(http.StatusServiceUnavailable)
	nodes := trio(t, a.URL, "FTPROXY_DRAIN_TIMEOUT=1h")
	if status, body := nodes[0].post("x"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	leader := leaderOf(t, nodes)
	leader.stop()
	if err := leader.wait(); err != nil {
		t.Errorf("the first leader: %v", err)
	}
	nodes = slices.DeleteFunc(nodes, func(r *running) bool { return r == leader })
	leader = leaderOf(t, nodes)
	proxytest.Until(t, patience, "the second leader to try", func() bool { return leader.node.retained("http") > 0 })
	leader.stop()
	<-leader.node.closing
	select {
	case err := <-leader.done:
		t.Fatalf("did not drain although nobody can go on: %v", err)
	case <-time.After(3 * peerTimeout / 2):
	}
	a.answer(http.StatusOK)
	a.want(t, "x")
	if err := leader.wait(); err != nil {
		t.Errorf("the second leader: %v", err)
	}
}

func leaderOf(t *testing.T, nodes []*running) (leader *running) {
	t.Helper()
	proxytest.Until(t, patience, "a leader that is ready", func() bool {
		for _, r := range nodes {
			if status, _ := r.admin("GET", "/readyz"); status == http.StatusOK && r.role() == "leader" {
				leader = r
			}
		}
		return leader != nil
	})
	return leader
}
