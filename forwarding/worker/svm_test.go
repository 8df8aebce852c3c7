//go:build cgo

package worker

import (
	"errors"
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/tools/e2e/await"
)

// svm asks for shared virtual memory at a free address, and gives its number and where it lies.
func (f *fixture) svm(size, segment uint64) (id, at uint64) {
	f.t.Helper()
	for range 16 {
		id = f.id()
		r := f.call(&clwire.CreateSVM{ID: id, Context: f.context, Size: size, Segment: segment,
			Address: uint64(fixed.Pick(size))})
		if r.Status != 0 || len(r.Data) != 8 {
			f.t.Fatalf("no shared virtual memory: %d, %d bytes", r.Status, len(r.Data))
		}
		if at = nativeOrder.Uint64(r.Data); at != 0 {
			return id, at
		}
		f.send(&clwire.Release{ID: id})
	}
	f.t.Fatal("every address is taken")
	return 0, 0
}

func argSVM(i uint16, id, at uint64) clwire.Arg {
	data := nativeOrder.AppendUint64(nativeOrder.AppendUint64(nil, id), at)
	return clwire.Arg{Index: i, Kind: clwire.ArgSVM, Data: data}
}

// TestSharedVirtualMemory: a kernel gets the address that the client has; a launch that waits keeps memory that was
// released, and the memory goes when it has ended.
func TestSharedVirtualMemory(t *testing.T) {
	for _, lanes := range []bool{false, true} {
		f := newFixture(inProcess(t, lanes), 0)
		if !f.inPlace {
			t.Skip("the driver chooses the addresses: tools/difftest/tests/svm.c")
		}
		const size = 8192
		segment := f.segmentID
		if lanes {
			segment = 0 // another machine's client has none
		}
		id, at := f.svm(size, segment)
		buffer := f.id()
		f.send(&clwire.CreateBuffer{ID: buffer, Context: f.context, Parent: id, Offset: 100, Size: 400})
		k, gate := f.kernel("add"), f.id()
		f.send(&clwire.UserEvent{ID: gate})
		f.send(run1(clwire.Cmd{Queue: f.queue}, k, 4, argSVM(0, id, at+96), argInt(1, 5)))
		f.send(run1(clwire.Cmd{Queue: f.queue, Wait: []uint64{gate}}, k, 4, argSVM(0, id, at+96)))
		f.send(&clwire.SVMPointers{Kernel: k, Objects: []uint64{id, id}, Pointers: []uint64{at, at + size}})
		f.send(run1(clwire.Cmd{Queue: f.queue, Wait: []uint64{gate}}, k, 1, argMem(0, buffer)))
		f.send(&clwire.SVMPointers{Kernel: k})
		out := f.id()
		f.send(&clwire.CreateBuffer{ID: out, Context: f.context, Parent: id, Offset: 0, Size: size})
		f.send(&clwire.Release{ID: id})
		f.send(&clwire.Release{ID: buffer})
		f.send(&clwire.SetUserEvent{ID: gate})
		f.call(&clwire.Finish{Queue: f.queue})
		view, ok := f.view(at, size)
		if !ok {
			t.Fatal("the memory went with a part of it still there")
		}
		if got := ints(view[96:112]); got[0] != 10 || got[1] != 15 || got[3] != 10 {
			t.Errorf("lanes %v: %v, faults %+v", lanes, got, f.faults)
		}
		f.send(&clwire.Release{ID: out})
		f.send(&clwire.Release{ID: k})
		await.Until(t, "the memory is unmapped", func() bool {
			_, there := f.view(at, size)
			return !there
		})
	}
}

// TestContextOutlivesItsSVM: a driver's shared virtual memory is freed in its context, which is released no sooner.
func TestContextOutlivesItsSVM(t *testing.T) {
	s, stop := fuzzSession(t)
	defer stop()
	s.inPlace = false
	do := func(m clwire.Message) {
		t.Helper()
		if err := s.execute(clwire.Header{Type: m.Type(), Request: 1}, m.Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	do(&clwire.CreateContext{ID: 21, Devices: []uint32{0}})
	do(&clwire.CreateSVM{ID: 22, Context: 21, Size: 4096, Address: uint64(fixed.Pick(4096))})
	c := s.objects[21].(*clContext)
	if s.objects[22].(*buffer).svm == nil {
		t.Skip("the driver has no shared virtual memory")
	}
	driverSVM.Lock()
	do(&clwire.Release{ID: 22})
	do(&clwire.Release{ID: 21})
	if n := c.refs.Load(); n != 1 {
		t.Errorf("%d references while the memory is being freed", n)
	}
	driverSVM.Unlock()
	s.work.Wait()
	if n := c.refs.Load(); n != 0 {
		t.Errorf("%d references when it is freed", n)
	}
}

// view is what this process, which is the worker's too, has at an address: nothing if it can be reserved.
func (f *fixture) view(at, size uint64) ([]byte, bool) {
	mem, err := fixed.Reserve(uintptr(at), size)
	if err == nil {
		fixed.Release(mem)
		return nil, false
	}
	return fixed.At(uintptr(at), size), true
}

// TestTakenAddress: what lies at an address stays there, and the client is told.
func TestTakenAddress(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	if !f.inPlace {
		t.Skip("the driver chooses the addresses")
	}
	mem, err := fixed.Reserve(fixed.Pick(4096), 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer fixed.Release(mem)
	for _, segment := range []uint64{0, f.segmentID} {
		id := f.id()
		r := f.call(&clwire.CreateSVM{ID: id, Context: f.context, Size: 4096, Segment: segment,
			Address: uint64(fixed.Address(mem))})
		if r.Status != 0 || nativeOrder.Uint64(r.Data) != 0 {
			t.Errorf("segment %d: %d %x", segment, r.Status, r.Data)
		}
		// What is not there fails the command that names it, not the session.
		e := f.id()
		f.send(&clwire.Fill{Cmd: clwire.Cmd{Queue: f.queue, Event: e}, Buffer: id, Size: 64, Pattern: []byte{1}})
		f.call(&clwire.Finish{Queue: f.queue})
		f.send(&clwire.Release{ID: id})
	}
	r := f.call(&clwire.CreateSVM{ID: f.id(), Context: f.context, Size: 4096, Align: 4096, Address: 1 << 45})
	if r.Status != int32(cl.INVALID_VALUE) {
		t.Errorf("an alignment that no driver of the kind takes: %d", r.Status)
	}
}

// TestBadSharedVirtualMemory: a record that cannot be right ends the session.
func TestBadSharedVirtualMemory(t *testing.T) {
	if !testDriver(t).inPlace {
		t.Skip("the driver chooses the addresses")
	}
	const ctx, queue, buf, k, id = 1, 2, 3, 4, 60 // as fuzzSession made them
	at := uint64(fixed.Pick(4096))
	create := func(m clwire.CreateSVM) framed {
		m.Context = ctx
		return framed{clwire.Header{Type: m.Type(), Request: 7}, m.Append(nil)}
	}
	plain := func(m clwire.Message) framed { return framed{clwire.Header{Type: m.Type()}, m.Append(nil)} }
	pointers := func(object, address uint64) framed {
		return plain(&clwire.SVMPointers{Kernel: k, Objects: []uint64{object}, Pointers: []uint64{address}})
	}
	launch := func(address uint64) framed {
		return plain(run1(clwire.Cmd{Queue: queue}, k, 1, argSVM(0, id, address)))
	}
	for name, c := range map[string]struct {
		bad  framed
		good bool
	}{
		"the first byte":              {pointers(id, at), true},
		"right behind":                {pointers(id, at+4096), true},
		"an address before":           {launch(at - 1), false},
		"an address behind":           {launch(at + 4097), false},
		"reached before":              {pointers(id, at-1), false},
		"reached behind":              {pointers(id, at+4097), false},
		"of a buffer":                 {pointers(buf, at), false},
		"of a queue":                  {pointers(queue, at), false},
		"a number that is taken":      {create(clwire.CreateSVM{ID: id, Size: 64, Address: at}), false},
		"a segment that is too small": {create(clwire.CreateSVM{ID: 61, Size: 1 << 40, Segment: 9, Address: at}), false},
		"a segment that is not there": {create(clwire.CreateSVM{ID: 61, Size: 64, Segment: 77, Address: at}), false},
		"a segment at no address":     {create(clwire.CreateSVM{ID: 61, Size: 64, Segment: 9}), false},
		"nobody asks":                 {plain(&clwire.CreateSVM{ID: 61, Context: ctx, Size: 64, Address: at}), false},
		"no bytes":                    {create(clwire.CreateSVM{ID: 61, Address: at}), false},
		"half a page":                 {create(clwire.CreateSVM{ID: 61, Size: 64, Address: at + 2048}), false},
	} {
		t.Run(name, func(t *testing.T) {
			s, stop := fuzzSession(t)
			defer stop()
			err := play(s, []framed{create(clwire.CreateSVM{ID: id, Size: 4096, Address: at}), c.bad})
			if c.good != (err == nil) || err != nil && !errors.Is(err, errRecord) && !errors.Is(err, clwire.ErrRecord) {
				t.Errorf("%v", err)
			}
		})
	}
}
