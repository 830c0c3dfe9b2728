package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"ftproxy/integration/traffic"
)

// runUpstream is the demo's upstream process.
func (c *demoCmd) runUpstream(ctx context.Context) error {
	sender := &traffic.Sender{
		Targets: c.Target, Stream: demoStream, Total: c.Tuples, Size: demoTupleSize, Batch: demoBatch, Rate: c.Rate,
		Notes: c.File, NoteEach: demoNoteEach, Seed: c.Seed,
		Sending: func(first, last int64) { _, _ = fmt.Fprintln(os.Stdout, "send", first, last) },
		Failed:  func(err error) { _, _ = fmt.Fprintln(os.Stderr, err) },
	}
	return sender.Run(ctx)
}

// runDownstream is the demo's downstream process.
func (c *demoCmd) runDownstream(ctx context.Context) error {
	receiver, err := traffic.OpenReceiver(c.File)
	if err != nil {
		return err
	}
	receiver.Stored = func(all, repeats int) { _, _ = fmt.Fprintln(os.Stdout, "stored", all, repeats) }
	receiver.Stored(receiver.Count(), 0)
	server, err := traffic.Serve(ctx, c.Listen, receiver)
	if err != nil {
		return errors.Join(err, receiver.Close())
	}
	<-ctx.Done() // which is not: it ends by being killed
	return errors.Join(server.Close(), receiver.Close())
}
