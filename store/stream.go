package store

import (
	"container/list"
	"fmt"
	"slices"
	"time"

	"tendril/store/object"
)

// A stream is a bounded channel of sealed objects, its frames. A push moves the pusher's reference into the stream, a
// pop out of it: what waits in a stream is held by it, whatever becomes of its writer. A frame's memory is its writer's
// to use again once the reader has released it, so a stream in motion makes no new segments and passes no new
// descriptors.
//
// Whoever waits is answered by the one it waited for: a push hands its frame to the pop that waits longest, under mu,
// and unlock then calls that Waiter's wake. So there is no moment at which a frame belongs to nobody.

// streamBytes is what a stream's record is charged, besides its name.
const streamBytes = 1024

// maxStreamWaits bounds the pushes and pops of one connection that wait, and maxStreamEnds the streams that it has
// open.
const (
	maxStreamWaits = 64
	maxStreamEnds  = 1024
)

// stream is guarded by Store.mu.
type stream struct {
	tenant     *tenant
	name       string
	created    time.Time
	charge     uint64
	limit      int
	limitBytes uint64 // 0: no bound
	dropOldest bool
	keep       bool

	frames  []frame
	bytes   uint64
	pushed  uint64 // the number of the last frame
	popped  uint64
	dropped uint64
	unacked int // frames that were popped and may come back: the stream stays for them
	ends    map[*streamEnd]struct{}
	writers int
	ended   bool
	broken  error     // why no more frames come, until another writer does
	gone    bool      // removed: nothing may be pushed or popped
	pushers list.List // of *Waiter, in their order
	poppers list.List
	// matching: more of these are to be served than one hold of the lock does; the attendant goes on
	matching bool
}

// frame is an object that waits. The stream holds a reference to it.
type frame struct {
	e      *entry
	number uint64
}

// streamEnd is a stream as one connection has it open.
type streamEnd struct {
	st            *stream
	c             *Conn
	id            uint64 // c's number for it
	reads, writes bool
}

// StreamSpec says which stream is opened and how.
type StreamSpec struct {
	Name          string
	Reads, Writes bool
	New           bool // it must not be there yet
	Existing      bool // it must be there
	DropOldest    bool // a writer's; also below: a push into a full stream drops the frame that waits longest
	Keep          bool // it stays when nobody has it open and nothing waits in it
	Frames        int  // that may wait; 0: as it is, for a new one object.DefaultStreamFrames
	Bytes         uint64
}

// StreamEnd is an opened stream.
type StreamEnd struct {
	ID     uint64 // the connection's number for it
	Frames int
	Bytes  uint64
}

// Waiter is a push or a pop that waits. Its wake is called once, without a lock, by whoever ends the waiting, and must
// not wait for anybody.
type Waiter struct {
	c    *Conn
	end  *streamEnd
	wake func(*Waiter)
	push *entry // nil: a pop

	// Guarded by Store.mu.
	timer *time.Timer
	queue *list.List // of its stream: where it stands
	at    *list.Element
	over  bool
	got   frame
	err   error
}

// Popped is a frame that a connection has taken, with a reference.
type Popped struct {
	Handle
	Number uint64 // from 1 on, in the order of the pushes; what is missing was dropped or popped by others
}

// OpenStream opens a stream of the tenant's, which is made where it is missing. Bounds and DropOldest are a writer's to
// set. Errors: ErrInvalid, ErrExists (New), ErrNotFound (Existing), ErrLimit, ErrQuota, ErrFull.
func (c *Conn) OpenStream(spec StreamSpec) (StreamEnd, error) {
	if err := checkStream(spec); err != nil {
		return StreamEnd{}, err
	}
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	if c.closed {
		return StreamEnd{}, errConnClosed
	}
	st, err := c.streamFor(spec)
	if err != nil {
		return StreamEnd{}, err
	}
	st.keep = st.keep || spec.Keep
	c.lastStream++
	end := &streamEnd{st: st, c: c, id: c.lastStream, reads: spec.Reads, writes: spec.Writes}
	st.ends[end] = struct{}{}
	if spec.Writes {
		st.setBounds(spec)
		st.writers++
		st.broken = nil
		s.match(st)
	}
	if c.streams == nil {
		c.streams = make(map[uint64]*streamEnd)
	}
	c.streams[end.id] = end
	return StreamEnd{ID: end.id, Frames: st.limit, Bytes: st.limitBytes}, nil
}

// streamFor finds the stream that is to be opened, or makes it. mu is held, and let go where memory is short.
func (c *Conn) streamFor(spec StreamSpec) (*stream, error) {
	if len(c.streams) >= maxStreamEnds {
		return nil, fmt.Errorf("%w: this connection has %d streams open, which is the limit", object.ErrBusy,
			len(c.streams))
	}
	st := c.tenant.streams[spec.Name]
	switch {
	case st == nil && spec.Existing:
		return nil, noStream(spec.Name)
	case st != nil && spec.New:
		return nil, fmt.Errorf("%w: a stream named %q exists already", object.ErrExists, spec.Name)
	case st == nil:
		return c.newStream(spec)
	case st.ended && spec.Writes:
		return nil, st.hasEnded()
	}
	return st, nil
}

func checkStream(spec StreamSpec) error {
	switch {
	case spec.Name == "":
		return fmt.Errorf("%w: a stream needs a name", object.ErrInvalid)
	case !spec.Reads && !spec.Writes:
		return fmt.Errorf("%w: open a stream to read, to write, or both", object.ErrInvalid)
	case spec.New && spec.Existing:
		return fmt.Errorf("%w: a stream cannot be both new and existing", object.ErrInvalid)
	case spec.Frames < 0 || spec.Frames > object.MaxStreamFrames:
		return fmt.Errorf("%w: a stream of %d frames: want 1 to %d", object.ErrInvalid, spec.Frames,
			object.MaxStreamFrames)
	case !spec.Writes && (spec.Frames != 0 || spec.Bytes != 0 || spec.DropOldest):
		return fmt.Errorf("%w: only writers set a stream's bounds", object.ErrInvalid)
	}
	return checkName(spec.Name)
}

func noStream(name string) error {
	if err := object.CheckKey(name); err != nil {
		return err
	}
	return fmt.Errorf("%w: no stream is named %.300q", object.ErrNotFound, name)
}

func (st *stream) hasEnded() error { return fmt.Errorf("%w: %q", object.ErrEnded, st.name) }

// newStream makes the stream that a connection opens and that is not there. mu is held, and let go where memory is
// short.
func (c *Conn) newStream(spec StreamSpec) (*stream, error) {
	s, t, name := c.s, c.tenant, spec.Name
	if len(t.streams) >= object.MaxStreams {
		return nil, fmt.Errorf("%w: %s has %d streams, which is the limit", object.ErrLimit, t.name, len(t.streams))
	}
	st := &stream{
		tenant: t, name: name, created: time.Now(), charge: streamBytes + uint64(len(name)),
		limit: object.DefaultStreamFrames,
		ends:  make(map[*streamEnd]struct{}),
	}
	if err := s.reserveRoom(t, st.charge, c.isStopped); err != nil {
		return nil, err
	}
	switch { // mu may have been let go
	case c.closed:
		s.uncharge(t, st.charge)
		return nil, errConnClosed
	case t.streams[name] != nil || len(t.streams) >= object.MaxStreams || len(c.streams) >= maxStreamEnds:
		s.uncharge(t, st.charge)
		return c.streamFor(spec)
	}
	s.tableBytes += st.charge
	if t.streams == nil {
		t.streams = make(map[string]*stream)
	}
	t.streams[name] = st
	return st, nil
}

func (st *stream) setBounds(spec StreamSpec) {
	if spec.Frames > 0 {
		st.limit = spec.Frames
	}
	if spec.Bytes > 0 {
		st.limitBytes = spec.Bytes
	}
	st.dropOldest = st.dropOldest || spec.DropOldest
}

func (st *stream) hasRoom(n uint64) bool {
	return len(st.frames) < st.limit && (st.limitBytes == 0 || len(st.frames) == 0 || st.bytes+n <= st.limitBytes)
}

// makeWay drops the frames that wait longest until one of n bytes has room. They are many where the bounds were
// lowered: then the attendant lets them go. mu is held.
func (s *Store) makeWay(st *stream, n uint64) {
	var dropped []frame
	for len(st.frames) > 0 && !st.hasRoom(n) {
		dropped = append(dropped, st.shift())
	}
	st.dropped += uint64(len(dropped))
	s.counts.DroppedFrames += uint64(len(dropped))
	s.letFramesGo(st.tenant, dropped)
}

// letFramesGo gives back a stream's references to frames; of many the attendant does it. mu is held.
func (s *Store) letFramesGo(t *tenant, frames []frame) {
	if len(frames) > lockSteps && !s.closed {
		t.dropping = append(t.dropping, frames)
		s.attend(t)
		return
	}
	for _, f := range frames {
		f.e.refs--
		s.collect(f.e)
	}
}

// endOf finds a stream that c has open. mu is held.
func (c *Conn) endOf(id uint64) (*streamEnd, error) {
	if c.closed {
		return nil, errConnClosed
	}
	if end := c.streams[id]; end != nil {
		return end, nil
	}
	return nil, fmt.Errorf("%w: stream %d is not open on this connection", object.ErrNotFound, id)
}

// SealWith is Seal of an object that may have other metadata now than when it was created (none: the same). One that
// is sealed already, and that c holds a reference to, stays as it is.
func (c *Conn) SealWith(id object.ID, meta []byte) error {
	c.s.mu.Lock()
	defer c.s.unlock()
	return c.sealWith(id, meta)
}

// sealWith is SealWith. mu is held, and let go where there is something to wait for.
func (c *Conn) sealWith(id object.ID, meta []byte) error {
	if r, held := c.refs[id]; held && r.e.state != object.Open {
		return nil
	}
	if err := c.setMeta(id, meta); err != nil {
		return err
	}
	return c.seal(id, false)
}

// setMeta changes an unsealed object's metadata and what it is charged. mu is held, and let go where memory is short.
func (c *Conn) setMeta(id object.ID, meta []byte) error {
	e, err := c.ownOpen(id)
	switch {
	case err != nil || len(meta) == 0:
		return err
	case len(meta) > object.MaxMetaBytes:
		return fmt.Errorf("%w: %d bytes of metadata, at most %d", object.ErrInvalid, len(meta), object.MaxMetaBytes)
	}
	if more := uint64(len(meta)); more > uint64(len(e.meta)) {
		if err := c.s.reserveRoom(c.tenant, more, nil); err != nil {
			return err
		}
		if _, err := c.ownOpen(id); err != nil { // gone meanwhile, or sealed, or about to be
			c.s.uncharge(c.tenant, more)
			return err
		}
		e.charge += more
		c.s.tableBytes += more
	}
	e.meta = append([]byte(nil), meta...)
	return nil
}

// Push moves a reference of c's to a sealed object into a stream. Where the stream is full it waits for wait (below 0:
// for ever; 0: not at all, ErrTimeout) and gives a Waiter. Until the push has succeeded the reference stays c's.
// Errors: ErrNotFound, ErrNotSealed, ErrPermission, ErrTimeout, ErrEnded, ErrAborted, ErrBusy.
func (c *Conn) Push(stream uint64, id object.ID, wait time.Duration, wake func(*Waiter)) (*Waiter, error) {
	c.s.mu.Lock()
	defer c.s.unlock()
	return c.push(stream, id, wait, wake)
}

// push is Push. mu is held.
func (c *Conn) push(stream uint64, id object.ID, wait time.Duration, wake func(*Waiter)) (*Waiter, error) {
	s := c.s
	end, err := c.endOf(stream)
	if err != nil {
		return nil, err
	}
	r, held := c.refs[id]
	switch {
	case !end.writes:
		return nil, fmt.Errorf("%w: stream %q was opened only to read", object.ErrPermission, end.st.name)
	case !held:
		return nil, fmt.Errorf("%w: this connection holds no reference to object %s", object.ErrNotFound, id)
	case r.e.tenant != c.tenant:
		return nil, fmt.Errorf("%w: object %s belongs to tenant %s: a stream takes only objects of its own tenant",
			object.ErrPermission, id, r.e.tenant.name)
	case r.e.state == object.Open:
		return nil, r.e.notSealed()
	case end.st.closedFor(true) != nil:
		return nil, end.st.closedFor(true)
	}
	if err := r.e.inHostMemory("push"); err != nil {
		return nil, err
	}
	st := end.st
	if st.dropOldest {
		s.makeWay(st, r.e.size)
	}
	if st.pushers.Len() == 0 && st.hasRoom(r.e.size) {
		s.enqueue(c, st, r.e)
		s.match(st)
		return nil, nil
	}
	return s.wait(&Waiter{c: c, end: end, push: r.e, wake: wake}, &st.pushers, wait)
}

// closedFor says why nothing may be pushed, or popped from an empty stream, any more; nil where it may. mu is held.
func (st *stream) closedFor(push bool) error {
	switch {
	case st.gone:
		return fmt.Errorf("%w: stream %q was removed", object.ErrAborted, st.name)
	case st.ended:
		return st.hasEnded()
	case push:
		return nil
	}
	return st.broken
}

// wait puts a Waiter into a queue. mu is held.
func (s *Store) wait(w *Waiter, queue *list.List, wait time.Duration) (*Waiter, error) {
	st := w.end.st
	switch {
	case wait == 0 && w.push != nil:
		return nil, fmt.Errorf("%w: stream %q is full: it has %s", object.ErrTimeout, st.name,
			object.Counted(len(st.frames), "frame"))
	case wait == 0:
		return nil, fmt.Errorf("%w: stream %q is empty", object.ErrTimeout, st.name)
	case len(w.c.waiting) >= maxStreamWaits:
		return nil, fmt.Errorf("%w: %d pushes and pops of this connection are waiting already", object.ErrBusy,
			maxStreamWaits)
	}
	if w.c.waiting == nil {
		w.c.waiting = make(map[*Waiter]struct{})
	}
	w.c.waiting[w] = struct{}{}
	w.queue, w.at = queue, queue.PushBack(w)
	if wait > 0 {
		w.timer = time.AfterFunc(wait, func() {
			s.mu.Lock()
			defer s.unlock()
			w.finish(fmt.Errorf("%w: stream %q: nothing for %v", object.ErrTimeout, st.name, wait))
			s.match(st) // who waited behind it
		})
	}
	return w, nil
}

// finish ends waiting; the first time counts. mu is held.
func (w *Waiter) finish(err error) {
	if w.over {
		return
	}
	w.over, w.err = true, err
	if w.timer != nil {
		w.timer.Stop()
	}
	delete(w.c.waiting, w)
	w.queue.Remove(w.at)
	w.c.s.wakes = append(w.c.s.wakes, w)
}

// enqueue moves c's reference to e into st. match has to follow. mu is held.
func (s *Store) enqueue(c *Conn, st *stream, e *entry) {
	s.take1(c, e)
	e.refs++
	st.pushed++
	st.frames = append(st.frames, frame{e, st.pushed})
	st.bytes += e.size
}

// take1 takes one of c's references to e away, without the consequences. mu is held.
func (s *Store) take1(c *Conn, e *entry) {
	r := c.refs[e.id]
	r.count--
	c.settleUnacked(&r)
	if r.count == 0 {
		delete(c.refs, e.id)
	} else {
		c.refs[e.id] = r
	}
	e.refs--
	s.references--
}

// match hands frames to who waits for them, and lets frames in that wait for room; where those are many the attendant
// goes on with it. mu is held.
func (s *Store) match(st *stream) {
	for steps := 0; ; steps++ {
		if steps == lockSteps && !s.closed {
			s.matchLater(st)
			return
		}
		switch why := st.closedFor(false); {
		case st.poppers.Len() > 0 && len(st.frames) > 0:
			w := st.poppers.Front().Value.(*Waiter)
			w.got = s.dequeue(w.end)
			w.finish(nil)
		case st.poppers.Len() > 0 && why != nil && st.pushers.Len() == 0:
			st.poppers.Front().Value.(*Waiter).finish(why)
		case st.pushers.Len() > 0 && (st.hasRoom(st.firstPusher().push.size) || st.closedFor(true) != nil):
			s.letIn(st, st.firstPusher())
		default:
			return
		}
	}
}

// matchLater has the attendant go on with match. mu is held.
func (s *Store) matchLater(st *stream) {
	if !st.matching {
		st.matching = true
		st.tenant.matching = append(st.tenant.matching, st)
		s.attend(st.tenant)
	}
}

func (st *stream) firstPusher() *Waiter { return st.pushers.Front().Value.(*Waiter) }

// letIn ends the waiting of a push. mu is held.
func (s *Store) letIn(st *stream, w *Waiter) {
	err := st.closedFor(true)
	if _, held := w.c.refs[w.push.id]; !held && err == nil {
		err = fmt.Errorf("%w: object %s was released before it was in the stream", object.ErrNotFound, w.push.id)
	}
	if err == nil {
		s.enqueue(w.c, st, w.push)
	}
	w.finish(err)
}

// dequeue moves the first frame's reference to who has the stream open. mu is held.
func (s *Store) dequeue(end *streamEnd) frame {
	c, st := end.c, end.st
	f := st.shift()
	f.e.refs--
	c.refer(f.e)
	st.popped++
	if c.acks {
		c.isUnacked(f, st, end.id)
	}
	return f
}

func (st *stream) shift() frame {
	f := st.frames[0]
	st.frames[0] = frame{}
	st.frames = st.frames[1:]
	st.bytes -= f.e.size
	return f
}

// Pop takes the frame that waits longest, with a reference, or waits for one as Push does. Errors: ErrNotFound,
// ErrPermission, ErrTimeout, ErrEnded (nothing waits and nothing will), ErrAborted (removed, or the last writer died),
// ErrBusy.
func (c *Conn) Pop(stream uint64, wait time.Duration, wake func(*Waiter)) (Popped, *Waiter, error) {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	end, err := c.endOf(stream)
	switch {
	case err != nil:
		return Popped{}, nil, err
	case !end.reads:
		return Popped{}, nil, fmt.Errorf("%w: stream %q was opened only to write", object.ErrPermission, end.st.name)
	}
	st := end.st
	if len(st.frames) > 0 {
		f := s.dequeue(end)
		p, err := c.popped(end, f)
		s.match(st)
		return p, nil, err
	}
	if err := st.closedFor(false); err != nil {
		return Popped{}, nil, err
	}
	w, err := s.wait(&Waiter{c: c, end: end, wake: wake}, &st.poppers, wait)
	return Popped{}, w, err
}

// popped describes a frame that is c's; where that cannot be the frame goes back. One that was found damaged is given
// to nobody: it is dropped, and the next pop gets the next one. mu is held.
func (c *Conn) popped(end *streamEnd, f frame) (Popped, error) {
	e, fd := f.e, -1
	if err := e.isDamaged(); err != nil {
		c.acked(end.st, e.id, f.number)
		_ = c.release(e.id) // c has it
		return Popped{}, fmt.Errorf("frame %d: %w", f.number, err)
	}
	if e.seg != nil {
		var err error
		if fd, err = c.s.show(c, e.seg); err != nil {
			c.giveBack(end.st, f)
			return Popped{}, err
		}
	}
	return Popped{Handle: Handle{ID: e.id, Ref: e.ref(), Size: e.size, Class: e.class, Meta: e.meta, FD: fd},
		Number: f.number}, nil
}

// giveBack puts a popped frame back to where it was. Where the stream was removed the frame is nobody's. mu is held.
func (c *Conn) giveBack(st *stream, f frame) {
	defer c.s.match(st)
	if st.gone {
		c.acked(st, f.e.id, f.number)
		c.s.take1(c, f.e)
		c.s.collect(f.e)
		return
	}
	f.e.refs++
	at, _ := slices.BinarySearchFunc(st.frames, f.number, func(other frame, n uint64) int {
		if other.number < n {
			return -1
		}
		return 1
	})
	st.frames = slices.Insert(st.frames, at, f)
	st.bytes += f.e.size
	st.popped--
	c.acked(st, f.e.id, f.number) // now that the stream has something to stay for
	c.s.take1(c, f.e)
}

// Result says how the waiting ended: a push gives a Popped of nothing. Call it once, when wake was called.
func (w *Waiter) Result() (Popped, error) {
	s := w.c.s
	s.mu.Lock()
	defer s.unlock()
	switch {
	case w.err != nil || w.push != nil:
		return Popped{}, w.err
	case w.c.closed:
		return Popped{}, errConnClosed
	}
	if _, held := w.c.refs[w.got.e.id]; !held { // released by its number, unseen
		return Popped{}, fmt.Errorf("%w: object %s was released already", object.ErrNotFound, w.got.e.id)
	}
	return w.c.popped(w.end, w.got)
}

// Unpop puts a frame that c popped and still holds back to where it was: for the next pop. It may exceed the stream's
// bounds. One that c has not acknowledged goes back also where c has closed the stream meanwhile. Where the stream was
// removed the frame is let go.
func (c *Conn) Unpop(stream uint64, id object.ID, number uint64) error {
	s := c.s
	s.mu.Lock()
	defer s.unlock()
	end, err := c.endOf(stream)
	if err != nil {
		for u := c.refs[id].unacked; u != nil; u = u.next {
			if u.number == number && u.end == stream {
				c.giveBack(u.st, frame{c.refs[id].e, number})
				return nil
			}
		}
		return err
	}
	r, held := c.refs[id]
	switch {
	case !held || !end.reads || number == 0 || number > end.st.pushed:
		return fmt.Errorf("%w: object %s is not frame %d of stream %q, popped by this connection", object.ErrNotFound,
			id, number, end.st.name)
	case end.st.gone:
		c.giveBack(end.st, frame{r.e, number})
		return end.st.closedFor(true)
	case len(end.st.frames) >= object.MaxStreamFrames || r.e.tenant != c.tenant || r.e.state == object.Open:
		return fmt.Errorf("%w: stream %q takes no frame back", object.ErrInvalid, end.st.name)
	}
	c.giveBack(end.st, frame{r.e, number})
	return nil
}
