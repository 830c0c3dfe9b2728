package replica

import (
	"errors"
	"strings"
	"testing"
	"time"

	"ftproxy/logbuffer"
)

func TestConfigNamesEveryMistake(t *testing.T) {
	t.Parallel()
	good := func() Config {
		return Config{
			Name: "op", Node: "a", DataDir: "/data",
			Peers: map[string]string{"a": "127.0.0.1:1", "b": "127.0.0.1:2", "c": "127.0.0.1:3"},
		}
	}
	for name, test := range map[string]struct {
		change func(c *Config)
		want   []string // nothing: it is admitted
	}{
		"three on loopback":      {change: func(*Config) {}},
		"one without a listener": {change: func(c *Config) { c.Peers = nil }},
		"two": {
			change: func(c *Config) { delete(c.Peers, "c") }, want: []string{"2 peers tolerate no more failures than 1"},
		},
		"two, forced": {change: func(c *Config) { delete(c.Peers, "c"); c.AllowEven = true }},
		"all names": {
			change: func(c *Config) { c.Name, c.Node, c.DataDir = "", "x/y", "" },
			want:   []string{"name the operator", "every node a name", "data folder", "not among the peers"},
		},
		"open to the network": {
			change: func(c *Config) { c.ListenAddr = ":7400" }, want: []string{"allow insecure links explicitly"},
		},
		"open to the network, allowed": {change: func(c *Config) { c.ListenAddr, c.Insecure = ":7400", true }},
		"open to the network, secured": {change: func(c *Config) {
			c.ListenAddr, c.TLS = ":7400", TLSFiles{CertFile: "c", KeyFile: "k", CAFile: "a"}
		}},
		"half of TLS": {
			change: func(c *Config) { c.TLS.CertFile = "c" }, want: []string{"all three or none"},
		},
		"addresses": {
			change: func(c *Config) { c.Peers["b"], c.Peers["c"] = "nowhere", "127.0.0.1:1" },
			want:   []string{`"b"="nowhere"`, `"a" and "c" have the same address`},
		},
		"hasty": {
			change: func(c *Config) { c.ElectionTimeout = 10 * time.Millisecond }, want: []string{"100ms to 30s"},
		},
		"huge tuples": {
			change: func(c *Config) { c.Limits.TupleBytes = 1 << 30 }, want: []string{"tuple limit"},
		},
		"readers of one name": {
			change: func(c *Config) { c.Readers = []logbuffer.Reader{{Name: "x"}, {Name: "x"}} }, want: []string{`"x"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := good()
			test.change(&c)
			err := c.withDefaults().validate()
			if (err == nil) != (len(test.want) == 0) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			for _, want := range test.want {
				if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want …%s…", err, want)
				}
			}
		})
	}
}
