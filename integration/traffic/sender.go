package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"ftproxy/integration/checker"
)

const (
	sendTimeout = 5 * time.Second
	retryWait   = 50 * time.Millisecond
	repeatEach  = 6  // requests
	repeatBack  = 20 // requests, at most
)

// Sender sends the tuples of a stream in order, in requests of NDJSON, each until a replica took it. It is honest but
// careless: every sixth request is followed by an older one once more, and after a crash it only knows what it noted
// last and repeats everything since.
type Sender struct {
	// Targets are the URLs of the source at every replica; any of them will do.
	Targets []string
	// Stream names the tuples, Total is how many there are, Size the bytes of each.
	Stream string
	Total  int64
	Size   int
	// Batch is how many tuples a request carries, Rate how many tuples are sent a second (repetitions not counted).
	Batch, Rate int64
	// Notes is a file for the number of a tuple up to which all is acknowledged, written each NoteEach tuples.
	Notes    string
	NoteEach int64
	// Seed decides what is repeated.
	Seed uint64
	// Sending, if set, is called before each request with the tuples in it; Failed after each that was not taken.
	Sending func(first, last int64)
	Failed  func(err error)

	target int // the replica that answered last
}

// Run sends all tuples from the last note on. It returns nil once every one of them is acknowledged.
func (s *Sender) Run(ctx context.Context) error {
	next, err := s.noted()
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(s.Seed, uint64(next)))
	begin, started := next, time.Now()
	for count := 1; next <= s.Total; count++ {
		due := started.Add(time.Duration(next-begin) * time.Second / time.Duration(s.Rate))
		if err := wait(ctx, time.Until(due)); err != nil {
			return err
		}
		last := min(next+s.Batch-1, s.Total)
		if err := s.send(ctx, next, last); err != nil {
			return err
		}
		if count%repeatEach == 0 {
			again := max(1, next-s.Batch*random.Int64N(repeatBack))
			if err := s.send(ctx, again, min(again+s.Batch-1, last)); err != nil {
				return err
			}
		}
		if last/s.NoteEach > (next-1)/s.NoteEach {
			if err := os.WriteFile(s.Notes, []byte(strconv.FormatInt(last, 10)), 0o644); err != nil {
				return err
			}
		}
		next = last + 1
	}
	return nil
}

// noted returns the tuple after the last note.
func (s *Sender) noted() (int64, error) {
	text, err := os.ReadFile(s.Notes)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	last, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return last + 1, err
}

// send sends tuples first to last in one request, again and again until a replica took them.
func (s *Sender) send(ctx context.Context, first, last int64) error {
	var body []byte
	for n := first; n <= last; n++ {
		body = append(checker.AppendPayload(body, s.Stream, n, s.Size), '\n')
	}
	for {
		if s.Sending != nil {
			s.Sending(first, last)
		}
		err := s.post(ctx, body)
		if err == nil {
			return nil
		}
		if s.Failed != nil {
			s.Failed(err)
		}
		s.target++
		if err := wait(ctx, retryWait); err != nil {
			return err
		}
	}
}

func (s *Sender) post(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	url := s.Targets[s.target%len(s.Targets)]
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-ndjson")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, response.Status, answer)
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
