//go:build cgo

package worker

import (
	"sync"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/link"
	"tendril/forwarding/opencl"
)

// stagingSlots is how many chunks may be between lanes and devices at once, outSlots how many of them on their way out,
// and inlineSlots how many inline reads. Who sends holds a slot until the other end takes bytes; if senders had all, of
// two workers that send to each other neither could take any.
const (
	stagingSlots = 64
	outSlots     = stagingSlots / 2
	inlineSlots  = 64
)

// staging is pinned memory between lanes and devices with memory of their own.
type staging struct {
	once sync.Once
	seg  *segment
	free chan int // for who waits for the device alone
	out  chan int // for who sends

	// Of inline reads. They may be held for long, behind a user event, so nobody waits for one.
	freeInline chan int

	mu     sync.Mutex
	queues map[*clContext]opencl.Queue // in order, for chunks alone
	inward map[*clContext]*inflow      // what is on its way by them
}

func (p *staging) open() bool {
	p.once.Do(func() {
		mem, err := unix.Mmap(-1, 0, stagingSlots*clwire.MaxChunk+inlineSlots*clwire.InlineBytes,
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return
		}
		p.seg = &segment{mem: mem}
		p.free, p.out = make(chan int, stagingSlots-outSlots), make(chan int, outSlots)
		p.queues, p.inward = map[*clContext]opencl.Queue{}, map[*clContext]*inflow{}
		for i := range outSlots {
			p.out <- i
		}
		for i := outSlots; i < stagingSlots; i++ {
			p.free <- i
		}
		p.freeInline = make(chan int, inlineSlots)
		for i := range inlineSlots {
			p.freeInline <- i
		}
	})
	return p.seg != nil
}

func (p *staging) slot(i int) []byte { return p.seg.mem[i*clwire.MaxChunk : (i+1)*clwire.MaxChunk] }

func (p *staging) inlineSlot(i int) []byte {
	return p.seg.mem[stagingSlots*clwire.MaxChunk:][i*clwire.InlineBytes : (i+1)*clwire.InlineBytes]
}

// takeOut returns a free slot to send from, or -1: there is none now, or it may have none. wait: the caller holds none,
// so that it can wait.
func (p *staging) takeOut(wait, may bool) int {
	if wait {
		return <-p.out
	}
	if may {
		select {
		case i := <-p.out:
			return i
		default:
		}
	}
	return -1
}

// queue returns a context's queue for chunks, with the staging memory pinned for it.
func (p *staging) queue(s *session, c *clContext) (opencl.Queue, opencl.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open() {
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	if q, ok := p.queues[c]; ok {
		return q, cl.SUCCESS
	}
	q, status := c.native.CreateQueue(s.device(c.devices[0]), 0)
	if status == cl.SUCCESS {
		p.queues[c] = q
		p.seg.pinFor(c, q)
	}
	return q, status
}

// queueAtOnce is queue where that is there already and nobody waits for it, or 0.
func (p *staging) queueAtOnce(c *clContext) opencl.Queue {
	if !p.mu.TryLock() {
		return 0
	}
	defer p.mu.Unlock()
	return p.queues[c]
}

// forget lets go of what a released context had; its commands have ended or hold it themselves.
func (p *staging) forget(c *clContext) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q, ok := p.queues[c]; ok {
		delete(p.queues, c)
		delete(p.inward, c)
		p.seg.mu.Lock()
		pinned := p.seg.pinned[c]
		delete(p.seg.pinned, c)
		p.seg.mu.Unlock()
		if pinned.native != 0 {
			pinned.native.Release()
		}
		q.Release()
	}
}

// transfer moves a dense range between a slot's memory and the device, and returns the event of its last part.
func (o *bulkOp) transfer(q opencl.Queue, read bool, from, n uint64, mem []byte, a opencl.After) (opencl.Event,
	opencl.Status) {
	host := fixed.Address(mem)
	if o.buffer.image != nil {
		return o.transferImage(q, read, from, n, host)
	}
	if !o.ext.Rect {
		e, status := q.Transfer(read, o.buffer.native, o.ext.Offset+from, n, host, a)
		q.Flush()
		return e, status
	}
	if box, region, ok := o.ext.rows(from, n); ok {
		dense, _ := boxOf([3]uint64{}, uint64(region[0]), uint64(region[0]*region[1]), [3]uint64{})
		e, status := q.TransferRect(read, o.buffer.native, &box, &dense, &region, host, a)
		q.Flush()
		return e, status
	}
	var last opencl.Event
	var status opencl.Status
	o.ext.runs(from, n, func(at, part uint64) bool {
		var e opencl.Event
		if e, status = q.Transfer(read, o.buffer.native, at, part, host, a); status != cl.SUCCESS {
			return false
		}
		if last != 0 {
			last.Release()
		}
		last, host = e, host+uintptr(part)
		return true
	})
	q.Flush()
	return last, status
}

// receiveDevice reads a chunk into pinned memory and starts its copy; the lane goes on meanwhile.
func (o *bulkOp) receiveDevice(l *link.Lane, at, n uint64) error {
	p := &o.b.staging
	q, status := p.queue(o.b.s, o.buffer.context)
	if status != cl.SUCCESS {
		err := l.Discard(int(n))
		o.placed(int32(status))
		return err
	}
	i := <-p.free
	if err := l.Read(p.slot(i)[:n]); err != nil {
		p.free <- i
		o.placed(int32(cl.OUT_OF_RESOURCES))
		return err
	}
	o.copyIn(q, i, at, n)
	return nil
}

func (o *bulkOp) placeDevice(c stagedChunk) {
	p := &o.b.staging
	q, status := p.queue(o.b.s, o.buffer.context)
	if status != cl.SUCCESS {
		o.placed(int32(status))
		return
	}
	i := <-p.free
	copy(p.slot(i), c.data)
	o.copyIn(q, i, c.at, c.n)
}

// copyIn starts a slot's copy to the device and sees to its end.
func (o *bulkOp) copyIn(q opencl.Queue, i int, at, n uint64) {
	e, status := o.transfer(q, false, at, n, o.b.staging.slot(i), opencl.After{Want: true})
	o.b.staging.inflow(o.buffer.context).add(incoming{o: o, slot: i, event: e, status: status})
}

// inflow is the chunks on their way to a device by one queue. It is in order: one thread waits for one after another. A
// goroutine for each would be a thread for each, and NVIDIA's driver keeps a core busy for each that waits.
type inflow struct {
	mu     sync.Mutex // leaf
	due    []incoming // oldest first
	waited bool       // somebody waits for them
}

// incoming is a chunk on its way to the device.
type incoming struct {
	o      *bulkOp
	slot   int
	event  opencl.Event
	status opencl.Status
}

// inflow returns that of a context.
func (p *staging) inflow(c *clContext) *inflow {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.inward[c]
	if f == nil {
		f = &inflow{}
		p.inward[c] = f
	}
	return f
}

// add sees to a chunk's end.
func (f *inflow) add(g incoming) {
	f.mu.Lock()
	f.due = append(f.due, g)
	begin := !f.waited
	f.waited = true
	f.mu.Unlock()
	if begin {
		g.o.b.aside(f.land)
	}
}

// land waits for the chunks until there is none.
func (f *inflow) land() {
	for g, ok := f.oldest(); ok; g, ok = f.oldest() {
		status := waitFor(g.event, g.status)
		g.o.b.staging.free <- g.slot
		g.o.placed(int32(status))
	}
}

func (f *inflow) oldest() (g incoming, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.due) == 0 {
		f.waited, f.due = false, nil
		return g, false
	}
	g, f.due = f.due[0], f.due[1:]
	return g, true
}

// waitFor waits for a copy; after a failure, for what of it was begun.
func waitFor(e opencl.Event, status opencl.Status) opencl.Status {
	if e != 0 {
		status = firstOf(status, e.Wait())
		e.Release()
	}
	return status
}

// readInlineDevice answers a small read of a device's memory.
func (o *bulkOp) readInlineDevice() {
	p := &o.b.staging
	q, status := p.queue(o.b.s, o.buffer.context)
	if status != cl.SUCCESS {
		o.end(int32(status))
		return
	}
	i := <-p.free
	defer func() { p.free <- i }()
	e, status := o.transfer(q, true, 0, o.size, p.slot(i), opencl.After{Want: true})
	if status = waitFor(e, status); status == cl.SUCCESS {
		o.b.s.send(clwire.NewBulkData(o.id, 0, p.slot(i)[:o.size]), 0, 0)
	}
	o.end(int32(status))
}
