package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"ftproxy/integration/topic"
)

// patience is how long the auditor waits for the next tuple.
const patience = 2 * time.Minute

type settings struct {
	brokers, in, out string
	partitions       int
	tuples, rate     int64
	size             int
	stay             bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var s settings
	f := flag.NewFlagSet("load produce|check", flag.ContinueOnError)
	f.StringVar(&s.brokers, "brokers", "kafka:9092", "bootstrap addresses")
	f.StringVar(&s.in, "in", "in", "topic that is written")
	f.StringVar(&s.out, "out", "out", "topic that is checked")
	f.IntVar(&s.partitions, "partitions", 3, "partitions of both topics")
	f.Int64Var(&s.tuples, "tuples", 30_000, "tuples a partition")
	f.Int64Var(&s.rate, "rate", 3_000, "tuples a second, over all partitions")
	f.IntVar(&s.size, "size", 200, "bytes a tuple")
	f.BoolVar(&s.stay, "stay", false, "do not end after the last tuple, but when told to")
	if len(args) == 0 {
		return errors.New("say produce or check")
	}
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "produce":
		return s.produce(ctx)
	case "check":
		return s.check(ctx)
	}
	return fmt.Errorf("%q: say produce or check", args[0])
}

// produce creates both topics and writes the first.
func (s *settings) produce(ctx context.Context) error {
	if err := s.create(ctx); err != nil {
		return err
	}
	u := &topic.Upstream{
		Brokers: strings.Split(s.brokers, ","), Topic: s.in, Partitions: int32(s.partitions), Total: s.tuples,
		Size: s.size, Rate: s.rate, Seed: 1,
	}
	say("sending %d tuples to each of %d partitions of %s", s.tuples, s.partitions, s.in)
	if err := u.Run(ctx); err != nil {
		return err
	}
	say("sent %d tuples, and %d of them again", s.tuples*int64(s.partitions), u.Repeated())
	if s.stay {
		<-ctx.Done()
	}
	return nil
}

// check waits until the second topic has everything and says the verdict; an error is one that is not clean.
func (s *settings) check(ctx context.Context) error {
	if err := s.create(ctx); err != nil {
		return err
	}
	said := time.Now()
	audit := &topic.Audit{
		Brokers: strings.Split(s.brokers, ","), Topic: s.out, Partitions: int32(s.partitions), Total: s.tuples,
		Patience: patience,
		Progress: func(seen int64) {
			if time.Since(said) > 2*time.Second {
				said = time.Now()
				say("%d of %d tuples are in %s", seen, s.tuples*int64(s.partitions), s.out)
			}
		},
	}
	verdict, trail, err := audit.Run(ctx)
	if err != nil {
		return err
	}
	faults, problems := trail.Problems()
	say("VERDICT  %v, faults in headers %d", verdict, faults)
	for _, note := range append(verdict.Notes, problems...) {
		say("  %s", note)
	}
	if !verdict.Clean() || faults > 0 {
		return errors.New("the verdict is not zero")
	}
	return nil
}

// create makes both topics; it waits for Kafka as long as that takes.
func (s *settings) create(ctx context.Context) error {
	for {
		err := topic.Create(ctx, strings.Split(s.brokers, ","), int32(s.partitions), s.in, s.out)
		if err == nil || ctx.Err() != nil {
			return err
		}
		say("waiting for Kafka: %v", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * time.Second):
		}
	}
}

func say(format string, args ...any) {
	_, _ = fmt.Fprintf(os.Stdout, format+"\n", args...)
}
