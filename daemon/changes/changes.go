// Package changes holds the last changes of something in a ring, for readers who follow them and may be slow.
//
// A reader has a place and no queue: however many there are and however slow, the ring is all the memory that they take
// together. One that falls behind the ring's beginning is told that it missed some, and goes on with what is there.
//
// Trust: places come from strangers; one that the ring did not give is a place behind what was missed.
// Locks: Ring.mu is a leaf.
package changes

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bounds of a ring: what does not fit in drops the oldest.
const (
	MaxChanges = 1024
	MaxBytes   = 256 << 10 // of data, and changeBytes each
)

// changeBytes is what a change takes besides its data.
const changeBytes = 64

// Missed is the kind of the change that a reader gets in place of those that it missed; it has no data.
const Missed = "missed"

// Change is one of them. Its data must not be altered.
type Change struct {
	Kind  string
	Data  []byte
	Place string // what From takes to go on behind it; set by Next
}

// Ring holds the last changes. Make it with New.
type Ring struct {
	name string // of its places; immutable

	mu     sync.Mutex // guards the rest
	first  uint64     // number of list[0]
	list   []Change
	bytes  int
	closed bool
	more   chan struct{} // closed at the next change, or at the end
}

// New makes an empty ring.
func New() *Ring {
	var name [8]byte
	rand.Read(name[:]) // never fails (crypto/rand)
	return &Ring{name: hex.EncodeToString(name[:]), first: 1, more: make(chan struct{})}
}

// Add puts a change behind all others. The ring has its data from now on.
func (r *Ring) Add(kind string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.list = append(r.list, Change{Kind: kind, Data: data})
	r.bytes += changeBytes + len(data)
	for len(r.list) > MaxChanges || r.bytes > MaxBytes && len(r.list) > 1 {
		r.bytes -= changeBytes + len(r.list[0].Data)
		r.list[0] = Change{}
		r.list = r.list[1:]
		r.first++
	}
	close(r.more)
	r.more = make(chan struct{})
}

// Close ends the ring: its readers get what is there, and then nothing. Idempotent.
func (r *Ring) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		close(r.more)
	}
}

// Reader follows a ring. It is one goroutine's, and needs no end.
type Reader struct {
	ring   *Ring
	next   uint64
	missed bool // what is before next
}

// From begins behind a place; "" is behind what is there now. At a place that the ring does not know the reader is told
// first that it missed some.
func (r *Ring) From(place string) *Reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := r.first + uint64(len(r.list))
	if place == "" {
		return &Reader{ring: r, next: end}
	}
	name, number, _ := strings.Cut(place, ".")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || name != r.name || n >= end {
		return &Reader{ring: r, next: end, missed: true}
	}
	return &Reader{ring: r, next: n + 1}
}

// Place says where the reader is.
func (r *Reader) Place() string { return r.ring.name + "." + strconv.FormatUint(r.next-1, 10) }

// Next gives the next change. It waits for one until stop is closed, wait is over or the ring ends: ok is false then,
// and over says whether the ring has ended.
func (r *Reader) Next(stop <-chan struct{}, wait time.Duration) (c Change, ok, over bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		c, ok, more := r.take()
		switch {
		case ok:
			return c, true, false
		case more == nil:
			return c, false, true
		}
		select {
		case <-more:
		case <-stop:
			return c, false, false
		case <-timer.C:
			return c, false, false
		}
	}
}

// take gives the next change, or what is closed when there is more; nil: the ring has ended.
func (r *Reader) take() (c Change, ok bool, more <-chan struct{}) {
	x := r.ring
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case r.next < x.first || r.missed:
		r.next, r.missed = max(r.next, x.first), false
		return Change{Kind: Missed, Place: r.Place()}, true, nil
	case r.next < x.first+uint64(len(x.list)):
		c = x.list[r.next-x.first]
		r.next++
		c.Place = r.Place()
		return c, true, nil
	case x.closed:
		return c, false, nil
	}
	return c, false, x.more
}
