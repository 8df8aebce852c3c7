package store

import (
	"errors"
	"time"

	"tendril/store/object"
)

// ErrWouldWait says that something was not done because it would have waited: nothing has changed. See AtOnce.
var ErrWouldWait = errors.New("store: this would wait")

// AtOnce is a connection for who may not wait: what would wait for memory, a disk or anybody else who has the object is
// ErrWouldWait, and changes nothing. The answer and the act are one hold of the lock: between two, others could have
// filled the store.
type AtOnce struct{ c *Conn }

// AtOnce gives the connection for who may not wait.
func (c *Conn) AtOnce() AtOnce { return AtOnce{c} }

// Create is Conn.Create. Memory of its own, or checksums, would wait.
func (a AtOnce) Create(spec Spec) (Handle, error) { return a.c.create(spec, true) }

// Put is Conn.Put. A first one, or one that takes a name from another object, would wait.
func (a AtOnce) Put(spec Spec, replace bool, data []byte) (Handle, error) {
	return a.c.put(spec, replace, data, true)
}

// Seal is Conn.Seal. A strict one would wait.
func (a AtOnce) Seal(id object.ID, strict bool) error {
	a.c.s.mu.Lock()
	defer a.c.s.unlock()
	if strict || !a.c.atOnce(id) {
		return ErrWouldWait
	}
	return a.c.seal(id, false)
}

// SealWith is Conn.SealWith.
func (a AtOnce) SealWith(id object.ID, meta []byte) error {
	a.c.s.mu.Lock()
	defer a.c.s.unlock()
	if !a.c.atOnce(id) {
		return ErrWouldWait
	}
	return a.c.sealWith(id, meta)
}

// Push is Conn.Push.
func (a AtOnce) Push(stream uint64, id object.ID, wait time.Duration, wake func(*Waiter)) (*Waiter, error) {
	a.c.s.mu.Lock()
	defer a.c.s.unlock()
	if !a.c.atOnce(id) || !a.c.makesWayAtOnce(stream, id) {
		return nil, ErrWouldWait
	}
	return a.c.push(stream, id, wait, wake)
}

// CreateDevice is Conn.CreateDevice. Only memory that the connection keeps is had at once.
func (a AtOnce) CreateDevice(spec Spec, device object.Device) (DeviceHandle, error) {
	return a.c.createDevice(spec, device, true)
}

// Abort is Conn.Abort. It waits, but of memory of a GPU that its maker keeps.
func (a AtOnce) Abort(id object.ID) error {
	a.c.s.mu.Lock()
	defer a.c.s.unlock()
	if e := a.c.s.objects[id]; e == nil || e.gpu == nil || !a.c.s.goesAtOnce(e) {
		return ErrWouldWait
	}
	return a.c.abort(id)
}

// Release is Conn.Release.
func (a AtOnce) Release(id object.ID) error {
	a.c.s.mu.Lock()
	defer a.c.s.unlock()
	if !a.c.releasesAtOnce(id) {
		return ErrWouldWait
	}
	return a.c.release(id)
}

// Delete is Conn.Delete. By name it would wait.
func (a AtOnce) Delete(id object.ID, name string) error {
	a.c.s.mu.Lock()
	defer a.c.s.unlock()
	if !a.c.atOnce(id) {
		return ErrWouldWait
	}
	return a.c.delete(id, name)
}

// atOnce reports whether sealing, deleting or pushing the object waits for nothing: neither for memory nor for a disk,
// nor for anybody else who has it. mu is held.
func (c *Conn) atOnce(id object.ID) bool {
	e := c.s.objects[id]
	return e != nil && e.class == object.Ephemeral && !e.summed && !e.onDisk && !c.s.claimed(e) && !e.sealing &&
		e.refs == c.refs[id].count && c.roomAtOnce()
}

// releaseAtOnce is up to how many bytes of memory a release may free where somebody waits: that takes some 0.1 ms a
// MiB.
const releaseAtOnce = 4 << 20

// releasesAtOnce reports whether a release of the object waits for nothing. mu is held.
func (c *Conn) releasesAtOnce(id object.ID) bool {
	e := c.refs[id].e
	return e == nil || c.s.goesAtOnce(e)
}

// goesAtOnce reports whether letting an object go waits for nothing. mu is held.
func (s *Store) goesAtOnce(e *entry) bool {
	return e.tree == 0 && !e.onDisk && !s.claimed(e) && (e.gpu == nil || e.gpu.staysAtOnce(e.tenant)) &&
		(e.seg == nil || e.seg.writer != nil || e.seg.bytes <= releaseAtOnce)
}

// makesWayAtOnce reports whether a stream that drops its oldest frames has room for one more object without waiting:
// their writers may be gone, and with a frame its memory. mu is held.
func (c *Conn) makesWayAtOnce(stream uint64, id object.ID) bool {
	end := c.streams[stream]
	if end == nil || !end.st.dropOldest {
		return true
	}
	st, n := end.st, c.s.objects[id].size
	bytes := st.bytes
	for i, f := range st.frames {
		left := len(st.frames) - i
		if left < st.limit && (st.limitBytes == 0 || bytes+n <= st.limitBytes) || i == lockSteps {
			break // room, or so many that the attendant lets them go
		}
		if f.e.refs == 1 && !c.s.goesAtOnce(f.e) {
			return false
		}
		bytes -= f.e.size
	}
	return true
}

// createsAtOnce reports whether an object can be made without waiting: there is memory for it. mu is held.
func (c *Conn) createsAtOnce(spec *Spec) bool {
	size := spec.SizeBytes
	switch {
	case spec.Own || spec.Shared || spec.Checksum || !c.roomAtOnce():
		return false
	case size == 0:
		return true
	case size >= c.s.opts.LargeBytes:
		return c.findWhole(size) != nil
	}
	return c.room.findAligned(extent(size)) != nil
}

// roomAtOnce reports whether a record or two can be charged without anything having to go. mu is held.
func (c *Conn) roomAtOnce() bool {
	const some = 4*entryBytes + 4*object.MaxMetaBytes
	limit := c.s.mostBytes(c.tenant)
	return c.s.hasRoom(some) && (limit == 0 || c.tenant.charged+some <= limit)
}
