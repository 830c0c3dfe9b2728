package kafkaio_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"ftproxy/proxy/kafkaio"
	"ftproxy/proxy/proxytest"
)

// The broker is killed while records flow through a source, a log and a sink, and comes back with its data.
func TestBrokerIsKilledUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("a real Kafka is left out because of -short")
	}
	b, err := startBroker(filepath.Join(t.TempDir(), "kafka"), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.kill() })
	from, to := b.topic(t, "from", 1), b.topic(t, "to", 3)
	log := proxytest.NewLog("lin")
	out := log.Outlet("sink")
	source := read(t, b, from, log)
	sink := lead(t, b, to, out, func(c *kafkaio.SinkConfig) { c.TxnBytes = 4 << 10 })
	n := 0
	put := func(count int) {
		records := values(n, count, 0)
		for i := range records {
			records[i].Topic, records[i].Key = from, []byte{byte('a' + i%17)}
			b.client.Produce(t.Context(), records[i], func(_ *kgo.Record, err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}
		n += count
	}
	for range 2 {
		put(1000)
		if err := out.WaitAcked(proxytest.Within(t, time.Minute), uint64(n-500)); err != nil {
			t.Fatal(err)
		}
		b.kill()
		put(1000)
		proxytest.Until(t, 30*time.Second, "both name the outage", func() bool {
			idle := out.Acked() == log.End() // a sink that has nothing to write need not notice
			return source.source.Stats().LastError != "" && (idle || sink.sink.Stats().LastError != "")
		})
		if err := b.start(""); err != nil {
			t.Fatal(err)
		}
	}
	put(1000)
	if err := out.WaitAcked(proxytest.Within(t, 2*time.Minute), uint64(n)); err != nil {
		t.Fatalf("%v: %+v, %+v", err, source.source.Stats(), sink.sink.Stats())
	}
	judge(t, b.consume(t, to, 3), n, "lin")
	proxytest.Until(t, 30*time.Second, "no trouble is left", func() bool {
		return source.source.Stats().LastError == "" && sink.sink.Stats().LastError == ""
	})
}
