//go:build cgo

package worker

import (
	"fmt"
	"sync"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/forwarding/opencl"
)

// outflow is a read on its way to the client: every lane has a sender, and each takes the next chunk when it is done
// with its last. One sender for all lanes encrypted all on one core: 2 GB/s where the writes' four made 5.
type outflow struct {
	o *bulkOp

	mu      sync.Mutex // leaf
	at      uint64     // where the next chunk begins
	status  opencl.Status
	broken  bool
	senders int // that have not ended
}

// flow makes the outflow of a read, and chooses its lanes: no more than it has chunks.
func (o *bulkOp) flow(lanes []*link.Lane) (*outflow, []*link.Lane) {
	i := int(o.id % uint64(len(lanes)))
	lanes = append(lanes[i:len(lanes):len(lanes)], lanes[:i]...)
	lanes = lanes[:min(uint64(len(lanes)), (o.size+clwire.MaxChunk-1)/clwire.MaxChunk)]
	return &outflow{o: o, senders: len(lanes)}, lanes
}

// sendByHands sends a read's bytes by the lanes, on threads that wait for that. A device begins with the first chunks
// meanwhile.
func (o *bulkOp) sendByHands(lanes []*link.Lane) {
	f, lanes := o.flow(lanes)
	for _, l := range lanes {
		flying := f.begin()
		o.b.hands.run(&o.b.work, func() { f.send(l, flying) })
	}
}

// sendOut sends a read's bytes by every lane, and returns when all are sent.
func (o *bulkOp) sendOut() {
	lanes := o.b.all()
	if len(lanes) == 0 {
		return
	}
	f, lanes := o.flow(lanes)
	var others sync.WaitGroup
	for _, l := range lanes[1:] {
		others.Go(func() { link.GiveWay(func() { f.send(l, nil) }) })
	}
	f.send(lanes[0], nil)
	others.Wait()
}

// send sends what there is by one lane, first what flies.
func (f *outflow) send(l *link.Lane, flying []outgoing) {
	if f.o.buffer.seg != nil {
		f.sendInPlace(l)
	} else {
		f.sendDevice(l, flying)
	}
	f.mu.Lock()
	f.senders--
	last, status := f.senders == 0, f.status
	f.mu.Unlock()
	if last && status != cl.SUCCESS {
		f.o.end(int32(status))
	}
}

// next gives the next chunk; n 0: there is none, or it would be of no use.
func (f *outflow) next() (at, n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at == f.o.size || f.broken || f.status != cl.SUCCESS {
		return 0, 0
	}
	at = f.at
	n = min(f.o.ext.piece(at), f.o.size-at) // a read may be trimmed
	f.at += n
	return at, n
}

// ship sends one chunk; a lane that broke ends the session.
func (f *outflow) ship(l *link.Lane, at uint64, data []byte) {
	err := l.Send(clwire.LaneHeader{Op: f.o.id, Offset: at, Length: uint32(len(data))}, data, f.o)
	if err == nil {
		return
	}
	f.mu.Lock()
	f.broken = true
	f.mu.Unlock()
	f.o.b.fail(fmt.Errorf("a lane ended: %w", err))
}

// failed notes how a chunk left the device and reports whether it must not be sent.
func (f *outflow) failed(status opencl.Status) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = firstOf(f.status, status)
	return f.broken || f.status != cl.SUCCESS
}

// sendInPlace sends from where the bytes are.
func (f *outflow) sendInPlace(l *link.Lane) {
	mem, ext := f.o.buffer.bytes(), &f.o.ext
	var scratch []byte
	for at, n := f.next(); n > 0; at, n = f.next() {
		if !ext.Rect {
			f.ship(l, at, mem[ext.Offset+at:][:n])
			continue
		}
		scratch = scratch[:0]
		ext.runs(at, n, func(at, n uint64) bool {
			scratch = append(scratch, mem[at:at+n]...)
			return true
		})
		f.ship(l, at, scratch)
	}
}

// outgoing is a chunk on its way from the device.
type outgoing struct {
	slot   int
	at, n  uint64
	event  opencl.Event
	status opencl.Status
}

// begin starts a device's copy of the next chunk if nothing has to be waited for, and it is one command. That of a
// narrow rectangle may be thousands, which are not for the reader.
func (f *outflow) begin() (flying []outgoing) {
	p := &f.o.b.staging
	if b := f.o.buffer; b.seg != nil || b.image != nil || f.o.ext.Rect {
		return nil
	}
	q := p.queueAtOnce(f.o.buffer.context)
	if q == 0 {
		return nil
	}
	slot := p.takeOut(false, true)
	if slot < 0 {
		return nil
	}
	at, n := f.next()
	if n == 0 {
		p.out <- slot
		return nil
	}
	return []outgoing{f.copyOut(q, slot, at, n)}
}

func (f *outflow) copyOut(q opencl.Queue, slot int, at, n uint64) outgoing {
	g := outgoing{slot: slot, at: at, n: n}
	g.event, g.status = f.o.transfer(q, true, at, n, f.o.b.staging.slot(slot), opencl.After{Want: true})
	return g
}

// sendDevice copies the chunks out, some ahead of the lane, and sends each when it is there.
func (f *outflow) sendDevice(l *link.Lane, flying []outgoing) {
	const ahead = stagingSlots / clwire.MaxLanes
	p := &f.o.b.staging
	for at, n := f.next(); n > 0; at, n = f.next() {
		// Not before there is a chunk: who has got all of them may have released the context.
		q, status := p.queue(f.o.b.s, f.o.buffer.context)
		if f.failed(status) {
			break
		}
		slot := -1
		for slot < 0 {
			if slot = p.takeOut(len(flying) == 0, len(flying) < ahead); slot < 0 {
				flying = f.land(l, flying)
			}
		}
		flying = append(flying, f.copyOut(q, slot, at, n))
	}
	for len(flying) > 0 {
		flying = f.land(l, flying)
	}
}

// land sends the chunk that has been under way longest.
func (f *outflow) land(l *link.Lane, flying []outgoing) []outgoing {
	g := flying[0]
	if !f.failed(waitFor(g.event, g.status)) {
		f.ship(l, g.at, f.o.b.staging.slot(g.slot)[:g.n])
	}
	f.o.b.staging.out <- g.slot
	return flying[1:]
}

// Again implements link.Source: a read's bytes stay as they are until its client has them all.
func (o *bulkOp) Again(h clwire.LaneHeader, send func(payload []byte) error) error {
	b := o.hold()
	if b == nil {
		return send(nil)
	}
	defer b.unref()
	data, status := o.fetch(h.Offset, uint64(h.Length))
	if status != cl.SUCCESS {
		err := fmt.Errorf("a chunk cannot be read again: status %d", status)
		o.b.s.fail(err)
		return err
	}
	return send(data)
}

// hold keeps the buffer of an operation that is under way; nil: it is over.
func (o *bulkOp) hold() *buffer {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if o.b.ops[o.id] != o {
		return nil
	}
	o.buffer.refs.Add(1)
	return o.buffer
}

// fetch reads a chunk in memory of its own: all of the staging memory may be with senders that wait for this.
func (o *bulkOp) fetch(at, n uint64) ([]byte, opencl.Status) {
	data := make([]byte, 0, n)
	if o.buffer.seg != nil {
		mem := o.buffer.bytes()
		o.ext.runs(at, n, func(at, n uint64) bool {
			data = append(data, mem[at:at+n]...)
			return true
		})
		return data, cl.SUCCESS
	}
	q, status := o.b.staging.queue(o.b.s, o.buffer.context)
	if status != cl.SUCCESS {
		return nil, status
	}
	data = data[:n]
	event, status := o.transfer(q, true, at, n, data, opencl.After{Want: true})
	return data, waitFor(event, status)
}
