package session

import (
	"sync/atomic"

	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
)

// Parts that objects are made of.

// remoteObject is an object as a worker knows it. Who makes it known has the object's lock.
type remoteObject struct {
	id     atomic.Uint64 // changes when a published buffer gets fresh memory
	remote atomic.Pointer[worker]
}

// releaseRemote releases the worker's object, if there is one.
func (o *remoteObject) releaseRemote() {
	if w := o.remote.Load(); w != nil {
		w.SendOneWay(&clwire.Release{ID: o.id.Load()})
	}
}

// renumber releases the worker's object and gives this one another number: the worker gets a new object at the next
// use.
func (o *remoteObject) renumber(id uint64) {
	old := o.id.Swap(id)
	if w := o.remote.Swap(nil); w != nil {
		w.SendOneWay(&clwire.Release{ID: old})
	}
}

// placement is the shared memory that a root in place has, and has had. The buffer's lock guards it; published is
// written under it.
type placement struct {
	place     *memory.Place
	old       []*node.Segment // published memory that a reader of ours may still look at
	published atomic.Bool     // the memory is a store object now, not to be written again
}

// moveTo gives the buffer other memory, which is not published. left is what it had, and the caller frees; published
// memory stays, as old.
func (m *placement) moveTo(p *memory.Place) (left *memory.Place) {
	left = m.place
	m.place = p
	if m.published.Swap(false) {
		m.old = append(m.old, left.Segment)
		return nil
	}
	return left
}

// takePlaces leaves the buffer without memory.
func (m *placement) takePlaces() (p *memory.Place, old []*node.Segment) {
	p, old = m.place, m.old
	m.place, m.old = nil, nil
	return p, old
}

// inUse counts the commands under way that this side carries out with an object, or in several records, which the
// program may release meanwhile: what the object has goes with the last of them. The object's lock guards it.
type inUse struct {
	underWay int
	dropped  bool
}

// use counts one more. alive false: the object is gone, or about to be.
func (u *inUse) use() (alive bool) {
	if u.dropped && u.underWay == 0 {
		return false
	}
	u.underWay++
	return true
}

// endUse says whether the object can go.
func (u *inUse) endUse() (last bool) {
	u.underWay--
	return u.underWay == 0 && u.dropped
}

// drop notes that the program has let go, and says whether the object can go now.
func (u *inUse) drop() (unused bool) {
	u.dropped = true
	return u.underWay == 0
}
