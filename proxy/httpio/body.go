package httpio

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// readBody reads a request's body into memory that the budget has granted, piece by piece: a slow client holds only
// what it has sent. The bytes go back with release, which must be called in every case.
func (s *server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	var taken int64
	release = func() { s.budget.give(taken) }
	limit := s.limits.requestBytes
	if r.ContentLength > limit {
		return nil, release, s.tooLarge()
	}
	for {
		size := min(max(2*int64(cap(body)), 16<<10), limit+1)
		if r.ContentLength >= 0 {
			size = min(size, r.ContentLength+1) // a byte more, to see the end
		}
		if err := s.grant(r.Context(), size-taken); err != nil {
			return nil, release, err
		}
		taken = size
		body = append(make([]byte, 0, size), body...)
		ended, err := fill(r.Body, &body)
		switch {
		case err != nil:
			return nil, release, readError(err)
		case int64(len(body)) > limit:
			return nil, release, s.tooLarge()
		case ended:
			return body, release, setReadDeadline(w, time.Time{}) // a long wait for the commit is not the client's silence
		}
	}
}

// fill reads until body's capacity is used up, or until the end. A body that is broken off has no end: only io.EOF,
// as it comes from the request, is one.
func fill(from io.Reader, body *[]byte) (ended bool, err error) {
	for len(*body) < cap(*body) {
		n, err := from.Read((*body)[len(*body):cap(*body)])
		*body = (*body)[:len(*body)+n]
		if err == io.EOF {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// hurried bounds the time in which a request's body arrives, whether the handler reads it or refuses the request first:
// net/http reads what a handler left before it sends the answer, and by itself waits for ever.
func (s *server) hurried(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 && !s.patient {
			if err := setReadDeadline(w, time.Now().Add(s.limits.body)); err != nil {
				return // the connection is gone
			}
		}
		handler.ServeHTTP(w, r)
	})
}

func setReadDeadline(w http.ResponseWriter, at time.Time) error {
	err := http.NewResponseController(w).SetReadDeadline(at)
	if errors.Is(err, http.ErrNotSupported) { // no connection stands behind it
		return nil
	}
	return err
}

// grant takes n bytes of the budget, or refuses after a second.
func (s *server) grant(ctx context.Context, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := s.budget.take(ctx, n); err != nil {
		r := refuse(http.StatusTooManyRequests, "nothing was written; send the request again later",
			"requests in flight hold all of the %d bytes that they may hold together", s.limits.inFlightBytes)
		r.retryAfter, r.hangUp = 1, true
		return r
	}
	return nil
}

func (s *server) tooLarge() error {
	r := refuse(http.StatusRequestEntityTooLarge, "send fewer or smaller tuples in a request",
		"the request's body is larger than %d bytes; nothing was written", s.limits.requestBytes)
	r.hangUp = true
	return r
}

func readError(err error) error {
	r := refuse(http.StatusBadRequest, "send the request again, whole",
		"the request's body is broken off or malformed (%s); nothing was written", err.Error())
	if errors.Is(err, os.ErrDeadlineExceeded) {
		r.status, r.cause = http.StatusRequestTimeout, "the request's body came too slowly; nothing was written"
	}
	r.hangUp = true
	return r
}
