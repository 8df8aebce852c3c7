package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"tendril/ipc/wire"
	"tendril/store/index"
	"tendril/store/object"
	"tendril/store/segment"
)

// IndexUse says whether a connection gets objects through the index in shared memory, without a system call, where it
// can.
type IndexUse int

const (
	// IndexAuto does what the environment variable TENDRIL_INDEX says: on or off; the default is off.
	IndexAuto IndexUse = iota
	IndexOn
	IndexOff
)

func (u IndexUse) wanted() bool {
	if u == IndexAuto {
		switch strings.ToLower(os.Getenv("TENDRIL_INDEX")) {
		case "on", "1", "yes", "true":
			return true
		}
	}
	return u == IndexOn
}

// The states of an indexDoor.
const (
	indexUnwanted = iota
	indexWanted   // opened by the next Get over the socket
	indexOpening
	indexOpen
	indexRefused
)

// indexDoor is a connection's way to the index: it is opened by the first Get.
type indexDoor struct {
	state atomic.Int32
	index atomic.Pointer[fastIndex] // nil unless open; changed under Conn.mu
	why   atomic.Pointer[error]     // why it was refused
}

// fastIndex is the index of one connection. Its memory stays mapped while anybody uses it.
type fastIndex struct {
	c       *Conn
	gen     uint64 // the life of the connection that it is of
	reader  index.Reader
	pins    *index.Pins
	users   atomic.Int64 // one for the connection, one a get under way, one an object held in a slot
	views   viewTable    // those that the index may give objects in
	growing atomic.Bool
	held    [index.MaxSlots]atomic.Pointer[Object] // by slot: who takes an Object out lets go of it
	over    atomic.Bool                            // the connection has failed: nothing is got any more

	// A daemon that was killed leaves an index that alters no more. So while objects are got through it, the connection
	// is used now and then; after a pause the first get is over the socket.
	watched atomic.Bool // the sweeping timer runs for it; set under Conn.mu
	used    atomic.Bool // since the timer looked
	unused  int         // looks without use; guarded by Conn.mu
}

// indexState says whether the connection uses the index in shared memory: nil if so, otherwise why not. It opens it
// where it is wanted and no Get has done so yet.
func (c *Conn) indexState(ctx context.Context) error {
	c.mu.Lock()
	gen, err := c.gen, c.err
	c.mu.Unlock()
	if err != nil {
		return err
	}
	c.openIndex(ctx, gen)
	switch c.door.state.Load() {
	case indexOpen:
		return nil
	case indexRefused:
		return *c.door.why.Load()
	case indexUnwanted:
		return fmt.Errorf("%w: the index is off: set Options.Index or TENDRIL_INDEX=on", object.ErrUnsupported)
	}
	return fmt.Errorf("%w: the index is being opened", object.ErrBusy)
}

// wantIndex prepares the opening. Before the Conn is shared.
func (c *Conn) wantIndex(use IndexUse) {
	if use.wanted() && !c.remote {
		c.door.state.Store(indexWanted)
	}
}

// prepareIndex precedes a Get over the socket: the daemon puts what is got into an index that is open.
func (c *Conn) prepareIndex(ctx context.Context) {
	if c.door.state.Load() == indexWanted {
		c.openIndex(ctx, c.life())
	}
}

func (c *Conn) life() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gen
}

// useIndex follows a Get over the socket: the next one of what lies in v may go through the index.
func (c *Conn) useIndex(ctx context.Context, v *view) {
	if ix := c.door.index.Load(); ix != nil {
		c.remember(v)
		ix.grow(ctx)
		if !ix.watched.Load() {
			c.mu.Lock()
			ix.watch()
			c.mu.Unlock()
		}
	}
}

// unusedLooks is how many of them end the watch.
const unusedLooks = 5

// watch begins to look whether the daemon lives. It has just answered. Conn.mu is held.
func (ix *fastIndex) watch() {
	ix.unused = 0
	ix.used.Store(true)
	ix.watched.Store(true)
	ix.c.setSweep()
}

// watchIndex ends that where the index is not used. Conn.mu is held.
func (c *Conn) watchIndex() {
	ix := c.door.index.Load()
	if ix == nil {
		return
	}
	ix.unused++
	if ix.used.Swap(false) {
		ix.unused = 0
	}
	ix.watched.Store(ix.unused < unusedLooks)
}

// watchesIndex reports whether the sweeping timer runs for the index. Conn.mu is held.
func (c *Conn) watchesIndex() bool {
	ix := c.door.index.Load()
	return ix != nil && ix.watched.Load()
}

// openIndex asks the daemon for the index, once in each life of the connection.
func (c *Conn) openIndex(ctx context.Context, gen uint64) {
	if c.door.state.Load() != indexWanted || !c.door.state.CompareAndSwap(indexWanted, indexOpening) {
		return
	}
	ix, err := c.askIndex(ctx, gen)
	if !c.takeIndex(ix, gen, err) && ix != nil {
		ix.leave()
	}
}

// takeIndex takes over what askIndex gave; false where the connection has broken meanwhile, or refused it.
func (c *Conn) takeIndex(ix *fastIndex, gen uint64, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed || c.err != nil || c.gen != gen || errors.Is(err, ErrDisconnected) || isContext(err):
		c.door.state.Store(indexWanted) // of the connection's next life
	case err != nil:
		c.door.why.Store(&err)
		c.door.state.Store(indexRefused)
	default:
		c.door.index.Store(ix)
		c.door.state.Store(indexOpen)
		ix.watch()
		return true
	}
	return false
}

// isContext reports whether a context ended.
func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (c *Conn) askIndex(ctx context.Context, gen uint64) (*fastIndex, error) {
	k, err := c.roundTripIn(ctx, gen, wire.OpenIndex, nil)
	if err != nil {
		return nil, err
	}
	defer k.recycle()
	defer k.closeFiles()
	var m wire.OpenIndexReply
	if err := m.Decode(k.payload); err != nil {
		return nil, err
	}
	if k.files[0] == nil || k.files[1] == nil || m.SlotsBytes != index.SlotsBytes {
		return nil, fmt.Errorf("%w: an index without its descriptors, or with slots of %d bytes", object.ErrProtocol,
			m.SlotsBytes)
	}
	slots, err := segment.Map(k.files[0], m.SlotsBytes, true)
	if err != nil {
		return nil, err
	}
	pins, err := index.NewPins(slots)
	if err != nil {
		return nil, err
	}
	ix := &fastIndex{c: c, gen: gen, pins: pins}
	ix.users.Store(1)
	if err := ix.addLevel(k.files[1], m.LevelBytes); err != nil {
		pins.Close()
		return nil, err
	}
	return ix, nil
}

func (ix *fastIndex) addLevel(f *os.File, bytes uint64) error {
	m, err := segment.Map(f, bytes, false)
	if err != nil {
		return err
	}
	return ix.reader.Add(m)
}

// grow gets the levels that the daemon's table has got since. A failure leaves their objects to the socket.
func (ix *fastIndex) grow(ctx context.Context) {
	if !ix.reader.Behind() || !ix.enter() {
		return
	}
	defer ix.leave()
	if !ix.growing.CompareAndSwap(false, true) {
		return
	}
	for ix.reader.Behind() {
		if err := ix.nextLevel(ctx); isContext(err) {
			break
		} else if err != nil {
			return // not asked again
		}
	}
	ix.growing.Store(false)
}

func (ix *fastIndex) nextLevel(ctx context.Context) error {
	k, err := ix.c.roundTripIn(ctx, ix.gen, wire.IndexLevel,
		&wire.IndexLevelRequest{Level: uint8(ix.reader.Levels())})
	if err != nil {
		return err
	}
	defer k.recycle()
	defer k.closeFiles()
	var m wire.Number
	if err := m.Decode(k.payload); err != nil {
		return err
	}
	if k.files[0] == nil {
		return fmt.Errorf("%w: a level of the index without its descriptor", object.ErrProtocol)
	}
	return ix.addLevel(k.files[0], m.N)
}

// enter keeps the index mapped; false where it is closed.
func (ix *fastIndex) enter() bool { return addUnlessZero(&ix.users) }

func (ix *fastIndex) leave() {
	if ix.users.Add(-1) == 0 {
		ix.reader.Close()
		ix.pins.Close()
	}
}

func addUnlessZero(n *atomic.Int64) bool {
	for have := n.Load(); have > 0; have = n.Load() {
		if n.CompareAndSwap(have, have+1) {
			return true
		}
	}
	return false
}

// fastGet gets an object through the index; nil where the socket is to be asked.
func (c *Conn) fastGet(ctx context.Context, m *wire.GetRequest) *Object {
	ix := c.door.index.Load()
	if ix == nil || ended(ctx) != nil || !ix.watched.Load() || !ix.enter() {
		return nil
	}
	if !ix.used.Load() {
		ix.used.Store(true)
	}
	var key index.Key
	switch {
	case !m.ID.IsZero():
		key = index.ByID(m.ID)
	case m.Name != "":
		key = index.ByName(m.Name)
	default:
		ix.leave()
		return nil
	}
	o, rescued := ix.get(key)
	if o == nil && !rescued {
		ix.leave()
	}
	return o
}

// get finds and holds an object; nil where it cannot. rescued: rescueHeld was faster, and what was to be left is.
func (ix *fastIndex) get(key index.Key) (o *Object, rescued bool) {
	var f index.Found
	if !ix.reader.Find(key, &f) {
		return nil, false
	}
	var v *view
	var memory []byte
	if f.Segment != 0 {
		var err error
		if v = ix.views.find(f.Segment); v == nil || !addUnlessZero(&v.fast) {
			return nil, false
		}
		if memory, err = slice(v.memory, f.Offset, f.Bytes); err != nil { // read while it changed, or a lie
			ix.leaveView(v)
			return nil, false
		}
	}
	slot := ix.pins.Hold(f.Word)
	if slot < 0 {
		ix.leaveView(v)
		return nil, false
	}
	o = &Object{c: ix.c, id: f.ID(), view: v, off: f.Offset, size: f.Bytes, class: f.Class, meta: f.Meta(), index: ix,
		slot: int32(slot), data: memory}
	ix.held[slot].Store(o) // and then over is looked at: rescueHeld finds the object, or this finds that it is over
	valid := ix.reader.Valid(f.Word) && !ix.pins.Ended()
	if valid && !ix.over.Load() {
		ix.pins.Tell(f.Word)
		return o, false
	}
	if ix.held[slot].CompareAndSwap(o, nil) {
		ix.pins.Drop(slot)
		ix.leaveView(v)
		return nil, false
	}
	if valid {
		return o, true
	}
	o.released.Store(true)
	ix.c.unref(v)
	ix.c.releaseObject(o)
	ix.leave()
	return nil, true
}

// release gives an object back that get gave; false where the connection broke since, and rescueHeld was here: then it
// is like any other.
func (ix *fastIndex) release(o *Object) bool {
	if !ix.held[o.slot].CompareAndSwap(o, nil) {
		return false
	}
	ix.pins.Drop(int(o.slot))
	ix.leaveView(o.view)
	ix.leave()
	return true
}

// rescueHeld puts what is held in slots on the list of what is held over the socket: the connection is broken, and its
// next life claims those. Conn.mu is held.
func (c *Conn) rescueHeld() {
	ix := c.door.index.Load()
	if ix == nil {
		return
	}
	ix.over.Store(true)
	for slot := range ix.held {
		o := ix.held[slot].Swap(nil)
		if o == nil {
			continue
		}
		c.list(o)
		if v := o.view; v != nil {
			if v.refs == 0 {
				c.idle--
			}
			v.refs++
			v.fast.Add(-1) // not the last: closeIndex, which gives up the index's own, follows
		}
		ix.pins.Drop(slot)
		// its user of the index leaves at the object's Release: get may be looking at the index still
	}
}

func (ix *fastIndex) leaveView(v *view) {
	if v == nil || v.fast.Add(-1) > 0 {
		return
	}
	ix.c.mu.Lock() // closeIndex was here: the last one unmaps
	defer ix.c.mu.Unlock()
	ix.c.dropIfUnused(v)
}

// remember lets the index give objects in a view that is mapped for reading.
func (c *Conn) remember(v *view) {
	ix := c.door.index.Load()
	if ix == nil || v == nil || v.fast.Load() > 0 {
		return
	}
	memory, err := v.forReading()
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && v.fast.Load() == 0 && c.views[v.id] == v {
		v.memory = memory
		v.fast.Store(1)
		ix.views.add(v)
	}
}

// unremember takes a view from the index; false where an object in it is held through the index. Conn.mu is held.
func (c *Conn) unremember(v *view) bool {
	ix := c.door.index.Load()
	if ix == nil || v.fast.Load() == 0 {
		return true
	}
	if !v.fast.CompareAndSwap(1, 0) {
		return false
	}
	ix.views.remove(v)
	return true
}

// closeIndex ends the index with a life of the connection. Conn.mu is held; views are let go before their mappings are.
func (c *Conn) closeIndex() {
	if s := c.door.state.Load(); s == indexOpen || s == indexRefused {
		c.door.state.Store(indexWanted)
	}
	ix := c.door.index.Swap(nil)
	if ix == nil {
		return
	}
	ix.over.Store(true)
	for _, v := range c.views {
		if v.fast.Load() > 0 {
			v.fast.Add(-1) // who is the last to leave unmaps, if it is to be unmapped
		}
	}
	ix.leave()
}

// viewTable finds views by their segment's number without a lock. Changes are made under Conn.mu.
type viewTable struct {
	places atomic.Pointer[[]atomic.Pointer[view]] // a power of two of them; open addressing
	taken  int                                    // places that are not nil
}

// removedView marks a place that was given up: no segment has the number 0.
var removedView = &view{}

// find gives a segment's view, or nil.
func (t *viewTable) find(segment uint64) *view {
	places := t.places.Load()
	if places == nil {
		return nil
	}
	mask := uint64(len(*places) - 1)
	for at := segment & mask; ; at = (at + 1) & mask {
		v := (*places)[at].Load()
		if v == nil || v.id == segment {
			return v
		}
	}
}

func (t *viewTable) add(v *view) {
	places := t.places.Load()
	if places == nil || 2*(t.taken+1) > len(*places) {
		places = t.rebuild(places)
	}
	mask := uint64(len(*places) - 1)
	for at := v.id & mask; ; at = (at + 1) & mask {
		if (*places)[at].Load() == nil {
			(*places)[at].Store(v)
			t.taken++
			return
		}
	}
}

// rebuild makes a table with room for as many again, without the places that were given up.
func (t *viewTable) rebuild(old *[]atomic.Pointer[view]) *[]atomic.Pointer[view] {
	var live []*view
	if old != nil {
		for i := range *old {
			if v := (*old)[i].Load(); v != nil && v != removedView {
				live = append(live, v)
			}
		}
	}
	n := 16
	for n < 4*(len(live)+1) {
		n *= 2
	}
	fresh := make([]atomic.Pointer[view], n)
	t.taken = 0
	t.places.Store(&fresh)
	for _, v := range live {
		t.add(v)
	}
	return &fresh
}

func (t *viewTable) remove(v *view) {
	places := t.places.Load()
	mask := uint64(len(*places) - 1)
	for at := v.id & mask; ; at = (at + 1) & mask {
		switch (*places)[at].Load() {
		case v:
			(*places)[at].Store(removedView)
			return
		case nil:
			return
		}
	}
}
