package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// cluster reaches the brokers of one Kafka cluster by node id. It keeps one connection a node for short requests;
// long polls and take-overs dial their own. All methods may be called concurrently.
type cluster struct {
	cfg   Connection
	files *tlsFiles
	log   *slog.Logger

	mu     sync.Mutex
	conns  map[int32]*conn
	addrs  map[int32]string
	coords map[string]int32 // where coordinators were found, by kind and key
}

// anyNode asks for whichever broker answers.
const anyNode = int32(-1)

func newCluster(cfg Connection, log *slog.Logger) *cluster {
	c := &cluster{
		cfg: cfg, log: log, conns: map[int32]*conn{}, addrs: map[int32]string{},
		coords: map[string]int32{},
	}
	if cfg.TLS != nil {
		c.files = &tlsFiles{files: cfg.TLS}
	}
	return c
}

// close ends all kept connections; the cluster may be used again.
func (c *cluster) close() {
	c.mu.Lock()
	conns := c.conns
	c.conns = map[int32]*conn{}
	c.mu.Unlock()
	for _, cn := range conns {
		cn.close()
	}
}

// node returns the kept connection to a node, dialling if there is none that lives.
func (c *cluster) node(ctx context.Context, id int32) (*conn, error) {
	c.mu.Lock()
	cn := c.conns[id]
	c.mu.Unlock()
	if cn != nil && cn.usable() {
		return cn, nil
	}
	fresh, err := c.dial(ctx, id)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	old := c.conns[id]
	c.conns[id] = fresh
	c.mu.Unlock()
	if old != nil {
		old.close()
	}
	return fresh, nil
}

// dial connects to a node; the caller owns the connection.
func (c *cluster) dial(ctx context.Context, id int32) (*conn, error) {
	if id == anyNode {
		return c.dialAny(ctx)
	}
	c.mu.Lock()
	addr, ok := c.addrs[id]
	c.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("%w: the cluster names no address of broker %d", errLink, id)
	}
	return dial(ctx, &c.cfg, c.files, c.log, addr)
}

// dialAny tries the bootstrap addresses, then all brokers that were ever named.
func (c *cluster) dialAny(ctx context.Context) (*conn, error) {
	addrs := append([]string(nil), c.cfg.Brokers...)
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	c.mu.Lock()
	for _, a := range c.addrs {
		addrs = append(addrs, a)
	}
	c.mu.Unlock()
	var errs []error
	for _, a := range distinct(addrs) {
		cn, err := dial(ctx, &c.cfg, c.files, c.log, a)
		if err == nil {
			return cn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("no Kafka broker can be used: %w", errors.Join(errs...))
}

// distinct removes repeats and keeps the order.
func distinct(names []string) []string {
	seen := make(map[string]bool, len(names))
	out := names[:0]
	for _, n := range names {
		if !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}

// metadata asks for topics by name (nil: all, empty: none) and learns the brokers' addresses from the answer.
func (c *cluster) metadata(ctx context.Context, topics []string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	req.IncludeTopicAuthorizedOperations = true
	if topics != nil {
		req.Topics = []kmsg.MetadataRequestTopic{}
	}
	for _, t := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = new(t)
		req.Topics = append(req.Topics, rt)
	}
	cn, err := c.node(ctx, anyNode)
	if err != nil {
		return nil, err
	}
	resp, err := ask[*kmsg.MetadataResponse](ctx, cn, req)
	if err != nil {
		return nil, err
	}
	if len(resp.Brokers) == 0 {
		return nil, fmt.Errorf("%w: %s names no brokers", errLink, cn.addr)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.addrs)
	for _, b := range resp.Brokers {
		c.addrs[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	return resp, nil
}

// Kinds of coordinators.
const (
	groupKind = int8(0)
	txnKind   = int8(1)
)

// coordinator asks which node coordinates a group or a transactional id.
func (c *cluster) coordinator(ctx context.Context, key string, kind int8) (int32, error) {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.Version, req.CoordinatorKey, req.CoordinatorType = 3, key, kind
	cn, err := c.node(ctx, anyNode)
	if err != nil {
		return 0, err
	}
	resp, err := ask[*kmsg.FindCoordinatorResponse](ctx, cn, req)
	if err != nil {
		return 0, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		what := "group"
		if kind == txnKind {
			what = "transactional id"
		}
		return 0, fmt.Errorf("coordinator of %s %s: %w", what, key, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addrs[resp.NodeID] = net.JoinHostPort(resp.Host, strconv.Itoa(int(resp.Port)))
	return resp.NodeID, nil
}

// coordinatorConn returns the kept connection to a coordinator, looking it up if it is not known.
func (c *cluster) coordinatorConn(ctx context.Context, key string, kind int8) (*conn, error) {
	name := strconv.Itoa(int(kind)) + "/" + key
	c.mu.Lock()
	id, ok := c.coords[name]
	c.mu.Unlock()
	if !ok {
		var err error
		if id, err = c.coordinator(ctx, key, kind); err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.coords[name] = id
		c.mu.Unlock()
	}
	return c.node(ctx, id)
}

// forgetCoordinators makes coordinatorConn look all of them up again.
func (c *cluster) forgetCoordinators() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.coords)
}

// codeError returns the error of a code with what was done, nil for 0. text is the broker's own, if it gave one.
func codeError(code int16, text *string, format string, args ...any) error {
	err := kerr.ErrorForCode(code)
	if err == nil {
		return nil
	}
	if text != nil && *text != "" {
		return fmt.Errorf("%s: %w (%s)", fmt.Sprintf(format, args...), err, *text)
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// oneOf reports whether err is one of Kafka's errors.
func oneOf(err error, kafka ...*kerr.Error) bool {
	for _, k := range kafka {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}

// coordinatorMoved reports whether the right coordinator has to be looked up again (14, 15, 16). Nothing was done.
func coordinatorMoved(err error) bool {
	return oneOf(err, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.NotCoordinator)
}

// busy reports whether a transactional id is settling its last transaction (51), or the coordinator moves.
func busy(err error) bool {
	return oneOf(err, kerr.ConcurrentTransactions) || coordinatorMoved(err)
}

// fenced reports whether another producer epoch exists or ours is unknown (47, 48, 49, 90): only a take-over helps.
func fenced(err error) bool {
	return oneOf(err, kerr.InvalidProducerEpoch, kerr.InvalidTxnState, kerr.InvalidProducerIDMapping, kerr.ProducerFenced)
}
