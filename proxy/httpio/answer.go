package httpio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"ftproxy/logbuffer"
)

// refusal is an answer other than success, with its cause and its cure.
type refusal struct {
	status int
	cause  string
	cure   string
	// retryAfter, in seconds, is set with 429 and 503.
	retryAfter int
	// expected is set with 409: the position that is due next.
	expected *int64
	// hangUp closes the connection, since the rest of the request was not read.
	hangUp bool
}

// Error returns the cause.
func (r *refusal) Error() string { return r.cause }

func refuse(status int, cure, format string, a ...any) *refusal {
	return &refusal{status: status, cause: fmt.Sprintf(format, a...), cure: cure}
}

// accepted is the answer to an append.
type accepted struct {
	Admitted   int `json:"admitted"`
	Duplicates int `json:"duplicates"`
	// Position is the last position admitted from the session or link, if there is one.
	Position int64 `json:"position,omitempty"`
}

// refused is the body of a refusal.
type refused struct {
	Error    string `json:"error"`
	Cure     string `json:"cure"`
	Expected *int64 `json:"expected,omitempty"`
}

// answer writes v as JSON.
func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":"answer could not be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(status)
	if _, err := w.Write(append(body, '\n')); err != nil {
		return // the client is gone; it will repeat
	}
}

// answerError writes an error as a refusal.
func answerError(w http.ResponseWriter, err error) {
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		r = refuse(http.StatusInternalServerError, "see the log of ftproxy", "%s", err.Error())
	}
	if r.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(r.retryAfter))
	}
	if r.expected != nil {
		w.Header().Set("Ftproxy-Expected", strconv.FormatInt(*r.expected, 10))
	}
	if r.hangUp {
		w.Header().Set("Connection", "close")
	}
	answer(w, r.status, refused{Error: r.cause, Cure: r.cure, Expected: r.expected})
}

// appendError turns the error of an append, or of a question to the log, into a refusal.
func appendError(err error) error {
	switch {
	case errors.Is(err, logbuffer.ErrTooLarge):
		return refuse(http.StatusRequestEntityTooLarge, "send fewer or smaller tuples in a request", "%s", err.Error())
	case errors.Is(err, logbuffer.ErrUnavailable):
		r := refuse(http.StatusServiceUnavailable, "nothing was written; send the request again later", "%s", err.Error())
		r.retryAfter = 1
		return r
	case errors.Is(err, logbuffer.ErrUnknown), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled):
		return refuse(http.StatusGatewayTimeout, "it may have been written; send it again with the same "+
			"Idempotency-Key, or session and position, until it is answered 200", "%s", err.Error())
	default:
		return err
	}
}

// receiptError turns a verdict other than done into a refusal.
func receiptError(r logbuffer.Receipt) error {
	switch r.Code {
	case logbuffer.CodeGap:
		no := refuse(http.StatusConflict, fmt.Sprintf("go on from position %d", r.Expected),
			"positions are missing before this request; %d is due, nothing was written", r.Expected)
		no.expected = &r.Expected
		return no
	case logbuffer.CodeExpired:
		return refuse(http.StatusGone, "open a new session, and find out what of the old one arrived before sending on",
			"the session is unknown or expired; nothing was written")
	case logbuffer.CodeFull:
		no := refuse(http.StatusServiceUnavailable, "raise the number of sources at ftproxy, or wait until old ones are "+
			"forgotten", "as many sources are known as the settings allow; nothing was written")
		no.retryAfter = 10
		return no
	case logbuffer.CodeDone:
	}
	return nil
}
