package spill

import (
	"fmt"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// Verify reads an object on disk and compares each chunk with its checksum, and that with sums where they are not nil.
// stop, which may be nil, is asked with the length of each chunk; true ends it: object.ErrTimeout. It needs one chunk
// of memory.
func (s Share) Verify(id object.ID, sums []byte, stop func(n uint64) bool) error {
	r, err := s.d.readAs(id, sums)
	if err != nil {
		return err
	}
	// begins at a page
	memory, err := unix.Mmap(-1, 0, ChunkBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("%w: %d bytes to read into: %w", object.ErrFull, ChunkBytes, err)
	}
	defer unix.Munmap(memory) // fails only for a mapping that is none
	for chunk := range chunks(r.SizeBytes) {
		b := memory[:min(ChunkBytes, r.SizeBytes-chunk*ChunkBytes)]
		if stop != nil && stop(uint64(len(b))) {
			return errStopped
		}
		if err := s.verifyChunk(r, b, chunk); err != nil {
			return fmt.Errorf("object %s on disk: %w", id, err)
		}
	}
	return nil
}

func (s Share) verifyChunk(r *Record, b []byte, chunk uint64) error {
	s.d.turns.take(s.owner)
	defer s.d.turns.give()
	return s.d.readChunks(r, Source{Bytes: b, Aligned: true}, chunk, nil)
}
