package store

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"tendril/store/object"
	"tendril/store/segment"
	"tendril/store/spill"
)

// An object's sums are the XXH64 of each of its chunks (spill.ChunkBytes), as its record on disk has them. They are
// known from the seal on where that was asked for (Spec.Checksum) or the object is persisted, else from when it first
// went to disk or a scrub came by: an ordinary seal costs nothing. What is known is compared when the object goes to
// disk, when it comes back and when it is scrubbed. They are 8 bytes a MiB, which is not charged.

// sumsOf computes the sums of bytes. stop, which may be nil, is asked with the length of each chunk; true ends it: nil.
func sumsOf(b []byte, stop func(n uint64) bool) []byte {
	sums := make([]byte, 0, 8*(len(b)/spill.ChunkBytes+1))
	for at := 0; at < len(b); at += spill.ChunkBytes {
		chunk := b[at:min(at+spill.ChunkBytes, len(b))]
		if stop != nil && stop(uint64(len(chunk))) {
			return nil
		}
		sums = binary.LittleEndian.AppendUint64(sums, xxhash.Sum64(chunk))
	}
	return sums
}

// sumUp notes the sums of an object that is about to be sealed, where they were asked for. mu is held, and let go
// meanwhile.
func (s *Store) sumUp(e *entry) error {
	if !e.summed || e.sums != nil || e.seg == nil {
		return nil
	}
	view, err := e.seg.mem.Map(false)
	if err != nil {
		return err
	}
	memory := view.Bytes()[e.off:][:e.size]
	e.sealing = true
	s.unlock()
	sums := sumsOf(memory, func(uint64) bool { return s.isClosed() })
	view.Unmap() // fails only for a mapping that is none
	s.mu.Lock()
	e.sealing = false
	e.sums = sums
	return nil
}

// foundDamaged notes that an object's memory is not what it was: nobody gets it any more, and it does not go to disk.
// mu is held.
func (s *Store) foundDamaged(e *entry, why error) {
	s.unindex(e)
	s.counts.Damaged++
	e.damage, e.fault = why, why
	s.reconsider(e)
}

// isDamaged says that an object's memory is not what it was, for who would get it.
func (e *entry) isDamaged() error {
	if e.damage == nil {
		return nil
	}
	return fmt.Errorf("%w: delete it, and put it again", e.damage)
}

// viewed maps an object's memory for reading; nil where it has none. mu is held.
func (e *entry) viewed() (view *segment.Mapping, memory []byte, err error) {
	if e.seg == nil || e.seg.mem == nil || e.state != object.Sealed || e.gpu != nil && e.gpu.fd >= 0 {
		return nil, nil, nil
	}
	if view, err = e.seg.mem.Map(false); err != nil {
		return nil, nil, err
	}
	return view, view.Bytes()[e.off:][:e.size], nil
}
