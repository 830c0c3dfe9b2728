package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports below the range from which systems number outgoing connections: one that was free when it was picked is not
// taken by somebody's connection while its process is down.
const (
	lowestPort  = 10_000
	highestPort = 21_999
)

// FreePorts returns n different loopback ports on which nobody listens, all below 22,000.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	var free []int
	taken := make(map[int]bool)
	for range 100 * n {
		if len(free) == n {
			return free, nil
		}
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		if taken[port] {
			continue
		}
		taken[port] = true
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", LoopbackAddr(port))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			return nil, err
		}
		free = append(free, port)
	}
	return nil, fmt.Errorf("no %d free ports between %d and %d", n, lowestPort, highestPort)
}

// LoopbackAddr is the address of a port on loopback.
func LoopbackAddr(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
