package httpio_test

import (
	"net/http"
	"strings"
	"testing"

	"ftproxy/proxy/proxytest"
)

// TestSourceRefusesWhatItWouldGuess: nothing that a request says is taken for something else in silence.
func TestSourceRefusesWhatItWouldGuess(t *testing.T) {
	deep := strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001)
	asJSON := []string{"Content-Type", "application/json"}
	for _, c := range []struct {
		name, query, body string
		headers           []string
		want              string
	}{
		{"misspelt query", "?splt=array", "[1]", asJSON, `"splt", which is unknown; did you mean split?`},
		{"two queries", "?split=array&split=array", "[1]", asJSON, "?split=array,array is unknown"},
		{"malformed query", "?split=%zz", "[1]", asJSON, "the query is malformed"},
		{"two ids", "", "v", []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, "Idempotency-Key stands 2 times"},
		{"two keys", "", "v", []string{"Ftproxy-Key", "a", "Ftproxy-Key", "a"}, "Ftproxy-Key stands 2 times"},
		{"nested", "", deep, asJSON, "the body is JSON that is nested deeper than 10,000"},
		{"nested line", "", "1\n" + deep, []string{"Content-Type", "application/x-ndjson"}, "line 2 is JSON that is nested"},
		{"nested elements", "?split=array", deep, asJSON, "nested deeper than 10,000"},
		{"nested event", "", deep, []string{"Content-Type", "application/cloudevents+json"}, "nested deeper than 10,000"},
		{"no event", "", "{", []string{"Content-Type", "application/cloudevents+json"}, "the event is not JSON"},
		{"no line", "", "1\n{", []string{"Content-Type", "application/x-ndjson"}, "line 2 is not JSON"},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := proxytest.NewLog("lin")
			got := post(t, newSource(t, nil).Handler(log), "/orders"+c.query, c.body, c.headers...)
			if got.status != http.StatusBadRequest || !strings.Contains(got.body.Error, c.want) || len(log.Tuples()) != 0 {
				t.Errorf("%d %s", got.status, got.body.Error)
			}
		})
	}
}
