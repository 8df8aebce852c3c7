//go:build cgo

package worker

import (
	"encoding/binary"
	"fmt"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
	"tendril/forwarding/worker/journal"
)

// maxSpin bounds what a client may ask the worker to poll.
const maxSpin = 10 * time.Millisecond

func (s *session) ndrange(h clwire.Header, m *clwire.NDRange) error {
	k, err := lookup[*kernel](s, m.Kernel)
	if err != nil {
		return err
	}
	if err := s.launch.load(s, k, m); err != nil {
		return err
	}
	s.course.Launch(m.Kernel, m.Global)
	return s.enqueue(h, engine.KindTask, &m.Cmd, &s.launch, k.gate, 0)
}

// enqueue hands a command to the engine.
func (s *session) enqueue(h clwire.Header, kind engine.Kind, m *clwire.Cmd, t engine.Task, gate *engine.Gate,
	op uint64) error {
	if m.Event != 0 { // most have none
		if err := s.fresh(m.Event); err != nil {
			if t != nil {
				t.Drop()
			}
			return err
		}
	}
	if h.Type != clwire.TypeNDRange { // that was noted with its size
		s.course.Command(uint16(h.Type))
	}
	label := journal.Label{Type: h.Type}
	if l, ok := t.(*launch); ok {
		label.Kernel = l.kernel.name
	}
	t = s.traced(h, kind, m, t, op)
	c := &s.scratch.command
	*c = engine.Command{Kind: kind, Queue: m.Queue, Event: m.Event, Wait: m.Wait, Request: h.Request, Gate: gate,
		Task: t, Op: op, Label: label,
		Quick: s.rows[h.Type].quick, Urgent: kind == engine.KindTask && h.Type == clwire.TypeBulkRead}
	return s.engine.Enqueue(c)
}

func (s *session) endHost(m *clwire.HostDone) error {
	s.hostDone(m.Op, m.Status)
	if s.bulk != nil {
		s.bulk.received(m.Op)
	}
	return nil
}

func (s *session) userEvent(m *clwire.UserEvent) error {
	if err := s.fresh(m.ID); err != nil {
		return err
	}
	return s.engine.UserEvent(m.ID)
}

func (s *session) takesPacked(m *clwire.TakesPacked) error {
	if s.compression == nil {
		return fmt.Errorf("%w: packed chunks, which this worker does not offer", errRecord)
	}
	s.compression.Allow(m.Greatest)
	return nil
}

func (s *session) hello(h clwire.Header, m *clwire.Hello) error {
	if s.greeted {
		return fmt.Errorf("%w: a second Hello", errRecord)
	}
	if m.Version != clwire.Version {
		return fmt.Errorf("%w: the driver library speaks version %d, the worker %d: install both from the same release",
			errRecord, m.Version, clwire.Version)
	}
	s.greeted = true
	s.spin = min(time.Duration(m.SpinMicros)*time.Microsecond, maxSpin)
	answer := clwire.HelloReply{Version: clwire.Version, Capabilities: clwire.CapSVM}
	if s.inPlace {
		answer.Capabilities |= clwire.CapInPlace | clwire.CapProtect
	}
	if s.compression != nil {
		answer.Capabilities |= clwire.CapPacked
	}
	if h.Request != 0 {
		s.reply(h.Request, cl.SUCCESS, answer.Append(nil))
	}
	return nil
}

// maxBlobs and maxBlobBytes bound what a client may leave in pieces.
const (
	maxBlobs     = 64
	maxBlobBytes = 2 << 30
)

func (s *session) blob(m *clwire.Blob) error {
	b := s.blobs[m.ID]
	if b == nil {
		all := m.Total
		for _, other := range s.blobs {
			all += other.total
		}
		if len(s.blobs) >= maxBlobs || all > maxBlobBytes {
			return fmt.Errorf("%w: %d blobs of %d bytes wait to be used", errRecord, len(s.blobs)+1, all)
		}
		b = &blob{total: m.Total}
		s.blobs[m.ID] = b
	}
	if b.total != m.Total || m.Offset != uint64(len(b.data)) {
		return fmt.Errorf("%w: blob %d goes on at %d of %d, expected %d of %d", errRecord, m.ID, m.Offset, m.Total,
			len(b.data), b.total)
	}
	b.data = append(b.data, m.Data...)
	return nil
}

// takeBlob uses a blob up.
func (s *session) takeBlob(id uint64) ([]byte, error) {
	b := s.blobs[id]
	if b == nil || uint64(len(b.data)) != b.total {
		return nil, fmt.Errorf("%w: blob %d is not complete", errRecord, id)
	}
	delete(s.blobs, id)
	return b.data, nil
}

// fresh refuses an id that is in use, or zero. Clients count upwards: an id above all before needs no look at the
// tables.
func (s *session) fresh(id uint64) error {
	if id > s.highest {
		s.highest = id
		return nil
	}
	_, object := s.objects[id]
	if id == 0 || object || s.queues[id] != nil || s.engine.HasEvent(id) {
		return fmt.Errorf("%w: object id %d is taken or zero", errRecord, id)
	}
	return nil
}

// release drops an object of any kind. An id that is not there is left alone:
// a refused command never made its event.
func (s *session) release(id uint64) {
	if s.engine.ReleaseEvent(id) {
		return
	}
	if q := s.queues[id]; q != nil {
		delete(s.queues, id)
		s.engine.DropQueue(id)
		return
	}
	switch o := s.objects[id].(type) {
	case *buffer:
		o.unref()
	case *sampler:
		o.unref()
	case *kernel:
		o.unref()
	case *program:
		o.unref()
	case *graph:
		s.graphBytes -= len(o.commands)
	case *clContext:
		if s.bulk != nil {
			s.bulk.staging.forget(o)
		}
		s.peers.forget(o)
		o.unref()
	}
	delete(s.objects, id)
}

// nativeDevices translates device indices.
func (s *session) nativeDevices(indices []uint32) ([]opencl.Device, error) {
	out := make([]opencl.Device, 0, len(indices))
	for _, i := range indices {
		d := s.device(i)
		if d == 0 {
			return nil, fmt.Errorf("%w: device %d of %d", errRecord, i, len(s.devices))
		}
		out = append(out, d)
	}
	return out, nil
}

// setArg asks the driver at once; an accepted argument counts as set.
func (s *session) setArg(h clwire.Header, m *clwire.SetArg) error {
	k, err := lookup[*kernel](s, m.Kernel)
	if err != nil {
		return err
	}
	a, err := s.argumentOf(&m.Arg)
	if err != nil {
		return err
	}
	index := int(m.Arg.Index)
	if index >= clwire.MaxArgs {
		return fmt.Errorf("%w: argument index %d", errRecord, index)
	}
	for len(k.shadow) <= index {
		k.shadow = append(k.shadow, argument{})
	}
	if k.ready != nil {
		<-k.ready // a verdict before the build is over is asked for by nobody in a hurry
	}
	status := k.try(index, &a)
	if status == cl.SUCCESS {
		k.shadow[index] = a
	}
	s.outcome(h, m.Kernel, status, fmt.Sprintf("clSetKernelArg: argument %d", index))
	return nil
}

// try sets one argument of the native kernel.
func (k *kernel) try(index int, a *argument) opencl.Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.status != cl.SUCCESS {
		return k.status
	}
	if a.mem != nil && a.mem.status != cl.SUCCESS {
		return a.mem.status
	}
	if a.samp != nil && a.samp.status != cl.SUCCESS {
		return a.samp.status
	}
	for len(k.set) <= index {
		k.set = append(k.set, argument{})
	}
	k.low, k.val = k.low[:0], k.val[:0]
	k.put(index, a)
	s := k.native.SetArg(k.low[0], k.val)
	k.set[index] = argument{}
	if s == cl.SUCCESS {
		k.set[index] = *a
	}
	k.inStep = false
	return s
}

var nativeOrder = binary.NativeEndian
