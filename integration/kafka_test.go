package integration_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ftproxy/integration/checker"
	"ftproxy/integration/fleet"
	"ftproxy/integration/topic"
)

// kafka starts a broker that ends with the test, with topics.
func kafka(t *testing.T, topics ...string) *fleet.Broker {
	t.Helper()
	broker, err := fleet.NewBroker(t.Context(), "kafka.sh", filepath.Join(t.TempDir(), "kafka"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // the first start of all fetches Kafka
	defer cancel()
	t.Cleanup(broker.Kill)
	if err := broker.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := topic.Create(ctx, []string{broker.Addr}, partitions, topics...); err != nil {
		t.Fatal(err)
	}
	return broker
}

// audit judges a topic after everything was delivered, its records' headers included.
func audit(t *testing.T, broker *fleet.Broker, name string, total int64) checker.Verdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	a := &topic.Audit{Brokers: []string{broker.Addr}, Topic: name, Partitions: partitions, Total: total}
	verdict, trail, err := a.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if faults, problems := trail.Problems(); faults > 0 {
		t.Errorf("%d faults in the headers of %s:\n%s", faults, name, strings.Join(problems, "\n"))
	}
	return verdict
}
