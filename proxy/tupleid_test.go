package proxy_test

import (
	"testing"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
)

func TestIDRules(t *testing.T) {
	type tuple = logbuffer.Tuple
	value := []byte(`{"id":7,"s":"x","deep":[{"a/b":{"m~n":"q"}}],"empty":"","none":null,"obj":{"k":1}}`)
	full := tuple{Key: []byte("k"), Value: value, Headers: []logbuffer.Header{
		{Key: "X-Id", Value: []byte("h")},
		{Key: "null"},
	}}
	for _, c := range []struct {
		rule string
		id   string // hashed; "" if there is none
	}{
		{"none", ""},
		{"key", "k"},
		{"header:x-id", "h"},
		{"header:X-ID", "h"},
		{"header:null", ""},
		{"header:other", ""},
		{"json:/id", "json:7"},
		{"json:/s", "x"},
		{"json:/deep/0/a~1b/m~0n", "q"},
		{"json:/deep/1", ""},
		{"json:/deep/00", ""},
		{"json:/empty", ""},
		{"json:/none", ""},
		{"json:/missing", ""},
		{"json:/s/x", ""},
		{"json:/obj", `json:{"k":1}`},
		{"json:", "json:" + string(value)},
	} {
		r, err := proxy.ParseIDRule(c.rule)
		if err != nil {
			t.Fatal(err)
		}
		if r.String() != c.rule {
			t.Errorf("%s is written as %s", c.rule, r)
		}
		got, ok := r.ID("scope", &full)
		if ok != (c.id != "") || ok && got != proxy.TupleID("scope", []byte(c.id)) {
			t.Errorf("%s: %v, %v", c.rule, got, ok)
		}
		if r.Wanted() != (c.rule != "none") {
			t.Errorf("%s: wanted %v", c.rule, r.Wanted())
		}
		if _, ok := r.ID("scope", &tuple{}); ok && c.rule != "content" {
			t.Errorf("%s: an empty tuple has an id", c.rule)
		}
	}
	for _, bad := range []string{
		"header", "header:", "header:a b", "json:x", "json:/a~2", "json:/~", "id", "key:x",
		"content:",
	} {
		if r, err := proxy.ParseIDRule(bad); err == nil {
			t.Errorf("%s: read as %s", bad, r)
		}
	}
}

func TestIDsDiffer(t *testing.T) {
	content, err := proxy.ParseIDRule("content")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[logbuffer.ID]string{}
	add := func(what string, id logbuffer.ID) {
		if other, ok := seen[id]; ok {
			t.Errorf("%s and %s have one id", what, other)
		}
		seen[id] = what
	}
	for what, tuple := range map[string]logbuffer.Tuple{
		"null null": {}, "empty null": {Key: []byte{}}, "null empty": {Value: []byte{}}, "a b": {
			Key:   []byte("a"),
			Value: []byte("b"),
		},
		"ab empty": {Key: []byte("ab"), Value: []byte{}}, "ab null": {Key: []byte("ab")},
	} {
		id, ok := content.ID("s", &tuple)
		if !ok {
			t.Errorf("%s has no id", what)
		}
		add(what, id)
	}
	add("scope a, id bc", proxy.TupleID("a", []byte("bc")))
	add("scope ab, id c", proxy.TupleID("ab", []byte("c")))
}

// FuzzIDRule: no pointer and no value crash the look-up, and a rule reads what it writes.
func FuzzIDRule(f *testing.F) {
	f.Add("json:/a/0/b~1c", []byte(`{"a":[{"b/c":"x"}]}`))
	f.Add("json:", []byte(`null`))
	f.Fuzz(func(t *testing.T, rule string, value []byte) {
		r, err := proxy.ParseIDRule(rule)
		if err != nil {
			return
		}
		again, err := proxy.ParseIDRule(r.String())
		if err != nil || again.String() != r.String() {
			t.Fatalf("%q is written as %q: %v", rule, r, err)
		}
		a, okA := r.ID("s", &logbuffer.Tuple{Value: value})
		b, okB := again.ID("s", &logbuffer.Tuple{Value: value})
		if a != b || okA != okB {
			t.Fatalf("%q and %q disagree", rule, r)
		}
	})
}
