package kafkaio

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
)

const (
	// maxResponse bounds one answer of a broker, in bytes.
	maxResponse = 100 << 20
	// maxInFlight bounds the requests that wait for their answers on one connection.
	maxInFlight = 64
)

// errLink marks an error of a connection: what was asked for may or may not have happened.
var errLink = errors.New("connection to Kafka lost")

// conn is one connection to one broker. Requests are pipelined, and a broker handles them in the order in which they
// were started. All methods may be called concurrently; the first error ends the connection for good.
type conn struct {
	addr    string
	timeout time.Duration
	format  *kmsg.RequestFormatter
	nc      net.Conn
	// highest is the broker's highest version of each API key, -1: not served. Written before the conn is shared.
	highest [128]int16
	// expires is when the broker ends the authenticated session; zero: never.
	expires time.Time

	mu    sync.Mutex // orders writes and what is queued
	next  int32
	wbuf  []byte
	queue chan *call

	done chan struct{} // closed after err is set
	once sync.Once
	err  error
	wg   sync.WaitGroup
}

// call is one request on its way.
type call struct {
	req  kmsg.Request
	resp kmsg.Response
	id   int32
	c    *conn
	done chan struct{} // closed once resp or err is set
	err  error
}

// dial connects to addr, learns what the broker speaks, and authenticates.
func dial(ctx context.Context, cfg *Connection, files *tlsFiles, log *slog.Logger, addr string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	connect := cfg.connect
	if connect == nil {
		connect = (&net.Dialer{}).DialContext
	}
	nc, err := connect(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errLink, addr, err)
	}
	if files != nil {
		nc, err = startTLS(ctx, nc, files, log, addr)
		if err != nil {
			return nil, err
		}
	}
	c := &conn{
		addr: addr, timeout: cfg.RequestTimeout, nc: nc,
		format: kmsg.NewRequestFormatter(kmsg.FormatterClientID(cfg.ClientID)),
		queue:  make(chan *call, maxInFlight), done: make(chan struct{}),
	}
	c.wg.Go(c.receive)
	err = c.learn(ctx)
	if err == nil && cfg.SASL != nil {
		err = c.authenticate(ctx, cfg.SASL)
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("broker %s: %w", addr, err)
	}
	return c, nil
}

func startTLS(ctx context.Context, nc net.Conn, files *tlsFiles, log *slog.Logger, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	conf, stale, err := files.current(host)
	if stale != nil {
		log.WarnContext(ctx, "kafka tls files unreadable, the last good ones stay in use",
			slog.String("error", stale.Error()))
	}
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	secure := tls.Client(nc, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: TLS with %s: %w", errLink, addr, err), nc.Close())
	}
	return secure, nil
}

// learn asks which versions the broker serves and refuses one that is older than Kafka 3.7.
func (c *conn) learn(ctx context.Context) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = 3
	req.ClientSoftwareName, req.ClientSoftwareVersion = "ftproxy", "1"
	for i := range c.highest {
		c.highest[i] = -1
	}
	c.highest[req.Key()] = 3
	resp, err := ask[*kmsg.ApiVersionsResponse](ctx, c, req)
	if err != nil {
		return err
	}
	if resp.ErrorCode == kerr.UnsupportedVersion.Code {
		return errTooOld
	} else if bad := kerr.ErrorForCode(resp.ErrorCode); bad != nil {
		return fmt.Errorf("ApiVersions: %w", bad)
	}
	for _, k := range resp.ApiKeys {
		if k.ApiKey >= 0 && int(k.ApiKey) < len(c.highest) {
			c.highest[k.ApiKey] = k.MaxVersion
		}
	}
	// Kafka 3.7 is the first with Fetch 16 and Produce 10.
	if c.highest[1] < 16 || c.highest[0] < 10 {
		return errTooOld
	}
	return nil
}

var errTooOld = errors.New("the broker is older than Kafka 3.7, the oldest that ftproxy works with: upgrade it")

func (c *conn) authenticate(ctx context.Context, s *SASL) error {
	mech, err := s.mechanism()
	if err != nil {
		return err
	}
	shake := kmsg.NewPtrSASLHandshakeRequest()
	shake.Version, shake.Mechanism = 1, mech.Name()
	hello, err := ask[*kmsg.SASLHandshakeResponse](ctx, c, shake)
	if err != nil {
		return fmt.Errorf("SASL handshake: %w", err)
	}
	if bad := kerr.ErrorForCode(hello.ErrorCode); bad != nil {
		return fmt.Errorf("SASL mechanism %s is refused, the broker offers %v: %w", mech.Name(),
			hello.SupportedMechanisms, bad)
	}
	session, msg, err := mech.Authenticate(ctx, c.addr)
	for done := false; err == nil && !done; {
		msg, done, err = c.challenge(ctx, session, msg)
	}
	if err != nil {
		return fmt.Errorf("SASL %s of user %q failed: check the user and the password: %w", mech.Name(), s.Username, err)
	}
	return nil
}

// challenge sends one message of the authentication and takes the answer.
func (c *conn) challenge(ctx context.Context, s sasl.Session, msg []byte) (next []byte, done bool, err error) {
	req := kmsg.NewPtrSASLAuthenticateRequest()
	req.Version, req.SASLAuthBytes = 2, msg
	resp, err := ask[*kmsg.SASLAuthenticateResponse](ctx, c, req)
	if err != nil {
		return nil, false, err
	}
	if bad := codeError(resp.ErrorCode, resp.ErrorMessage, "SaslAuthenticate"); bad != nil {
		return nil, false, bad
	}
	if ms := resp.SessionLifetimeMillis; ms > 0 {
		c.expires = time.Now().Add(time.Duration(ms) * time.Millisecond * 8 / 10)
	}
	done, next, err = s.Challenge(resp.SASLAuthBytes)
	return next, done, err
}

// usable reports whether the connection lives and its session is not about to end.
func (c *conn) usable() bool {
	select {
	case <-c.done:
		return false
	default:
		return c.expires.IsZero() || time.Now().Before(c.expires)
	}
}

// close ends the connection and waits for its goroutine.
func (c *conn) close() {
	c.fail(net.ErrClosed)
	c.wg.Wait()
}

func (c *conn) fail(err error) {
	c.once.Do(func() {
		c.err = fmt.Errorf("%w: broker %s: %w", errLink, c.addr, err)
		close(c.done)
		_ = c.nc.Close() // given up, whatever Close says
	})
}

// start writes the request, in the version given in it; it is handled after all that were started before. If ctx ends
// while the broker does not take it, the connection is ended.
func (c *conn) start(ctx context.Context, req kmsg.Request) *call {
	cl := &call{req: req, resp: req.ResponseKind(), c: c, done: make(chan struct{})}
	if k := req.Key(); k < 0 || int(k) >= len(c.highest) || c.highest[k] < req.GetVersion() {
		cl.err = fmt.Errorf("broker %s does not serve version %d of API %s: %w", c.addr, req.GetVersion(),
			kmsg.NameForKey(k), errTooOld)
		close(cl.done)
		return cl
	}
	defer context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx)) })()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	cl.id = c.next
	c.wbuf = c.format.AppendRequest(c.wbuf[:0], req, cl.id)
	select {
	case c.queue <- cl:
	case <-c.done:
		cl.err = c.err
		close(cl.done)
		return cl
	}
	err := c.nc.SetWriteDeadline(time.Now().Add(c.timeout))
	if err == nil {
		_, err = c.nc.Write(c.wbuf)
	}
	if err != nil {
		c.fail(err)
	}
	if cap(c.wbuf) > 16<<20 {
		c.wbuf = nil
	}
	return cl
}

// wait returns the answer. If ctx ends or the request's time is up, the connection is ended: the outcome is unknown.
func (cl *call) wait(ctx context.Context) (kmsg.Response, error) {
	timer := time.NewTimer(cl.c.timeout)
	defer timer.Stop()
	select {
	case <-cl.done:
	case <-ctx.Done():
		cl.c.fail(context.Cause(ctx))
		return nil, fmt.Errorf("%w: %w", errLink, context.Cause(ctx))
	case <-timer.C:
		cl.c.fail(fmt.Errorf("no answer to %s within %v", kmsg.NameForKey(cl.req.Key()), cl.c.timeout))
	case <-cl.c.done:
	}
	select {
	case <-cl.done:
		return cl.resp, cl.err
	default:
		<-cl.c.done
		return nil, cl.c.err
	}
}

// ask starts a request and waits for its answer.
func ask[R kmsg.Response](ctx context.Context, c *conn, req kmsg.Request) (R, error) {
	return answer[R](ctx, c.start(ctx, req))
}

// answer waits for a request's answer.
func answer[R kmsg.Response](ctx context.Context, cl *call) (R, error) {
	var none R
	resp, err := cl.wait(ctx)
	if err != nil {
		return none, err
	}
	r, ok := resp.(R)
	if !ok {
		return none, fmt.Errorf("the answer to %s is a %T", kmsg.NameForKey(cl.req.Key()), resp)
	}
	return r, nil
}

// receive matches answers to calls until the connection ends.
func (c *conn) receive() {
	r := bufio.NewReaderSize(c.nc, 64<<10)
	for {
		body, err := readFrame(r)
		if err != nil {
			c.fail(err)
			return
		}
		select {
		case cl := <-c.queue:
			if err := cl.parse(body); err != nil {
				c.fail(err)
				return
			}
			close(cl.done)
		default:
			c.fail(errors.New("an answer to nothing asked"))
			return
		}
	}
}

func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int32(binary.BigEndian.Uint32(size[:]))
	if n < 4 || n > maxResponse {
		return nil, fmt.Errorf("an answer of %d bytes, allowed are 4 to %d", n, maxResponse)
	}
	body := make([]byte, n)
	_, err := io.ReadFull(r, body)
	return body, err
}

func (cl *call) parse(body []byte) error {
	if id := int32(binary.BigEndian.Uint32(body)); id != cl.id {
		return fmt.Errorf("an answer with the number %d, due is %d", id, cl.id)
	}
	body = body[4:]
	if cl.req.IsFlexible() && cl.req.Key() != 18 { // ApiVersions answers always have the old header
		if len(body) == 0 || body[0] != 0 {
			return errors.New("an answer with unknown header tags")
		}
		body = body[1:]
	}
	cl.resp.SetVersion(cl.req.GetVersion())
	if cl.req.Key() == 18 && len(body) >= 2 && int16(binary.BigEndian.Uint16(body)) == kerr.UnsupportedVersion.Code {
		cl.resp.SetVersion(0) // KIP-511: this refusal comes in the oldest layout
	}
	if err := cl.resp.ReadFrom(body); err != nil {
		return fmt.Errorf("answer to %s: %w", kmsg.NameForKey(cl.req.Key()), err)
	}
	return nil
}
