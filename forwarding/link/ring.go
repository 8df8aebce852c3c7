package link

import (
	"fmt"
	"sync/atomic"

	"tendril/forwarding/clwire"
)

// ring is one direction. Positions count bytes since the start; a position's
// place is its remainder by the area's size, a power of two.
type ring struct {
	head  *atomic.Uint64 // written by the consumer
	tail  *atomic.Uint64 // written by the producer
	state *atomic.Uint32 // written by both
	area  []byte         // immutable slice of shared memory
}

const align = 8

func padded(n int) int { return (n + align - 1) &^ (align - 1) }

// Each end looks at what the other one writes as seldom as it can, and publishes as seldom: a word that both touch for
// each record is fetched from the other processor's cache for each.

// batch is which part of a ring a consumer takes before it gives the space back, unless it is empty before.
const batch = 32

// producer is the sending end; its owner's lock guards it.
type producer struct {
	ring
	next uint64 // = tail, kept privately so that the peer cannot move it
	seen uint64 // head, when it was looked at last
}

// push copies one record in and publishes it. It reports false when there is
// no room now. payload ≤ MaxRecord.
func (p *producer) push(h clwire.Header, payload []byte) (bool, error) {
	size := uint64(len(p.area))
	need := uint64(clwire.HeaderBytes + padded(len(payload)))
	at := p.next & (size - 1)
	rest := size - at
	if need <= rest {
		rest = 0
	}
	if need+rest > size-(p.next-p.seen) {
		p.seen = p.head.Load()
		used := p.next - p.seen
		if used > size {
			p.seen = p.next - size
			return false, fmt.Errorf("%w: ring head is ahead of tail %d", ErrCorrupt, p.next)
		}
		if need+rest > size-used {
			return false, nil
		}
	}
	if rest > 0 {
		p.pad(at, rest)
		at = 0
	}
	h.Length = uint32(len(payload))
	h.Put(p.area[at:])
	copy(p.area[at+clwire.HeaderBytes:], payload)
	p.next += need
	p.tail.Store(p.next)
	return true, nil
}

// pad fills the area's end with one record of type Pad; the tail is published
// with the record that follows. A rest of 8 bytes holds no header: the
// consumer skips it by the same rule.
func (p *producer) pad(at, rest uint64) {
	if rest >= clwire.HeaderBytes {
		clwire.Header{Length: 0, Type: clwire.TypePad}.Put(p.area[at:])
	}
	p.next += rest
}

// bell says whether the consumer wants one for a record just published, and
// takes the request if so.
func (p *producer) bell(urgent bool) bool {
	switch p.state.Load() {
	case clwire.ConsumerAwake:
		return false
	case clwire.ConsumerLazy:
		if !urgent && p.next-p.head.Load() < uint64(len(p.area))/2 {
			return false
		}
	}
	return p.state.Swap(clwire.ConsumerAwake) != clwire.ConsumerAwake
}

// consumer is the receiving end; one goroutine at a time owns it.
type consumer struct {
	ring
	next     uint64 // position of the next record
	seen     uint64 // tail, when it was looked at last
	released uint64 // = head, kept privately
}

func (c *consumer) empty() bool { return c.tail.Load() == c.next }

// pull returns the next record, aliasing the ring. The space of those before it goes back to the producer, many
// together: at the latest when there is none.
func (c *consumer) pull() (h clwire.Header, payload []byte, ok bool, err error) {
	size := uint64(len(c.area))
	if c.next-c.released >= size/batch {
		c.release()
	}
	for {
		if c.seen == c.next {
			c.seen = c.tail.Load()
		}
		avail := c.seen - c.next
		if avail == 0 {
			c.release()
			return h, nil, false, nil
		}
		if avail > size || avail%align != 0 {
			return h, nil, false, fmt.Errorf("%w: %d bytes claimed in a ring of %d", ErrCorrupt, avail, size)
		}
		at := c.next & (size - 1)
		rest := size - at
		if rest < clwire.HeaderBytes {
			c.skip(rest)
			continue
		}
		if avail < clwire.HeaderBytes {
			return h, nil, false, fmt.Errorf("%w: %d bytes hold no record", ErrCorrupt, avail)
		}
		if h, err = clwire.ParseHeader(c.area[at:]); err != nil {
			return h, nil, false, err
		}
		if h.Type == clwire.TypePad {
			c.skip(rest)
			continue
		}
		need := uint64(clwire.HeaderBytes + padded(int(h.Length)))
		if need > avail || need > rest {
			return h, nil, false, fmt.Errorf("%w: %v of %d bytes, %d there", ErrCorrupt, h.Type, h.Length, avail)
		}
		from := at + clwire.HeaderBytes
		c.next += need
		return h, c.area[from : from+uint64(h.Length) : from+uint64(h.Length)], true, nil
	}
}

func (c *consumer) skip(n uint64) { c.next += n }

// release gives everything pulled so far back.
func (c *consumer) release() {
	if c.released != c.next {
		c.released = c.next
		c.head.Store(c.next)
	}
}
