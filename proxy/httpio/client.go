package httpio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// maxRetryAfter bounds the wait that an answer can ask for.
const maxRetryAfter = time.Hour

// newClient returns a client that keeps up to conns connections, follows no redirect and knows no proxy of its
// environment: where a tuple goes is what the configuration says.
func newClient(t TLS, conns int) (*http.Client, error) {
	config, err := t.client()
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			TLSClientConfig:        config,
			TLSHandshakeTimeout:    10 * time.Second,
			MaxIdleConns:           conns,
			MaxIdleConnsPerHost:    conns,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
		},
	}, nil
}

// endpoint checks a URL of an http or https endpoint.
func endpoint(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("url %q: it must start with http:// or https:// and name a host; "+
			"example: http://127.0.0.1:3000/orders", text)
	}
	return u, nil
}

// reply is what an attempt brought back: the status, 0 if there was none, and up to 4 KiB of the body.
type reply struct {
	status     int
	header     http.Header
	body       []byte
	retryAfter time.Duration
}

// roundTrip sends a request and reads the answer to its end, or as far as is reasonable.
func roundTrip(client *http.Client, r *http.Request) (reply, error) {
	resp, err := client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err == nil {
		// What is left is read so that the connection can be used again; the status has decided already.
		_, err = io.CopyN(io.Discard, resp.Body, 60<<10)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		body = append(body, " (answer broken off)"...)
	}
	return reply{
		status: resp.StatusCode, header: resp.Header, body: body,
		retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}, nil
}

// retryAfter reads seconds or a date.
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// reach opens a connection to the endpoint and closes it again.
func reach(ctx context.Context, u *url.URL) error {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	dialer := net.Dialer{Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return fmt.Errorf("%s cannot be reached: %w", u.Redacted(), err)
	}
	return conn.Close()
}
