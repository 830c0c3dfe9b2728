package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"ftproxy/replica"
)

// recoverCmd is `ftproxy recover`: the way out after a quorum was lost for good. It takes the configuration of the node
// whose data is to be the new beginning; the node must be stopped.
type recoverCmd struct {
	Yes bool `help:"Do it: tuples that only the lost nodes had are gone, and upstreams see a new lineage."`
}

// Run changes the data folder, or says what it would do.
func (r *recoverCmd) Run(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	c, err := load(os.Environ(), host)
	if err != nil {
		return err
	}
	if !r.Yes {
		return errors.New("recover would make " + c.DataDir + " the start of a new life of the log: what was not yet " +
			"committed counts as committed, what only other nodes had is lost, and the other nodes must start with empty " +
			"folders. Choose the node that has most (the highest last_index in /status), stop all nodes, and repeat " +
			"with --yes")
	}
	n, err := newNode(c, newLogger(os.Stderr, c))
	if err != nil {
		return err
	}
	lineage, err := replica.Recover(ctx, n.replicaConfig())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(os.Stdout, "recovered as lineage %s; start this node, then the others with empty folders\n",
		lineage)
	return err
}
