//go:build cgo

package worker

import (
	"fmt"
	"sync"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/peer"
)

// peers is a session's links to other workers of its program (package peer). The reader owns links but for what mu
// guards.
type peers struct {
	s        *session
	identity *link.Identity // made by the first PeerOpen; the reader's
	sockets  *peerSockets   // where they come from; nil in tests

	mu    sync.Mutex
	links map[uint64]*peerLink // also those that ended: a number is used once
}

// peerLink is one of them: a peer.Worker.
//
// Locks: peerLink.mu and bulk.mu come after the engine's, and neither is held when the engine is called.
type peerLink struct {
	s    *session
	id   uint64
	link *peer.Link
	bulk *bulk // its lanes, and the pulls under way

	awake  bool      // the engine counts the words' reader among those that poll; that one's
	ticked time.Time // likewise: when it last looked at everything

	mu     sync.Mutex
	pushes map[uint64]*bulkOp // not begun yet; nil: the link has ended
}

// lookEvery is how often the words' reader looks at commands that nobody waits for, while it is awake.
const lookEvery = 100 * time.Microsecond

func (p *peers) signal(m *clwire.PeerSignal) error {
	l, err := p.find(m.Link)
	if err != nil {
		return err
	}
	there := m.There
	return p.s.engine.After([]uint64{m.Event}, func(status int32) { l.link.Tell(there, status) })
}

func (p *peers) event(m *clwire.PeerEvent) error {
	l, err := p.find(m.Link)
	if err == nil {
		err = p.foreign(m.ID)
	}
	if err == nil {
		err = l.link.Expect(m.ID)
	}
	return err
}

func (p *peers) end(m *clwire.PeerClose) error {
	l, err := p.find(m.Link)
	if err == nil {
		l.link.End(peer.ErrClosed)
	}
	return err
}

// foreign makes an event that ends elsewhere.
func (p *peers) foreign(id uint64) error {
	if err := p.s.fresh(id); err != nil {
		return err
	}
	return p.s.engine.ForeignEvent(id)
}

func (p *peers) find(id uint64) (*peerLink, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.links[id]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("%w: no link %d", errRecord, id)
}

// open answers what this worker shows on its links.
func (p *peers) open(h clwire.Header) error {
	if p.identity == nil {
		id, err := link.NewIdentity()
		if err != nil {
			return err
		}
		p.identity = id
	}
	own := p.identity.Fingerprint()
	p.s.reply(h.Request, cl.SUCCESS, own[:])
	return nil
}

// expect makes a link, and takes the sockets that came before.
func (p *peers) expect(m *clwire.PeerExpect) error {
	l, err := p.add(m)
	if err == nil && p.sockets != nil {
		p.sockets.claim(m.Link, l.link)
	}
	return err
}

func (p *peers) add(m *clwire.PeerExpect) (*peerLink, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Link == 0 || p.links[m.Link] != nil || len(p.links) >= clwire.MaxPeerLinks || p.identity == nil {
		return nil, fmt.Errorf("%w: link %d is there already, or not opened, or one of more than %d", errRecord, m.Link,
			clwire.MaxPeerLinks)
	}
	l := &peerLink{s: p.s, id: m.Link, bulk: newBulk(p.s), pushes: map[uint64]*bulkOp{}}
	o := peer.Options{Answers: m.Answers, Lanes: int(m.Lanes), Worker: l}
	if !m.Plaintext {
		o.Config = p.identity.Config(link.Fingerprint(m.PeerSHA))
	}
	if m.Packed && p.s.compression != nil {
		o.Compression = &link.Compression{}
		o.Compression.Allow(clwire.GreatestPacking)
	}
	l.link = peer.New(o)
	l.bulk.fail, l.bulk.ended = l.link.End, l.ended
	l.bulk.aside = l.bulk.work.Go // a link ends before its process, and with it whoever works for it
	if p.links == nil {
		p.links = map[uint64]*peerLink{}
	}
	p.links[m.Link] = l
	return l, nil
}

// buffer finds the buffer or image of a push or pull, with a reference, and what is wrong with the range.
func (p *peers) buffer(id, offset, size uint64) (*buffer, extent, opencl.Status, error) {
	b, err := lookup[*buffer](p.s, id)
	if err != nil {
		return nil, extent{}, 0, err
	}
	b.refs.Add(1)
	if b.image != nil {
		ext, status := imageRows(b, offset, size)
		return b, ext, status, nil
	}
	ext, status := extentOf(b, &clwire.Shape{Offset: offset, Size: size})
	return b, ext, status, nil
}

// push has a range sent once the events are over and the other side is ready.
func (p *peers) push(m *clwire.PeerPush) error {
	l, err := p.find(m.Link)
	if err != nil {
		return err
	}
	b, ext, status, err := p.buffer(m.Buffer, m.Offset, m.Size)
	if err != nil {
		return err
	}
	o := &bulkOp{b: l.bulk, id: m.Op, known: true, buffer: b, ext: ext, size: m.Size, origin: m.Content.Origin}
	if m.Content.Size != 0 && status == cl.SUCCESS {
		o.content = p.s.sizeBuffer(b, m.Content.Size)
	}
	if !l.keep(o) {
		o.drop()
		return nil // the client has been told, or is about to be
	}
	return l.pushBehind(o, m, int32(status))
}

// pushBehind offers a push once what it waits for is over.
func (l *peerLink) pushBehind(o *bulkOp, m *clwire.PeerPush, status int32) error {
	lists, failed := 1, int32(0) // the engine's lock guards them from here on
	if o.content != nil {
		lists = 2
	}
	met := func() {
		if lists--; lists > 0 {
			return
		}
		if failed == 0 {
			failed = status
		}
		l.link.Offer(o.id, func() { l.send(o, failed) })
	}
	err := l.s.engine.After(m.Wait, func(end int32) { failed = end; met() })
	if err == nil && o.content != nil {
		err = l.s.engine.After(m.Content.Wait, func(int32) { met() })
	}
	return err
}

// drop lets go of a push's buffers.
func (o *bulkOp) drop() {
	o.buffer.unref()
	if o.content != nil {
		o.content.unref()
	}
}

// keep notes a push that has not begun; false: the link has ended.
func (l *peerLink) keep(o *bulkOp) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pushes == nil {
		return false
	}
	l.pushes[o.id] = o
	return true
}

// send carries a push out, or has it carried out. The engine's lock may be held.
func (l *peerLink) send(o *bulkOp, failed int32) {
	l.mu.Lock()
	_, ours := l.pushes[o.id]
	delete(l.pushes, o.id)
	l.mu.Unlock()
	if !ours {
		return // the link has ended
	}
	here := o.content == nil || o.content.seg != nil // nobody waits for the device to learn how much it is
	if failed == 0 && here {
		l.trim(o)
	}
	switch {
	case failed != 0:
		l.link.Fail(o.id, failed)
	case here && o.buffer.seg != nil && o.size <= atOnce:
		l.sendPieces(o, o.buffer.bytes()[o.ext.Offset:][:o.size])
	case l.link.Go(func() { l.sendApart(o) }):
		return
	}
	l.letGo(o.buffer)
	if o.content != nil {
		l.letGo(o.content)
	}
}

// trim shortens a push whose turn has come to what means something, and tells the other side.
func (l *peerLink) trim(o *bulkOp) {
	if o.content == nil {
		return
	}
	if n := o.meant(o.origin); n < o.size {
		o.size = n
		l.link.Length(o.id, n)
	}
}

// atOnce is the largest push that whoever learns that it is due sends himself: copied and encrypted in the time that
// waking somebody else takes.
const atOnce = 16 << 10

// sendApart sends a push on a goroutine that may wait.
func (l *peerLink) sendApart(o *bulkOp) {
	defer o.drop()
	if o.content != nil && o.content.seg == nil {
		l.trim(o)
	}
	switch {
	case o.size == 0:
		return
	case o.size > clwire.PeerSmall:
		link.GiveWay(o.sendOut)
		return
	}
	data, status := o.fetch(0, o.size)
	if status != cl.SUCCESS {
		l.link.Fail(o.id, int32(status))
		return
	}
	l.sendPieces(o, data)
}

func (l *peerLink) sendPieces(o *bulkOp, data []byte) {
	most := clwire.InlineBytes
	if u := int(o.ext.unit); u > 1 {
		most -= most % u
	}
	for at := 0; at < len(data); at += most {
		l.link.Bytes(o.id, uint64(at), data[at:min(at+most, len(data))])
	}
}

// letGo drops a buffer's reference where the engine's lock may be held: the last one's end is not for there.
func (l *peerLink) letGo(b *buffer) {
	for {
		n := b.refs.Load()
		if n == 1 {
			l.s.work.Go(b.unref)
			return
		}
		if b.refs.CompareAndSwap(n, n-1) {
			return
		}
	}
}

// pull takes a range once the events are over. Their failures do not matter: what the earlier commands left is
// overwritten.
func (p *peers) pull(m *clwire.PeerPull) error {
	l, err := p.find(m.Link)
	if err != nil {
		return err
	}
	b, ext, status, err := p.buffer(m.Buffer, m.Offset, m.Size)
	if err != nil {
		return err
	}
	if b.seg != nil && b.seg.readOnly {
		status = cl.INVALID_OPERATION
	}
	o := &bulkOp{b: l.bulk, id: m.Op, known: true, write: true, turn: true, buffer: b, ext: ext, size: m.Size,
		left: m.Size, status: int32(status)}
	if err := p.foreign(o.id); err != nil {
		b.unref()
		return err
	}
	err = p.s.engine.After(m.Wait, func(int32) { l.receive(o) })
	if err != nil {
		b.unref()
	}
	return err
}

// receive lets a pull's bytes come. The engine's lock is held.
func (l *peerLink) receive(o *bulkOp) {
	l.bulk.mu.Lock()
	over := l.bulk.closed
	if !over {
		l.bulk.ops[o.id] = o
	}
	l.bulk.mu.Unlock()
	if over {
		l.letGo(o.buffer)
		return
	}
	l.link.Ready(o.id)
}

// ended is told of a pull whose bytes are in place, and of a push that the device would not give.
func (l *peerLink) ended(o *bulkOp, status int32) {
	if !o.write {
		l.link.End(fmt.Errorf("a copy from the device failed with status %d", status))
		return
	}
	l.s.engine.SetForeign(o.id, status)
	l.bulk.forget(o.id)
}

// Up implements peer.Worker.
func (l *peerLink) Up() {
	lanes := l.link.Payload()
	l.bulk.mu.Lock()
	l.bulk.lanes = lanes
	l.bulk.grown.Broadcast()
	l.bulk.mu.Unlock()
	l.s.sendNow(&clwire.PeerState{Link: l.id, Up: true})
}

// Done implements peer.Worker.
func (l *peerLink) Done(event uint64, status int32) { l.s.engine.SetForeign(event, status) }

// pulling finds a pull under way.
func (l *peerLink) pulling(op uint64) (*bulkOp, error) {
	l.bulk.mu.Lock()
	defer l.bulk.mu.Unlock()
	if o := l.bulk.ops[op]; o != nil {
		return o, nil
	}
	return nil, fmt.Errorf("%w: the other worker sends of push %d, which nobody is ready for", errRecord, op)
}

// Failed implements peer.Worker.
func (l *peerLink) Failed(op uint64, status int32) error {
	o, err := l.pulling(op)
	if err != nil {
		return err
	}
	o.mu.Lock()
	begun := o.left != o.size
	o.told = true
	o.mu.Unlock()
	if begun {
		return fmt.Errorf("%w: the other worker takes back push %d, which it has begun", errRecord, op)
	}
	l.ended(o, status)
	return nil
}

// Chunk implements peer.Worker.
func (l *peerLink) Chunk(lane *link.Lane, h clwire.LaneHeader) error {
	o, err := l.pulling(h.Op)
	if err != nil {
		return err
	}
	return o.receive(lane, h)
}

// Bytes implements peer.Worker.
func (l *peerLink) Bytes(op, offset uint64, data []byte) error {
	o, err := l.pulling(op)
	if err != nil {
		return err
	}
	n := uint64(len(data))
	o.mu.Lock()
	err = o.countLocked(offset, n)
	o.placing++
	bad := o.status != 0
	o.mu.Unlock()
	switch {
	case err != nil:
		return err
	case bad:
		o.placed(0)
	case o.buffer.seg != nil:
		copy(o.buffer.bytes()[o.ext.Offset+offset:], data)
		o.placed(0)
	default:
		c := stagedChunk{offset, n, append([]byte(nil), data...)}
		l.bulk.work.Go(func() { o.placeDevice(c) })
	}
	return nil
}

// Length implements peer.Worker.
func (l *peerLink) Length(op, bytes uint64) error {
	o, err := l.pulling(op)
	if err != nil {
		return err
	}
	o.mu.Lock()
	came, wrong := o.size-o.left, o.short || bytes >= o.size
	if wrong = wrong || came > bytes; !wrong {
		o.short, o.size, o.left = true, bytes, bytes-came
	}
	o.mu.Unlock()
	if wrong {
		return fmt.Errorf("%w: push %d is over with %d bytes", errRecord, op, bytes)
	}
	l.s.send(&clwire.BulkLength{Op: op, Bytes: bytes}, 0, 0)
	o.maybeDone()
	return nil
}

// Wait implements peer.Worker: it follows the commands that what came over the link has freed.
func (l *peerLink) Wait(more func() bool, sleep func() error) error {
	e := l.s.engine
	if !l.awake {
		l.awake = true
		e.Unpark()
	}
	if now := time.Now(); now.Sub(l.ticked) > lookEvery {
		l.ticked = now
		e.Look()
	}
	if l.s.poller.Spin(l.s.spin, func() bool { e.Poll(); return more() }) {
		return nil
	}
	l.awake = false
	e.Park()
	err := sleep()
	l.awake = true
	e.Unpark()
	return err
}

// Lost implements peer.Worker. What has not come by now never will, and the client is told behind all that has.
func (l *peerLink) Lost(why error) {
	l.bulk.mu.Lock()
	l.bulk.closed = true
	l.bulk.lanes = nil // the link has closed them
	l.bulk.grown.Broadcast()
	l.bulk.mu.Unlock()
	l.bulk.work.Wait()
	l.bulk.mu.Lock()
	pulls := l.bulk.ops
	l.bulk.ops = map[uint64]*bulkOp{}
	l.bulk.mu.Unlock()
	l.mu.Lock()
	pushes := l.pushes
	l.pushes = nil
	l.mu.Unlock()
	for _, ops := range []map[uint64]*bulkOp{pulls, pushes} {
		for _, o := range ops {
			o.drop()
		}
	}
	l.s.engine.Tick()
	if l.awake {
		l.s.engine.Park()
	}
	l.s.sendNow(&clwire.PeerState{Link: l.id, Text: why.Error()})
}

// forget lets go of what the links have of a released context.
func (p *peers) forget(c *clContext) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		l.bulk.staging.forget(c)
	}
}
