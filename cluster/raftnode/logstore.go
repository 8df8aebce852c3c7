package raftnode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errEntryDamaged = errors.New("an entry's checksum is wrong")

// entrySum is the CRC-32C over what an entry says: raft-wal checks only the last batch of its last segment, so that a
// damaged entry elsewhere would be replayed as it is. (raft-wal has a hook for codecs, but 0.4.0 cannot reopen a log
// written with one.)
func entrySum(l *raft.Log, data []byte) uint32 {
	var head [17]byte
	binary.LittleEndian.PutUint64(head[:], l.Index)
	binary.LittleEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	sum := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, l.Extensions)
	return crc32.Update(sum, castagnoli, data)
}

// withSum gives a copy of an entry with the checksum behind its data.
func withSum(l *raft.Log) *raft.Log {
	sealed := *l
	sealed.Data = binary.LittleEndian.AppendUint32(append(make([]byte, 0, len(l.Data)+4), l.Data...),
		entrySum(l, l.Data))
	return &sealed
}

// readEntry reads an entry, checks it and takes the checksum off.
func readEntry(w *wal.WAL, index uint64, l *raft.Log) error {
	if err := w.GetLog(index, l); err != nil {
		return err
	}
	n := len(l.Data) - 4
	if n < 0 || l.Index != index || entrySum(l, l.Data[:n]) != binary.LittleEndian.Uint32(l.Data[n:]) {
		return fmt.Errorf("%w (entry %d, %d bytes)", errEntryDamaged, index, len(l.Data))
	}
	l.Data = l.Data[:n]
	return nil
}

// logStore is raft-wal, with its faults reported to the engine. Every fault is final for the engine.
type logStore struct {
	*wal.WAL
	fail  func(error)
	armed atomic.Bool // raft runs: reads happen on its goroutines

	ahead *ahead
	leads func() bool // this node leads others, and they write what raft appends

	checked atomic.Pointer[checkedLog] // nil: there is none any more
}

func newLogStore(w *wal.WAL, fail func(error), leads func() bool) *logStore {
	s := &logStore{WAL: w, fail: fail, leads: leads}
	s.ahead = newAhead(s.write)
	return s
}

// maxCheckedBytes bounds what a checkedLog keeps.
const maxCheckedBytes = 16 << 20

// checkedLog is entries as they were read and checked before raft runs, which reads each of them twice more: for the
// membership, and to do it. raft-wal reads 64 KiB and decodes for each. It is immutable once raft has it.
type checkedLog struct {
	entries []raft.Log // one after the other
	bytes   int
}

// keep adds the entry that follows, unless that is too much.
func (c *checkedLog) keep(l *raft.Log) {
	n := len(l.Data) + len(l.Extensions) + 128 // about what the entry takes besides
	if k := len(c.entries); c.bytes+n > maxCheckedBytes || k > 0 && c.entries[k-1].Index+1 != l.Index {
		return
	}
	c.entries = append(c.entries, *l)
	c.bytes += n
}

// give finds an entry, and says whether it is the last one. The bytes that it has are nobody's to alter.
func (c *checkedLog) give(index uint64, l *raft.Log) (found, last bool) {
	if c == nil || len(c.entries) == 0 || index < c.entries[0].Index {
		return false, false
	}
	at := index - c.entries[0].Index
	if at >= uint64(len(c.entries)) {
		return false, false
	}
	*l = c.entries[at]
	return true, at == uint64(len(c.entries)-1)
}

// StoreLog appends one entry.
func (s *logStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs appends entries, durably when it returns, or, where this node leads others, somewhat later (ahead).
func (s *logStore) StoreLogs(ls []*raft.Log) error {
	other := func(l *raft.Log) bool { return l.Type != raft.LogCommand }
	if s.leads() && !slices.ContainsFunc(ls, other) && s.ahead.add(ls) {
		return nil
	}
	s.ahead.all()
	return s.write(ls)
}

// write appends entries durably.
func (s *logStore) write(ls []*raft.Log) error {
	sealed := make([]*raft.Log, len(ls))
	for i, l := range ls {
		sealed[i] = withSum(l)
	}
	return s.report(s.WAL.StoreLogs(sealed))
}

// DeleteRange cuts entries off at one end.
func (s *logStore) DeleteRange(lo, hi uint64) error {
	s.ahead.all()
	s.checked.Store(nil) // others may come in their places
	return s.report(s.WAL.DeleteRange(lo, hi))
}

func (s *logStore) report(err error) error {
	if err != nil {
		s.fail(err)
	}
	return err
}

// GetLog reads an entry. raft panics, and would take the daemon with it, when a committed entry cannot be read: so this
// ends raft's goroutine instead, and the supervisor does the rest.
func (s *logStore) GetLog(index uint64, l *raft.Log) error {
	if found, last := s.checked.Load().give(index, l); found {
		if last && s.armed.Load() { // raft has done all of them
			s.checked.Store(nil)
		}
		return nil
	}
	if s.ahead.get(index, l) {
		return nil
	}
	err := readEntry(s.WAL, index, l)
	if err == nil || errors.Is(err, raft.ErrLogNotFound) || !s.armed.Load() {
		return err
	}
	s.fail(fmt.Errorf("read entry %d: %w", index, err))
	runtime.Goexit()
	return err
}
