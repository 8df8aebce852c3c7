package link

import (
	"sync/atomic"
	"unsafe"

	"tendril/forwarding/clwire"
)

// word64 and word32 point into the mapped header; offsets are multiples of the
// size, and the mapping outlives every use (Conn.Close is last).
func word64(mem []byte, off int) *atomic.Uint64 {
	_ = mem[off+7]
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off]))
}

func word32(mem []byte, off int) *atomic.Uint32 {
	_ = mem[off+3]
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off]))
}

// newRing finds one ring's fields in the memfd's mapping.
func newRing(mem []byte, control, area, size int) ring {
	return ring{
		head:  word64(mem, control+clwire.RingHead),
		tail:  word64(mem, control+clwire.RingTail),
		state: word32(mem, control+clwire.RingConsumerState),
		area:  mem[area : area+size : area+size],
	}
}
