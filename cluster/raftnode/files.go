package raftnode

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft-wal/types"
	"golang.org/x/sys/unix"

	"tendril/cluster/durable"
)

// createFile makes a file of content, durable with its name, and nothing half-way: also after a crash there is all of
// it or none.
func createFile(path string, content []byte) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

// highWater is the file that remembers the highest index ever applied (cluster/PROTOCOL.md, "On disk").
type highWater struct {
	f     *os.File
	index uint64 // one goroutine at a time: the machine's
}

const (
	waterMagic = "TDRLHIGH"
	waterBytes = 20
)

func encodeWater(index uint64) []byte {
	b := binary.LittleEndian.AppendUint64([]byte(waterMagic), index)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// openWater opens the file; found is false when there is none, and one with 0 is made.
func openWater(dir string) (w *highWater, found bool, err error) {
	path := filepath.Join(dir, "high-water")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		raw = encodeWater(0)
		err = createFile(path, raw)
	} else {
		found = true
	}
	if err != nil {
		return nil, found, err
	}
	if len(raw) != waterBytes || string(raw) != string(encodeWater(binary.LittleEndian.Uint64(raw[8:]))) {
		return nil, found, damaged(path, "it is not the record that was written",
			"if the rest of the directory is whole, remove this one file: what it guards against, a log that lost its end, is then not noticed this once")
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, found, err
	}
	return &highWater{f: f, index: binary.LittleEndian.Uint64(raw[8:])}, found, nil
}

// raise notes that index was applied. Not synced: one page of a file that is there costs no room on the disk.
func (w *highWater) raise(index uint64) error {
	if index <= w.index {
		return nil
	}
	w.index = index
	_, err := w.f.WriteAt(encodeWater(index), 0)
	return err
}

// Close closes the file.
func (w *highWater) Close() error { return w.f.Close() }

// voteFile keeps raft's term and vote: two slots written in turn, so that a torn write leaves the one before. It is
// allocated when it is made: no full disk can keep a node from saving its vote.
type voteFile struct {
	f     *os.File
	fail  func(error)
	armed atomic.Bool // raft runs on it
	ahead *ahead      // written before anything is saved; nil: there is none

	mu       sync.Mutex
	sequence uint64
	term     uint64
	voteTerm uint64
	voteFor  []byte
}

const (
	voteMagic         = "TDRLVOTE"
	slotBytes         = 512
	maxCandidateBytes = 256
)

func (v *voteFile) encode() []byte {
	b := make([]byte, slotBytes)
	copy(b, voteMagic)
	binary.LittleEndian.PutUint64(b[8:], v.sequence)
	binary.LittleEndian.PutUint64(b[16:], v.term)
	binary.LittleEndian.PutUint64(b[24:], v.voteTerm)
	binary.LittleEndian.PutUint16(b[32:], uint16(len(v.voteFor)))
	copy(b[34:], v.voteFor)
	binary.LittleEndian.PutUint32(b[slotBytes-4:], crc32.Checksum(b[:slotBytes-4], castagnoli))
	return b
}

// decodeSlot reads a slot; false when it is not whole.
func (v *voteFile) decodeSlot(b []byte) bool {
	n := int(binary.LittleEndian.Uint16(b[32:]))
	if string(b[:8]) != voteMagic || n > maxCandidateBytes ||
		crc32.Checksum(b[:slotBytes-4], castagnoli) != binary.LittleEndian.Uint32(b[slotBytes-4:]) {
		return false
	}
	if s := binary.LittleEndian.Uint64(b[8:]); s >= v.sequence {
		v.sequence, v.term, v.voteTerm = s, binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		v.voteFor = append([]byte(nil), b[34:34+n]...)
	}
	return true
}

// openVote opens the file; found is false when there is none, and a blank one is made.
func openVote(dir string) (v *voteFile, found bool, err error) {
	path := filepath.Join(dir, "vote")
	v = &voteFile{}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		raw = append(v.encode(), v.encode()...)
		err = createFile(path, raw)
	} else {
		found = true
	}
	if err != nil {
		return nil, found, err
	}
	if len(raw) != 2*slotBytes {
		return nil, found, damaged(path, fmt.Sprintf("it has %d bytes, not %d", len(raw), 2*slotBytes), wayOut)
	}
	first, second := v.decodeSlot(raw[:slotBytes]), v.decodeSlot(raw[slotBytes:])
	if !first && !second {
		return nil, found, damaged(path, "both copies of the node's vote are unreadable", wayOut)
	}
	v.f, err = os.OpenFile(path, os.O_WRONLY, 0)
	return v, found, err
}

// save writes the next slot, durably. raft panics where its term cannot be saved: so this ends raft's goroutine
// instead.
func (v *voteFile) save() error {
	if v.ahead != nil {
		v.ahead.all()
	}
	v.sequence++
	_, err := v.f.WriteAt(v.encode(), int64(v.sequence%2)*slotBytes)
	if err == nil {
		err = unix.Fdatasync(int(v.f.Fd()))
	}
	if err != nil && v.armed.Load() {
		v.fail(fmt.Errorf("save the vote: %w", err))
		runtime.Goexit()
	}
	return err
}

// Set saves the candidate that got the vote; raft has no other byte string.
func (v *voteFile) Set(key, value []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if string(key) != "LastVoteCand" || len(value) > maxCandidateBytes {
		return fmt.Errorf("no place for %q of %d bytes", key, len(value))
	}
	v.voteFor = append([]byte(nil), value...)
	return v.save()
}

// Get gives the candidate.
func (v *voteFile) Get(key []byte) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if string(key) != "LastVoteCand" {
		return nil, fmt.Errorf("no place for %q", key)
	}
	return append([]byte(nil), v.voteFor...), nil
}

// SetUint64 saves a term.
func (v *voteFile) SetUint64(key []byte, value uint64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch string(key) {
	case "CurrentTerm":
		v.term = value
	case "LastVoteTerm":
		v.voteTerm = value
	default:
		return fmt.Errorf("no place for %q", key)
	}
	return v.save()
}

// GetUint64 gives a term.
func (v *voteFile) GetUint64(key []byte) (uint64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch string(key) {
	case "CurrentTerm":
		return v.term, nil
	case "LastVoteTerm":
		return v.voteTerm, nil
	}
	return 0, fmt.Errorf("no place for %q", key)
}

// Close closes the file.
func (v *voteFile) Close() error { return v.f.Close() }

// segmentList keeps raft-wal's list of segments in one checksummed file, replaced whole.
type segmentList struct {
	path  string
	found bool
}

const listMagic = "TDRLSEGS"

// Load reads the list; none is the empty list.
func (s *segmentList) Load(dir string) (types.PersistentState, error) {
	s.path = filepath.Join(dir, "segments")
	var state types.PersistentState
	raw, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return state, nil
	}
	if err != nil {
		return state, err
	}
	s.found = true
	n := len(raw) - 4
	if n < len(listMagic) || string(raw[:len(listMagic)]) != listMagic ||
		crc32.Checksum(raw[:n], castagnoli) != binary.LittleEndian.Uint32(raw[n:]) {
		return state, damaged(s.path, "its checksum is wrong", wayOut)
	}
	if err := json.Unmarshal(raw[len(listMagic):n], &state); err != nil {
		return state, damaged(s.path, err.Error(), wayOut)
	}
	return state, nil
}

// CommitState replaces the list, durably.
func (s *segmentList) CommitState(state types.PersistentState) error {
	body, err := json.Marshal(state)
	if err != nil {
		return err
	}
	raw := append([]byte(listMagic), body...)
	return createFile(s.path, binary.LittleEndian.AppendUint32(raw, crc32.Checksum(raw, castagnoli)))
}

var errNoStable = errors.New("term and vote are not kept in the log's directory")

// GetStable is not used: see voteFile.
func (s *segmentList) GetStable([]byte) ([]byte, error) { return nil, errNoStable }

// SetStable is not used: see voteFile.
func (s *segmentList) SetStable(_, _ []byte) error { return errNoStable }

// Close has nothing to close.
func (s *segmentList) Close() error { return nil }
