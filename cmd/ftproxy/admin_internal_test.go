package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"ftproxy/logbuffer"
	"ftproxy/proxy/proxytest"
)

// letters returns what /dead shows, once it shows n.
func (r *running) letters(query string, n int) deadPage {
	r.t.Helper()
	var page deadPage
	proxytest.Until(r.t, patience, fmt.Sprintf("%d dead letters", n), func() bool {
		status, body := r.admin("GET", "/dead"+query)
		page = deadPage{}
		if err := json.Unmarshal([]byte(body), &page); err != nil || status != http.StatusOK {
			r.t.Fatalf("%d %s", status, body)
		}
		return len(page.Letters) == n
	})
	return page
}

func TestDeadLetters(t *testing.T) {
	a := newApp(t, "")
	a.answer(http.StatusBadRequest)
	r := start(t, t.TempDir(), a.URL+"?final_attempts=1")
	r.ready()
	for _, value := range []string{"a", "\xff", "c"} {
		r.post(value)
	}
	page := r.letters("", 3)
	first, second := page.Letters[0], page.Letters[1]
	if first.Value == nil || *first.Value != "a" || first.Reader != "http" || !strings.Contains(first.Reason, "400") ||
		first.Attempts != 1 || second.Value != nil || string(second.Value64) != "\xff" ||
		page.After != page.Letters[2].Offset {
		t.Errorf("%+v", page)
	}
	if p := r.letters("?max=1", 1); p.After != first.Offset {
		t.Errorf("%+v", p)
	}
	if p := r.letters(fmt.Sprintf("?max=2&after=%d", first.Offset), 2); p.Letters[0].Offset != second.Offset {
		t.Errorf("%+v", p)
	}
	a.answer(http.StatusOK)
	if status, body := r.admin("POST", fmt.Sprintf("/dead/%d/requeue", first.Offset)); status != http.StatusOK {
		t.Errorf("requeue: %d %s", status, body)
	}
	a.want(t, "a")
	if status, body := r.admin("DELETE", fmt.Sprintf("/dead/%d", second.Offset)); status != http.StatusOK {
		t.Errorf("delete: %d %s", status, body)
	}
	if p := r.letters("", 1); *p.Letters[0].Value != "c" {
		t.Errorf("%+v", p)
	}
	for _, tc := range []struct {
		method, path string
		want         int
	}{
		{"POST", fmt.Sprintf("/dead/%d/requeue", first.Offset), http.StatusNotFound}, // it is gone
		{"DELETE", "/dead/12345", http.StatusNotFound},
		{"DELETE", "/dead/x", http.StatusBadRequest},
		{"GET", "/dead?after=x", http.StatusBadRequest},
		{"PUT", "/dead/1", http.StatusMethodNotAllowed},
		{"GET", "/elsewhere", http.StatusNotFound},
		{"POST", "/stages/sink/nobody/resume", http.StatusConflict},
	} {
		if status, body := r.admin(tc.method, tc.path); status != tc.want {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, status, body)
		}
	}
	a.want(t, "a") // and nothing else
}

// TestOtherOrigins: a page that a browser shows must not be able to requeue or drop.
func TestOtherOrigins(t *testing.T) {
	r := start(t, t.TempDir(), newApp(t, "").URL)
	url := "http://" + (*r.node.bound.Load()).String() + "/dead/1"
	request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Origin", "https://elsewhere.example")
	request.Header.Set("Sec-Fetch-Site", "cross-site")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("status %d", response.StatusCode)
	}
}

// TestLedgerIsShown: what /status and /metrics say of a few tuples, some repeated.
func TestLedgerIsShown(t *testing.T) {
	a := newApp(t, "")
	r := start(t, t.TempDir(), a.URL, "FTPROXY_DEDUP=content")
	r.ready()
	for _, value := range []string{"a", "b", "a", "c"} {
		if status, body := r.post(value); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	a.want(t, "a", "b", "c")
	var page statusPage
	proxytest.Until(t, patience, "the ledger to add up", func() bool {
		_, body := r.admin("GET", "/status")
		page = statusPage{}
		if err := json.Unmarshal([]byte(body), &page); err != nil {
			t.Fatal(err)
		}
		reader := page.Buffers[0].Readers[0]
		return reader.Received == 4 && reader.Delivered == 3 && reader.Duplicate == 1 && reader.Retained == 0
	})
	if page.Role != "leader" || !page.Ready || page.Recovery != "rollback" || len(page.Stages) != 2 ||
		page.Dedup.IDs != 3 {
		t.Errorf("%+v", page)
	}
	_, metrics := r.admin("GET", "/metrics")
	for _, want := range []string{
		`ftproxy_tuples_total{buffer="in",name="ftproxy",outcome="delivered",reader="http"} 3`,
		`ftproxy_tuples_total{buffer="in",name="ftproxy",outcome="deduplicated",reader="http"} 1`,
		`ftproxy_buffer_unread{buffer="in",name="ftproxy"} 0`,
		`ftproxy_reader_retained_bytes{buffer="in",name="ftproxy",reader="http"} 0`,
		`ftproxy_reader_left_behind{buffer="in",name="ftproxy",reader="http"} 0`,
		`ftproxy_leader{name="ftproxy"} 1`,
		`ftproxy_stage_state{kind="sink",name="ftproxy",stage="http",state="running"} 1`,
		`ftproxy_requests_total{name="ftproxy",outcome="accepted",source="http"} 4`,
		`ftproxy_fsync_seconds{name="ftproxy",quantile="0.999"}`,
		"go_goroutines",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// TestSeriesStayFlat: clients cannot make metric series.
func TestSeriesStayFlat(t *testing.T) {
	r := start(t, t.TempDir(), newApp(t, "").URL)
	r.ready()
	count := func() int {
		_, metrics := r.admin("GET", "/metrics")
		return strings.Count(metrics, "\nftproxy_")
	}
	r.post("first")
	before := count()
	for i := range 50 {
		addr := "http://" + r.node.sources[0].listens().Addr().String()
		ask(t, "POST", addr+fmt.Sprintf("/in%d", i), "x")
		ask(t, "POST", addr+"/in/sessions", "")
	}
	if after := count(); after != before {
		t.Errorf("%d series became %d", before, after)
	}
}

// TestDeadPagesAreBounded: large letters come in several pages, each of which says where the next begins.
func TestDeadPagesAreBounded(t *testing.T) {
	const letters, size = 40, 1 << 20
	value := make([]byte, size)
	list := func(after uint64, limit int) ([]logbuffer.Letter, error) {
		var all []logbuffer.Letter
		for offset := after + 1; offset <= letters && len(all) < limit; offset++ {
			all = append(all, logbuffer.Letter{Offset: offset, Tuple: logbuffer.Tuple{Value: value}})
		}
		return all, nil
	}
	var after, seen uint64
	for {
		page, err := collect(list, after, deadMost)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Letters) == 0 {
			break
		}
		if len(page.Letters) > deadBytes/size+deadStep {
			t.Errorf("a page of %d MiB", len(page.Letters))
		}
		after, seen = page.After, seen+uint64(len(page.Letters))
	}
	if seen != letters {
		t.Errorf("%d of %d letters seen", seen, letters)
	}
}
