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

// Status is the part of /status that is looked at here. The names are those of ftproxy's own status.
type Status struct {
	Role    string `json:"role"`
	Term    uint64 `json:"term"`
	Buffers []struct {
		Name    string `json:"name"`
		End     uint64 `json:"end"`
		Bytes   int64  `json:"bytes"`
		Readers []struct {
			Name      string `json:"name"`
			Acked     uint64 `json:"acked"`
			Received  int64  `json:"received"`
			Delivered int64  `json:"delivered"`
			Retained  int64  `json:"retained"`
		} `json:"readers"`
	} `json:"buffers"`
	Raft struct {
		Snapshots uint64 `json:"snapshots"`
	} `json:"raft"`
	Links struct {
		SentBytes int64 `json:"sent_bytes"`
	} `json:"links"`
	Disk struct {
		SyncP50  int64 `json:"sync_p50_us"`
		SyncP999 int64 `json:"sync_p999_us"`
	} `json:"disk"`
}

// Retained is how many tuples wait for a reader, over all buffers and readers; they are 0 when everything sent was
// delivered, dead-lettered or dropped.
func (s *Status) Retained() (n int64) {
	for _, buffer := range s.Buffers {
		for _, reader := range buffer.Readers {
			n += reader.Retained
		}
	}
	return n
}

// Received is how many tuples were taken in, repeated ones included, in the whole life of the log.
func (s *Status) Received() (n int64) {
	for _, buffer := range s.Buffers {
		for _, reader := range buffer.Readers {
			n = max(n, reader.Received)
		}
	}
	return n
}

// Delivered is how many tuples were delivered, over all buffers and readers, in the whole life of the log.
func (s *Status) Delivered() (n int64) {
	for _, buffer := range s.Buffers {
		for _, reader := range buffer.Readers {
			n += reader.Delivered
		}
	}
	return n
}

// Status asks the replica for its status.
func (r *Replica) Status(ctx context.Context) (*Status, error) {
	body, err := r.Get(ctx, "/status")
	if err != nil {
		return nil, err
	}
	s := &Status{}
	return s, json.Unmarshal(body, s)
}
