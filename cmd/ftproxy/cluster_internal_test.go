package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

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
