//go:build cgo

package worker

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
)

// FuzzRecords lets a client send anything: the session takes it or ends with an
// error, and never panics. The input is a list of records: u16 type, u16
// request, u16 length, payload. Kernels cannot be launched, since a program may
// of course run for ever, and binaries and IL are kept from the driver's parser.
func FuzzRecords(f *testing.F) {
	seed := func(messages ...clwire.Message) {
		var b []byte
		for i, m := range messages {
			p := m.Append(nil)
			b = binary.LittleEndian.AppendUint16(b, uint16(m.Type()))
			b = binary.LittleEndian.AppendUint16(b, uint16(i%2))
			b = append(binary.LittleEndian.AppendUint16(b, uint16(len(p))), p...)
		}
		f.Add(b)
	}
	const ctx, queue, buf, k = 1, 2, 3, 4
	cmd := clwire.Cmd{Queue: queue, Event: 50}
	seed(&clwire.UserEvent{ID: 40}, &clwire.Marker{Cmd: clwire.Cmd{Queue: queue, Event: 41, Wait: []uint64{40}}},
		&clwire.SetUserEvent{ID: 40}, &clwire.Finish{Queue: queue})
	seed(&clwire.CreateBuffer{ID: 60, Context: ctx, Flags: 1, Size: 64},
		&clwire.CreateBuffer{ID: 61, Context: ctx, Size: 8, Parent: 60, Offset: 8}, &clwire.Release{ID: 60})
	seed(&clwire.CreateBuffer{ID: 60, Context: ctx, Flags: 1, Size: 64, Segment: 9, Offset: 128},
		&clwire.DropSegment{ID: 9})
	seed(&clwire.Flush{Queue: queue}, &clwire.CreateSVM{ID: 60, Context: ctx, Size: 4096, Address: 0x2000_0000_0000},
		&clwire.SVMPointers{Kernel: k, Objects: []uint64{60}, Pointers: []uint64{0x2000_0000_0008}},
		&clwire.CreateBuffer{ID: 61, Context: ctx, Size: 8, Parent: 60, Offset: 8}, &clwire.Release{ID: 60})
	seed(&clwire.Copy{Cmd: cmd, Src: buf, Dst: buf, DstOffset: 32, Size: 16},
		&clwire.Fill{Cmd: clwire.Cmd{Queue: queue}, Buffer: buf, Size: 8, Pattern: []byte{1}})
	seed(&clwire.CopyRect{Cmd: cmd, Src: buf, Dst: buf, DstOrigin: [3]uint64{0, 4, 0}, Region: [3]uint64{4, 2, 1},
		SrcRow: 4, DstRow: 4})
	seed(&clwire.Transfer{Cmd: cmd, Direction: 1, Buffer: buf, Segment: 9, Rect: true, Region: [3]uint64{4, 2, 1},
		RowPitch: 8})
	seed(&clwire.WriteInline{Cmd: cmd, Buffer: buf, Data: []byte("abc")}, &clwire.Wait{Events: []uint64{50}},
		&clwire.Watch{Event: 50, Level: 1})
	seed(&clwire.Host{Cmd: cmd, Op: 7}, &clwire.HostDone{Op: 7}, &clwire.Barrier{Cmd: clwire.Cmd{Queue: queue}})
	seed(run1(cmd, k, 1, argMem(0, buf)), &clwire.SetArg{Kernel: k, Arg: argInt(1, 1)},
		&clwire.Query{Kind: 2, Object: k, Param: cl.KERNEL_FUNCTION_NAME})
	seed(&clwire.Blob{ID: 5, Total: 3, Data: []byte("abc")}, &clwire.CreateProgram{ID: 70, Context: ctx, Kind: 1,
		Blob: 5}, &clwire.CreateKernel{ID: 71, Program: 70, Name: "x"})
	seed(&clwire.CreateContext{ID: 80, Devices: []uint32{0}}, &clwire.CreateQueue{ID: 81, Context: 80, Properties: 3},
		&clwire.Flush{Queue: 81}, &clwire.Release{ID: 81})
	graph := clwire.AppendRecorded(clwire.AppendRecorded(nil, &clwire.Fill{Buffer: buf, Size: 8, Pattern: []byte{1}}),
		&clwire.Copy{Src: buf, Dst: buf, DstOffset: 32, Size: 16})
	seed(&clwire.Blob{ID: 5, Total: uint64(len(graph)), Data: graph}, &clwire.Graph{ID: 70, Blob: 5},
		&clwire.Replay{Cmd: cmd, Graph: 70, First: 80}, &clwire.Replay{Cmd: clwire.Cmd{Queue: queue}, Graph: 70},
		&clwire.Release{ID: 70})
	bulk := clwire.Cmd{Queue: queue, Event: 51}
	seed(&clwire.BulkWrite{Cmd: bulk, Op: 90, Buffer: buf, Shape: clwire.Shape{Offset: 8, Size: 16}},
		clwire.NewBulkBytes(90, 0, make([]byte, 16)), &clwire.Finish{Queue: queue})
	seed(&clwire.BulkRead{Cmd: bulk, Op: 91, Inline: true, Buffer: buf, Shape: clwire.Shape{Rect: true,
		Origin: [3]uint64{1, 1, 0}, Region: [3]uint64{4, 2, 1}, RowPitch: 8, SlicePitch: 16}})
	seed(&clwire.TimeLimits{KernelNanos: 1 << 40, BuildNanos: 1}, &clwire.TimeLimits{KernelNanos: 1},
		&clwire.Finish{Queue: queue})
	f.Fuzz(func(t *testing.T, input []byte) {
		s, stop := fuzzSession(t)
		defer stop()
		for len(input) >= 6 {
			h := clwire.Header{Type: clwire.Type(binary.LittleEndian.Uint16(input)),
				Request: uint64(binary.LittleEndian.Uint16(input[2:]))}
			n := min(int(binary.LittleEndian.Uint16(input[4:])), len(input)-6)
			p := input[6 : 6+n]
			input = input[6+n:]
			if skipped(h.Type, p) {
				continue
			}
			if s.execute(h, p) != nil {
				return
			}
		}
	})
}

func skipped(t clwire.Type, p []byte) bool {
	switch t {
	case clwire.TypeAddSegment: // would wait for its descriptor
		return true
	case clwire.TypeCreateProgram:
		var m clwire.CreateProgram
		return m.Decode(p) == nil && (m.Kind == clwire.ProgramBinaries || m.Kind == clwire.ProgramIL)
	case clwire.TypeCreateBuffer: // what a driver does with real memory is not the question
		var m clwire.CreateBuffer
		return m.Decode(p) == nil && m.Segment == 0 && m.Size > 1<<20
	}
	return false
}

// fuzzSession has a context 1, queue 2, buffer 3, segment 9, and a kernel 4 that could not be made.
func fuzzSession(t *testing.T) (*session, func()) {
	d := testDriver(t)
	if !d.inPlace {
		t.Skip("the fixture's buffer is in place")
	}
	ring, sockets := linkEnds(t)
	l, err := link.New(link.Worker, ring, sockets[1])
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(l, d.platform, d.devices, true, false, nil)
	s.greeted = true
	s.bulk = newBulk(s)
	mem, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	seg := &segment{id: 9, mem: mem, gone: s.unmap}
	seg.refs.Store(1)
	s.segments[9] = seg
	k := &kernel{status: cl.INVALID_KERNEL}
	k.refs.Store(1)
	s.objects[4] = k
	for _, m := range []clwire.Message{
		&clwire.CreateContext{ID: 1, Devices: []uint32{0}}, &clwire.CreateQueue{ID: 2, Context: 1},
		&clwire.CreateBuffer{ID: 3, Context: 1, Flags: 1, Size: 256, Segment: 9},
	} {
		if err := s.execute(clwire.Header{Type: m.Type()}, m.Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	return s, func() {
		s.unbound()
		s.liveMu.Lock()
		var held []*clQueue
		for q := range s.live {
			q.refs.Add(1)
			held = append(held, q)
		}
		s.liveMu.Unlock()
		for _, q := range held {
			q.native.Finish()
			q.unref()
		}
		s.engine.Tick()
		s.bulk.close()
		s.engine.Close()
		for id := range s.objects {
			s.release(id)
		}
		for id := range s.segments {
			s.dropSegment(id)
		}
		s.work.Wait()
		for q := range s.live {
			q.native.Release()
		}
		l.Close()
	}
}
