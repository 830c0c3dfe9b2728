package replica

import (
	"errors"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// stableStore keeps Raft's term and vote. The first failure ends the process; a key that is not there is no failure and
// reads as the zero value, as raft.StableStore wants it. All methods may be called concurrently.
type stableStore struct {
	bolt *raftboltdb.BoltStore
	fail *failure
}

var _ raft.StableStore = (*stableStore)(nil)

func openStable(path string, fail *failure) (*stableStore, error) {
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{Timeout: boltTimeout}})
	if err != nil {
		return nil, err
	}
	return &stableStore{bolt: bolt, fail: fail}, nil
}

// Set stores a value durably.
func (s *stableStore) Set(key, value []byte) error {
	if err := s.fail.sticky(); err != nil {
		return err
	}
	return s.failed("writing", s.bolt.Set(key, value))
}

// Get returns a value, nil if there is none.
func (s *stableStore) Get(key []byte) ([]byte, error) {
	value, err := s.bolt.Get(key)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, nil
	}
	return value, s.failed("reading", err)
}

// SetUint64 stores a number durably.
func (s *stableStore) SetUint64(key []byte, value uint64) error {
	if err := s.fail.sticky(); err != nil {
		return err
	}
	return s.failed("writing", s.bolt.SetUint64(key, value))
}

// GetUint64 returns a number, 0 if there is none.
func (s *stableStore) GetUint64(key []byte) (uint64, error) {
	value, err := s.bolt.GetUint64(key)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return 0, nil
	}
	return value, s.failed("reading", err)
}

// failed makes err final, unless it is nil or only that the store was closed.
func (s *stableStore) failed(what string, err error) error {
	if err == nil || errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return err
	}
	return s.fail.report(what+" Raft's term and vote", err)
}

func (s *stableStore) close() error { return s.bolt.Close() }
