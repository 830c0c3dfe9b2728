package fleet

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Broker is a real Kafka of one node on loopback. One caller at a time.
type Broker struct {
	// Addr is its host:port, the same over restarts.
	Addr string

	spec    Spec
	port    int
	process *Process
}

// NewBroker prepares a broker with its data in dir; script is integration/kafka.sh.
func NewBroker(ctx context.Context, script, dir string) (*Broker, error) {
	ports, err := FreePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	script, err = filepath.Abs(script)
	if err != nil {
		return nil, err
	}
	b := &Broker{Addr: LoopbackAddr(ports[0]), port: ports[0]}
	b.spec = Spec{
		Path: script,
		Args: []string{"run", dir, strconv.Itoa(b.port)},
		Log:  filepath.Join(filepath.Dir(dir), filepath.Base(dir)+".log"),
	}
	for _, name := range []string{"PATH", "HOME", "JAVA_HOME", "XDG_CACHE_HOME", "KAFKA_LIBS"} {
		if value, set := os.LookupEnv(name); set {
			b.spec.Env = append(b.spec.Env, name+"="+value)
		}
	}
	return b, nil
}

// Start starts the broker and waits until it takes connections.
func (b *Broker) Start(ctx context.Context) error {
	process, err := Start(b.spec)
	if err != nil {
		return err
	}
	b.process = process
	ended := false
	err = Poll(ctx, "Kafka to listen", 100*time.Millisecond, func() bool {
		ended = !process.Running()
		connection, dialErr := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", b.Addr)
		if dialErr == nil {
			dialErr = connection.Close()
		}
		return dialErr == nil || ended
	})
	if ended {
		return fmt.Errorf("kafka ended at its start (%w); see %s", process.Err(), b.spec.Log)
	}
	return err
}

// Kill ends the broker with SIGKILL.
func (b *Broker) Kill() {
	if b.process != nil {
		b.process.Kill()
	}
}
