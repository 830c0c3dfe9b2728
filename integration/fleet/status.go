package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// askTimeout bounds one question to a replica, in case it is paused.
const askTimeout = 500 * time.Millisecond

// Get returns the body of an admin path if the answer is 200.
func (r *Replica) Get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+LoopbackAddr(r.AdminPort)+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end below
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", path, response.Status, body)
	}
	return body, err
}

// Status is the part of /status that is looked at here.
type Status struct {
	Role string `json:"role"`
	Term uint64 `json:"term"`
}

// Status asks the replica for its status.
func (r *Replica) Status(ctx context.Context) (Status, error) {
	body, err := r.Get(ctx, "/status")
	if err != nil {
		return Status{}, err
	}
	var s Status
	return s, json.Unmarshal(body, &s)
}
