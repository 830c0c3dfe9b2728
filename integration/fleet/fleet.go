package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Config describes the replicas of one ftproxy.
type Config struct {
	// Binary is the ftproxy program.
	Binary string
	// Dir holds a folder of data and a log file for each replica.
	Dir string
	// Name is FTPROXY_NAME, Replicas the number of them.
	Name     string
	Replicas int
	// Source and Sink are the endpoints; "PORT" in Source becomes the replica's own source port.
	Source, Sink string
	// Env holds further variables, the same for all.
	Env map[string]string
}

// Fleet is the replicas of one ftproxy. Its methods may be called concurrently, but one replica must be started and
// ended by one caller at a time.
type Fleet struct {
	Replicas []*Replica
}

// Replica is one of them.
type Replica struct {
	// Node is FTPROXY_NODE.
	Node string
	// SourcePort is where a listening source listens, AdminPort where the admin endpoint does.
	SourcePort, AdminPort int
	// Log is the file with the replica's output, Data its data folder.
	Log, Data string

	spec Spec

	mu      sync.Mutex
	process *Process // nil before the first start
}

// New picks ports and writes nothing but folders; Start starts the processes.
func New(ctx context.Context, c Config) (*Fleet, error) {
	ports, err := FreePorts(ctx, 3*c.Replicas)
	if err != nil {
		return nil, err
	}
	f := &Fleet{}
	var peers []string
	for i := range c.Replicas {
		r := &Replica{
			Node:       fmt.Sprintf("%s-%d", c.Name, i),
			SourcePort: ports[3*i],
			AdminPort:  ports[3*i+1],
		}
		r.Data = filepath.Join(c.Dir, r.Node)
		r.Log = filepath.Join(c.Dir, r.Node+".log")
		peers = append(peers, r.Node+"="+LoopbackAddr(ports[3*i+2]))
		f.Replicas = append(f.Replicas, r)
	}
	for _, r := range f.Replicas {
		if err := os.MkdirAll(r.Data, 0o755); err != nil {
			return nil, err
		}
		env := map[string]string{
			"NAME":       c.Name,
			"NODE":       r.Node,
			"SOURCE":     strings.ReplaceAll(c.Source, "PORT", fmt.Sprint(r.SourcePort)),
			"SINK":       c.Sink,
			"DATA_DIR":   r.Data,
			"ADMIN_ADDR": LoopbackAddr(r.AdminPort),
		}
		if c.Replicas > 1 {
			env["PEERS"] = strings.Join(peers, ",")
		}
		maps.Copy(env, c.Env)
		r.spec = Spec{Path: c.Binary, Args: []string{"run"}, Log: r.Log}
		for name, value := range env {
			r.spec.Env = append(r.spec.Env, "FTPROXY_"+name+"="+value)
		}
	}
	return f, nil
}

// Start starts every replica that does not run.
func (f *Fleet) Start() error {
	for _, r := range f.Replicas {
		if err := r.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Kill ends every replica with SIGKILL, all at the same time.
func (f *Fleet) Kill() {
	var wait sync.WaitGroup
	for _, r := range f.Replicas {
		wait.Go(r.Kill)
	}
	wait.Wait()
}

// Stop ends every replica in an orderly way; those that had to be killed or failed are named in the error.
func (f *Fleet) Stop(patience time.Duration) error {
	faults := make([]error, len(f.Replicas))
	var wait sync.WaitGroup
	for i, r := range f.Replicas {
		wait.Go(func() { faults[i] = r.Stop(patience) })
	}
	wait.Wait()
	return errors.Join(faults...)
}

// Ready waits until every replica says that it is ready.
func (f *Fleet) Ready(ctx context.Context) error {
	for _, r := range f.Replicas {
		var last error
		err := Poll(ctx, r.Node+" to be ready", 50*time.Millisecond, func() bool {
			_, last = r.Get(ctx, "/readyz")
			return last == nil
		})
		if err != nil {
			return fmt.Errorf("%w; last answer: %w", err, last)
		}
	}
	return nil
}

// Leader waits until a replica says that it leads and returns it: the one of the highest term, if several say so.
func (f *Fleet) Leader(ctx context.Context) (*Replica, error) {
	var leader *Replica
	err := Poll(ctx, "a leader", 20*time.Millisecond, func() bool {
		leader = f.leader(ctx)
		return leader != nil
	})
	return leader, err
}

func (f *Fleet) leader(ctx context.Context) *Replica {
	statuses := make([]*Status, len(f.Replicas))
	var wait sync.WaitGroup
	for i, r := range f.Replicas {
		wait.Go(func() {
			if status, err := r.Status(ctx); err == nil {
				statuses[i] = status
			}
		})
	}
	wait.Wait()
	var leader *Replica
	var term uint64
	for i, status := range statuses {
		if status != nil && status.Role == "leader" && status.Term > term {
			leader, term = f.Replicas[i], status.Term
		}
	}
	return leader
}

// Start starts the replica unless it runs.
func (r *Replica) Start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process != nil && r.process.Running() {
		return nil
	}
	process, err := Start(r.spec)
	if err != nil {
		return err
	}
	r.process = process
	return nil
}

// Process returns the replica's current process, nil before the first start.
func (r *Replica) Process() *Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// Kill ends the replica with SIGKILL.
func (r *Replica) Kill() {
	if p := r.Process(); p != nil {
		p.Kill()
	}
}

// Tail returns the last lines of the replica's log.
func (r *Replica) Tail(lines int) string {
	text, err := os.ReadFile(r.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Stop ends the replica in an orderly way; see Process.Stop.
func (r *Replica) Stop(patience time.Duration) error {
	p := r.Process()
	if p == nil {
		return nil
	}
	if err := p.Stop(patience); err != nil {
		return fmt.Errorf("%s: %w", r.Node, err)
	}
	return nil
}
