package traffic

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"sync"
)

// maxBody bounds a request, in bytes.
const maxBody = 16 << 20

// Receiver is a downstream that does what a precise edge needs: it stores a tuple together with its idempotency key,
// durably, before it answers, and drops what comes under a key that it has. Its file has a line a tuple: key, tab,
// tuple. ServeHTTP may be called concurrently.
type Receiver struct {
	// Stored, if set, is called after each request, under a lock, with how many tuples there are now and how many of the
	// request were there already.
	Stored func(all, repeats int)

	mu   sync.Mutex
	file *os.File
	keys map[string]bool // what stands in the file
	// broken is the first failed write: what stands in the file is unknown since, and only a new start can tell.
	broken error
}

// OpenReceiver opens or creates a receiver's file, drops a line that was cut by a crash, and learns the keys in it.
func OpenReceiver(name string) (*Receiver, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	r := &Receiver{file: file, keys: make(map[string]bool)}
	var whole int64
	lines := bufio.NewReader(file)
	for {
		var line []byte
		if line, err = lines.ReadBytes('\n'); err != nil {
			break
		}
		key, _, _ := bytes.Cut(line, []byte("\t"))
		r.keys[string(key)] = true
		whole += int64(len(line))
	}
	if errors.Is(err, io.EOF) {
		_, err = file.Seek(whole, io.SeekStart)
		err = errors.Join(err, file.Truncate(whole))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return r, nil
}

// Count is how many different tuples there are.
func (r *Receiver) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.keys)
}

// ServeHTTP takes a request of ftproxy's HTTP sink.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	keys, tuples, err := split(request.Header, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := r.store(keys, tuples); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// Close closes the receiver's file.
func (r *Receiver) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file.Close()
}

// store makes new tuples durable, all or none as far as the caller knows.
func (r *Receiver) store(keys []string, tuples [][]byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken != nil {
		return r.broken
	}
	var lines []byte
	firsts := make(map[string]bool)
	for i, key := range keys {
		if !r.keys[key] && !firsts[key] {
			firsts[key] = true
			lines = fmt.Appendf(lines, "%s\t%s\n", key, tuples[i])
		}
	}
	if len(lines) > 0 {
		_, err := r.file.Write(lines)
		if r.broken = errors.Join(err, r.file.Sync()); r.broken != nil {
			return r.broken
		}
		maps.Copy(r.keys, firsts)
	}
	if r.Stored != nil {
		r.Stored(len(r.keys), len(keys)-len(firsts))
	}
	return nil
}
