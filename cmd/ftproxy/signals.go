package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// untilSignal returns a context that ends with the first SIGTERM or SIGINT. The second one ends the process at once, as
// if nobody had listened to it. stop takes the signals' usual effect back.
func untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2) // none is missed, however close they come
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stopped := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		for n := 1; ; n++ {
			select {
			case s := <-signals:
				if n == 1 {
					cancel(fmt.Errorf("signal %v", s))
					continue
				}
				raise(s)
				return
			case <-stopped:
				return
			}
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(stopped)
		waiting.Wait()
		cancel(nil)
	}
}

// raise has a signal's usual effect on this process.
func raise(s os.Signal) {
	signal.Reset(s)
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Signal(s) // there is nothing that could be done about an error
	}
}
