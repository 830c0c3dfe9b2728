package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"ftproxy/logbuffer"
	"ftproxy/proxy"
	"ftproxy/replica"
)

// gate is the intake that sources have from the first moment, while the replica is still opening: they listen at once,
// and are told that nothing is taken yet.
type gate struct{ node atomic.Pointer[replica.Node] }

var _ proxy.Intake = (*gate)(nil)

func (g *gate) open() (*replica.Node, error) {
	if node := g.node.Load(); node != nil {
		return node, nil
	}
	return nil, fmt.Errorf("%w: the replica is starting", logbuffer.ErrUnavailable)
}

// Append implements proxy.Intake.
func (g *gate) Append(ctx context.Context, batches ...logbuffer.Batch) ([]logbuffer.Receipt, error) {
	node, err := g.open()
	if err != nil {
		return nil, err
	}
	return node.Append(ctx, batches...)
}

// Position implements proxy.Intake.
func (g *gate) Position(ctx context.Context, source string) (last int64, known bool, err error) {
	node, err := g.open()
	if err != nil {
		return 0, false, err
	}
	return node.Position(ctx, source)
}

// OpenSession implements proxy.Intake.
func (g *gate) OpenSession(ctx context.Context) (string, error) {
	node, err := g.open()
	if err != nil {
		return "", err
	}
	return node.OpenSession(ctx)
}

// Lineage implements proxy.Intake; it is empty while the replica is starting.
func (g *gate) Lineage() string {
	if node := g.node.Load(); node != nil {
		return node.Lineage()
	}
	return ""
}
