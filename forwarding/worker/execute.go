//go:build cgo

package worker

import (
	"encoding/binary"
	"fmt"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
)

// maxSpin bounds what a client may ask the worker to poll.
const maxSpin = 10 * time.Millisecond

// execute carries one record out. An error ends the session.
func (s *session) execute(h clwire.Header, p []byte) error {
	if !s.greeted && h.Type != clwire.TypeHello {
		return fmt.Errorf("%w: the first record must be Hello", errRecord)
	}
	switch h.Type {
	case clwire.TypeNDRange:
		return s.ndrange(h, p)
	case clwire.TypeCopy, clwire.TypeCopyRect, clwire.TypeFill, clwire.TypeWriteInline, clwire.TypeTransfer:
		return s.memory(h, p)
	case clwire.TypeHost, clwire.TypeMarker, clwire.TypeBarrier:
		return s.order(h, p)
	case clwire.TypeBulkWrite, clwire.TypeBulkRead, clwire.TypeBulkBytes:
		return s.bulkRecord(h, p)
	case clwire.TypeCreateImage, clwire.TypeCreateSampler, clwire.TypeImageFormats, clwire.TypeCopyImage, clwire.TypeCopyImageBuffer,
		clwire.TypeFillImage, clwire.TypeWriteImageInline:
		return s.imageRecord(h, p)
	case clwire.TypeFinish, clwire.TypeWait, clwire.TypeWatch, clwire.TypeFlush,
		clwire.TypeHostDone, clwire.TypeUserEvent, clwire.TypeSetUserEvent:
		return s.events(h, p)
	case clwire.TypeHello, clwire.TypeTimeLimits, clwire.TypeTakesPacked, clwire.TypeRelease, clwire.TypeAddSegment, clwire.TypeDropSegment,
		clwire.TypeProtectSegment, clwire.TypeBlob:
		return s.manage(h, p)
	case clwire.TypeCreateContext, clwire.TypeCreateQueue, clwire.TypeCreateBuffer, clwire.TypeCreateProgram, clwire.TypeCreateKernel:
		return s.create(h, p)
	case clwire.TypeBuildProgram, clwire.TypeSetArg, clwire.TypeQuery:
		return s.ask(h, p)
	case clwire.TypeCompileProgram, clwire.TypeLinkProgram, clwire.TypeFiles, clwire.TypeFileData:
		return s.parts(h, p)
	case clwire.TypeCreateSubDevices, clwire.TypeReleaseSubDevice, clwire.TypeSpecConstant:
		return s.partition(h, p)
	case clwire.TypeContentSize:
		var m clwire.ContentSize
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.contentSize(&m)
	case clwire.TypeGraph, clwire.TypeReplay:
		return s.graphRecord(h, p)
	case clwire.TypeClockSync, clwire.TypeTraceOn, clwire.TypeTraceFlush:
		return s.traceRecord(h, p)
	case clwire.TypePeerOpen, clwire.TypePeerExpect, clwire.TypePeerPush, clwire.TypePeerPull, clwire.TypePeerSignal, clwire.TypePeerEvent,
		clwire.TypePeerClose:
		return s.peers.record(h, p)
	}
	return fmt.Errorf("%w: unknown type %d", errRecord, uint16(h.Type))
}

func (s *session) ndrange(h clwire.Header, p []byte) error {
	m := &s.scratch.ndrange
	if err := m.Decode(p); err != nil {
		return err
	}
	k, err := lookup[*kernel](s, m.Kernel)
	if err != nil {
		return err
	}
	if err := s.launch.load(s, k, m); err != nil {
		return err
	}
	return s.enqueue(h, engine.KindTask, &m.Cmd, &s.launch, k.gate, 0)
}

// enqueue hands a command to the engine.
func (s *session) enqueue(h clwire.Header, kind engine.Kind, m *clwire.Cmd, t engine.Task, gate *engine.Gate, op uint64) error {
	if m.Event != 0 { // most have none
		if err := s.fresh(m.Event); err != nil {
			if t != nil {
				t.Drop()
			}
			return err
		}
	}
	t = s.traced(h, kind, m, t, op)
	c := &s.scratch.command
	*c = engine.Command{Kind: kind, Queue: m.Queue, Event: m.Event, Wait: m.Wait, Request: h.Request, Gate: gate, Task: t, Op: op,
		Quick: quick(h.Type), Urgent: kind == engine.KindTask && h.Type == clwire.TypeBulkRead}
	return s.engine.Enqueue(c)
}

// quick says which commands a driver takes without waiting while it has few others: launches, copies on the device,
// and transfers from and to memory that is pinned or that the driver copies at once (InlineBytes is below what NVIDIA's
// takes so). Measured there: a 4-byte write through the lane 98 µs, past it 9.
func quick(t clwire.Type) bool {
	switch t {
	case clwire.TypeNDRange, clwire.TypeWriteInline, clwire.TypeBulkRead, clwire.TypeTransfer, clwire.TypeCopy, clwire.TypeFill,
		clwire.TypeWriteImageInline, clwire.TypeCopyImage, clwire.TypeCopyImageBuffer, clwire.TypeFillImage:
		return true
	}
	return false
}

func (s *session) memory(h clwire.Header, p []byte) error {
	var cmd *clwire.Cmd
	var t *memTask
	var err error
	switch h.Type {
	case clwire.TypeCopy:
		var m clwire.Copy
		if err = m.Decode(p); err == nil {
			t, err = s.copyTask(&m)
		}
		cmd = &m.Cmd
	case clwire.TypeCopyRect:
		var m clwire.CopyRect
		if err = m.Decode(p); err == nil {
			t, err = s.copyRectTask(&m)
		}
		cmd = &m.Cmd
	case clwire.TypeFill:
		var m clwire.Fill
		if err = m.Decode(p); err == nil {
			t, err = s.fillTask(&m)
		}
		cmd = &m.Cmd
	case clwire.TypeWriteInline:
		var m clwire.WriteInline
		if err = m.Decode(p); err == nil {
			t, err = s.writeTask(&m)
		}
		cmd = &m.Cmd
	default:
		m := &s.scratch.transfer
		if err = m.Decode(p); err == nil {
			t, err = s.transferTask(m)
		}
		cmd = &m.Cmd
	}
	if err != nil {
		return err
	}
	return s.enqueue(h, engine.KindTask, cmd, t, nil, 0)
}

func (s *session) order(h clwire.Header, p []byte) error {
	switch h.Type {
	case clwire.TypeHost:
		var m clwire.Host
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.enqueue(h, engine.KindHost, &m.Cmd, nil, nil, m.Op)
	case clwire.TypeMarker:
		var m clwire.Marker
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.enqueue(h, engine.KindMarker, &m.Cmd, nil, nil, 0)
	}
	var m clwire.Barrier
	if err := m.Decode(p); err != nil {
		return err
	}
	return s.enqueue(h, engine.KindBarrier, &m.Cmd, nil, nil, 0)
}

func (s *session) events(h clwire.Header, p []byte) error {
	switch h.Type {
	case clwire.TypeFinish:
		var m clwire.Finish
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.engine.Finish(m.Queue, h.Request)
	case clwire.TypeWait:
		m := &s.scratch.wait
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.engine.Wait(m.Events, h.Request)
	case clwire.TypeWatch:
		var m clwire.Watch
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.engine.Watch(m.Event, m.Level)
	case clwire.TypeFlush:
		var m clwire.Flush
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.engine.Flush(m.Queue)
	case clwire.TypeHostDone:
		var m clwire.HostDone
		if err := m.Decode(p); err != nil {
			return err
		}
		s.hostDone(m.Op, m.Status)
		if s.bulk != nil {
			s.bulk.received(m.Op)
		}
		return nil
	case clwire.TypeUserEvent:
		var m clwire.UserEvent
		if err := m.Decode(p); err != nil {
			return err
		}
		if err := s.fresh(m.ID); err != nil {
			return err
		}
		return s.engine.UserEvent(m.ID)
	}
	var m clwire.SetUserEvent
	if err := m.Decode(p); err != nil {
		return err
	}
	return s.engine.SetUserEvent(m.ID, m.Status)
}

func (s *session) manage(h clwire.Header, p []byte) error {
	switch h.Type {
	case clwire.TypeHello:
		var m clwire.Hello
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.hello(h, &m)
	case clwire.TypeTimeLimits:
		var m clwire.TimeLimits
		if err := m.Decode(p); err != nil {
			return err
		}
		s.bound(m)
		return nil
	case clwire.TypeTakesPacked:
		var m clwire.TakesPacked
		if err := m.Decode(p); err != nil {
			return err
		}
		if s.compression == nil {
			return fmt.Errorf("%w: packed chunks, which this worker does not offer", errRecord)
		}
		s.compression.Allow(m.Greatest)
		return nil
	case clwire.TypeRelease:
		var m clwire.Release
		if err := m.Decode(p); err != nil {
			return err
		}
		s.release(m.ID)
		return nil
	case clwire.TypeAddSegment:
		var m clwire.AddSegment
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.addSegment(&m)
	case clwire.TypeProtectSegment:
		var m clwire.ProtectSegment
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.protectSegment(h, &m)
	case clwire.TypeDropSegment:
		var m clwire.DropSegment
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.dropSegment(m.ID)
	}
	var m clwire.Blob
	if err := m.Decode(p); err != nil {
		return err
	}
	return s.blob(&m)
}

func (s *session) hello(h clwire.Header, m *clwire.Hello) error {
	if s.greeted {
		return fmt.Errorf("%w: a second Hello", errRecord)
	}
	if m.Version != clwire.Version {
		return fmt.Errorf("%w: the driver library speaks version %d, the worker %d: install both from the same release", errRecord, m.Version, clwire.Version)
	}
	s.greeted = true
	s.spin = min(time.Duration(m.SpinMicros)*time.Microsecond, maxSpin)
	answer := clwire.HelloReply{Version: clwire.Version}
	if s.inPlace {
		answer.Capabilities |= clwire.CapInPlace | clwire.CapProtect
	}
	if s.compression != nil {
		answer.Capabilities |= clwire.CapPacked
	}
	if h.Request != 0 {
		s.reply(h.Request, opencl.Success, answer.Append(nil))
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
		return fmt.Errorf("%w: blob %d goes on at %d of %d, expected %d of %d", errRecord, m.ID, m.Offset, m.Total, len(b.data), b.total)
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

// fresh refuses an id that is in use, or zero. Clients count upwards: an id above all before needs no look at the tables.
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
		if o.native != 0 {
			o.native.Release()
		}
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

func (s *session) ask(h clwire.Header, p []byte) error {
	switch h.Type {
	case clwire.TypeBuildProgram:
		var m clwire.BuildProgram
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.build(h, &m)
	case clwire.TypeSetArg:
		var m clwire.SetArg
		if err := m.Decode(p); err != nil {
			return err
		}
		return s.setArg(h, &m)
	}
	var m clwire.Query
	if err := m.Decode(p); err != nil {
		return err
	}
	return s.query(h, &m)
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
	if status == opencl.Success {
		k.shadow[index] = a
	}
	s.outcome(h, m.Kernel, status, fmt.Sprintf("clSetKernelArg: argument %d", index))
	return nil
}

// try sets one argument of the native kernel.
func (k *kernel) try(index int, a *argument) opencl.Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.status != opencl.Success {
		return k.status
	}
	if a.mem != nil && a.mem.status != opencl.Success {
		return a.mem.status
	}
	if a.samp != nil && a.samp.status != opencl.Success {
		return a.samp.status
	}
	for len(k.set) <= index {
		k.set = append(k.set, argument{})
	}
	k.low, k.val = k.low[:0], k.val[:0]
	k.put(index, a)
	s := k.native.SetArg(k.low[0], k.val)
	k.set[index] = argument{}
	if s == opencl.Success {
		k.set[index] = *a
	}
	k.inStep = false
	return s
}

var nativeOrder = binary.NativeEndian
