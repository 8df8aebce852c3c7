package index

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"tendril/store/object"
	"tendril/store/segment"
)

// Pins is the client's side of its slots. Safe for concurrent use, but Close.
type Pins struct {
	words   []atomic.Uint64 // shared with the daemon, which only reads
	taken   [(MaxSlots + 63) / 64]atomic.Uint64
	mapping *segment.Mapping
}

// NewPins takes a writable mapping of SlotsBytes over, also where it fails. Forked children do not inherit it.
func NewPins(m *segment.Mapping) (*Pins, error) {
	err := keepFromChildren(m)
	if len(m.Bytes()) < SlotsBytes {
		err = fmt.Errorf("%w: slots in %d bytes", object.ErrProtocol, len(m.Bytes()))
	}
	if err != nil {
		m.Unmap() // fails only for a mapping that is none
		return nil, err
	}
	p := newPins(wordsOf(m.Bytes()))
	p.mapping = m
	return p, nil
}

func newPins(words []atomic.Uint64) *Pins {
	p := &Pins{words: words}
	for i := MaxSlots; i < 64*len(p.taken); i++ {
		p.taken[i/64].Or(1 << (i % 64)) // there are no such slots
	}
	return p
}

// Close unmaps the slots. No other call may be under way or follow.
func (p *Pins) Close() {
	if p.mapping != nil {
		p.mapping.Unmap() // fails only for a mapping that is none
	}
}

// Hold puts a word into a slot and gives the slot's number; −1 where none is free. Only if Reader.Valid says so after
// it, and Ended does not, does the slot hold anything; otherwise the caller must Drop it at once.
func (p *Pins) Hold(w Word) int {
	slot := p.take()
	if slot < 0 {
		return -1
	}
	for used := p.words[slotsUsed].Load(); used <= uint64(slot); used = p.words[slotsUsed].Load() {
		p.words[slotsUsed].CompareAndSwap(used, uint64(slot)+1)
	}
	p.words[slotsFirst+slot].Store(uint64(w)) // and a fence: Valid's load does not pass it
	return slot
}

// take finds a free slot, a low one.
func (p *Pins) take() int {
	for i := range p.taken {
		for {
			taken := p.taken[i].Load()
			if taken == 1<<64-1 {
				break
			}
			bit := bits.TrailingZeros64(^taken)
			if p.taken[i].CompareAndSwap(taken, taken|1<<bit) {
				return 64*i + bit
			}
		}
	}
	return -1
}

// Ended reports whether the daemon looks at the slots no longer: the connection has ended, and nothing is held. To be
// asked after Hold, as Reader.Valid is.
func (p *Pins) Ended() bool { return p.words[slotsEnded].Load() != 0 }

// Leaving tells how often the daemon said that a segment should be let go; another number than before is worth a Sweep.
func (p *Pins) Leaving() uint64 { return p.words[slotsLeaving].Load() }

// Drop clears a slot: the object may go, and the caller has not looked at it since.
func (p *Pins) Drop(slot int) {
	p.words[slotsFirst+slot].Store(0)
	p.taken[slot/64].And(^uint64(1 << (slot % 64)))
}

// Tell notes an access, for the order in which the daemon sends objects to disk.
func (p *Pins) Tell(w Word) {
	at := p.words[slotsAt].Load()
	if p.words[slotsRing+(at-1)%RingEntries].Load() == uint64(w) {
		return // the same again
	}
	at = p.words[slotsAt].Add(1)
	p.words[slotsRing+(at-1)%RingEntries].Store(uint64(w))
}
