package raftnode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
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
}

// StoreLog appends one entry.
func (s *logStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs appends entries, durably when it returns.
func (s *logStore) StoreLogs(ls []*raft.Log) error {
	sealed := make([]*raft.Log, len(ls))
	for i, l := range ls {
		sealed[i] = withSum(l)
	}
	return s.report(s.WAL.StoreLogs(sealed))
}

// DeleteRange cuts entries off at one end.
func (s *logStore) DeleteRange(lo, hi uint64) error { return s.report(s.WAL.DeleteRange(lo, hi)) }

func (s *logStore) report(err error) error {
	if err != nil {
		s.fail(err)
	}
	return err
}

// GetLog reads an entry. raft panics, and would take the daemon with it, when a committed entry cannot be read: so this
// ends raft's goroutine instead, and the supervisor does the rest.
func (s *logStore) GetLog(index uint64, l *raft.Log) error {
	err := readEntry(s.WAL, index, l)
	if err == nil || errors.Is(err, raft.ErrLogNotFound) || !s.armed.Load() {
		return err
	}
	s.fail(fmt.Errorf("read entry %d: %w", index, err))
	runtime.Goexit()
	return err
}
