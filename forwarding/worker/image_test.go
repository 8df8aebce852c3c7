//go:build cgo

package worker

import (
	"bytes"
	"encoding/json"
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// picture makes an image of RGBA bytes, in any case with an answer.
func (f *fixture) picture(m clwire.CreateImage) (id uint64, facts clwire.ImageFacts, status int32) {
	f.t.Helper()
	m.ID, m.Context, m.Flags = f.id(), f.context, cl.MEM_READ_WRITE
	if m.Order == 0 {
		m.Order, m.DataType = cl.RGBA, cl.UNSIGNED_INT8
	}
	r := f.call(&m)
	if r.Status == 0 {
		f.must(facts.Decode(r.Data))
	}
	return m.ID, facts, r.Status
}

// ended sends a command with an event and gives the status with which that ends.
func (f *fixture) ended(send func(clwire.Cmd) clwire.Message) int32 {
	f.t.Helper()
	e := f.id()
	f.send(send(clwire.Cmd{Queue: f.queue, Event: e}))
	f.call(&clwire.Finish{Queue: f.queue})
	f.until("event", func() bool { end, there := f.ends[e]; return there && end.Status <= 0 })
	return f.ends[e].Status
}

// TestImageCommands: bytes that are written to an image are those that come out of it, by every command and for every
// kind of image; and what lies beyond an image is INVALID_VALUE and never the driver's memory.
func TestImageCommands(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		for name, x := range map[string]struct {
			m      clwire.CreateImage
			extent [3]uint64
		}{
			"1d":       {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE1D, Width: 9}, [3]uint64{9, 1, 1}},
			"1d array": {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE1D_ARRAY, Width: 9, ArraySize: 4}, [3]uint64{9, 4, 1}},
			"2d":       {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 9, Height: 5}, [3]uint64{9, 5, 1}},
			"2d array": {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE2D_ARRAY, Width: 9, Height: 5, ArraySize: 3},
				[3]uint64{9, 5, 3}},
			"3d": {clwire.CreateImage{Kind: cl.MEM_OBJECT_IMAGE3D, Width: 9, Height: 5, Depth: 3}, [3]uint64{9, 5, 3}},
		} {
			a, facts, status := f.picture(x.m)
			b, _, status2 := f.picture(x.m)
			if status != 0 || status2 != 0 || facts.ElementBytes != 4 {
				t.Errorf("%s: %d, %d, %+v", name, status, status2, facts)
				continue
			}
			f.pictures(name, a, b, x.extent)
			f.beyond(name, a, b, x.extent)
		}
	})
}

// pictures writes to one image, copies to another one and fills a part of that, and reads it through a buffer.
func (f *fixture) pictures(name string, a, b uint64, extent [3]uint64) {
	f.t.Helper()
	n := int(4 * extent[0] * extent[1] * extent[2])
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(7 * i)
	}
	wide := [3]uint64{4 * extent[0], extent[1], extent[2]}
	color := [clwire.ColorBytes]byte{0: 250, 4: 251, 8: 252, 12: 253} // four unsigned numbers of 32 bits
	f.used = 0
	out, mem := f.buffer(n + 8)
	clear(mem)
	for i, send := range []func(clwire.Cmd) clwire.Message{
		func(c clwire.Cmd) clwire.Message {
			return &clwire.WriteImageInline{Cmd: c, Image: a, Region: wide, Data: data}
		},
		func(c clwire.Cmd) clwire.Message { return &clwire.CopyImage{Cmd: c, Src: a, Dst: b, Region: extent} },
		func(c clwire.Cmd) clwire.Message {
			return &clwire.FillImage{Cmd: c, Image: b, Color: color, Origin: [3]uint64{2}, Region: [3]uint64{3, 1, 1}}
		},
		func(c clwire.Cmd) clwire.Message {
			return &clwire.CopyImageBuffer{Cmd: c, Direction: clwire.ImageToBuffer, Image: b, Buffer: out, Offset: 8,
				Region: extent}
		},
	} {
		if status := f.ended(send); status != 0 {
			f.t.Errorf("%s: command %d ended with %d, %+v", name, i, status, f.faults)
		}
	}
	for i := range 3 {
		copy(data[4*(2+i):], []byte{250, 251, 252, 253})
	}
	f.bring()
	if !bytes.Equal(mem[8:], data) || !bytes.Equal(mem[:8], make([]byte, 8)) {
		f.t.Errorf("%s: other bytes came out: %x", name, mem)
	}
}

// beyond names parts that the images do not have, and objects that are none.
func (f *fixture) beyond(name string, a, b uint64, extent [3]uint64) {
	f.t.Helper()
	f.used = 0
	small, _ := f.buffer(16)
	one := [3]uint64{1, 1, 1}
	four, past := [3]uint64{4, 1, 1}, [3]uint64{extent[0], extent[1] - 1, extent[2] - 1}
	wraps := [3]uint64{^uint64(0) - 3, 0, 0}
	for what, x := range map[string]struct {
		want int32
		send func(clwire.Cmd) clwire.Message
	}{
		"a fill past the end": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.FillImage{Cmd: c, Image: a, Origin: past, Region: one}
		}},
		"a fill of nothing": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.FillImage{Cmd: c, Image: a, Region: [3]uint64{1, 0, 1}}
		}},
		"a copy that is too wide": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.CopyImage{Cmd: c, Src: a, Dst: b, DstOrigin: [3]uint64{1}, Region: extent}
		}},
		"a copy from where addresses wrap": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.CopyImage{Cmd: c, Src: a, Dst: b, SrcOrigin: wraps, Region: four}
		}},
		"a copy to a buffer as an image": {cl.INVALID_MEM_OBJECT, func(c clwire.Cmd) clwire.Message {
			return &clwire.CopyImage{Cmd: c, Src: a, Dst: small, Region: one}
		}},
		"a buffer that is too small": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.CopyImageBuffer{Cmd: c, Direction: clwire.ImageToBuffer, Image: a, Buffer: small, Offset: 4,
				Region: four}
		}},
		"a buffer's offset that wraps": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.CopyImageBuffer{Cmd: c, Direction: clwire.BufferToImage, Image: a, Buffer: small,
				Offset: ^uint64(0), Region: one}
		}},
		"an image as a buffer": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.CopyImageBuffer{Cmd: c, Direction: clwire.BufferToImage, Image: a, Buffer: b, Region: one}
		}},
		"fewer bytes than the part has": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.WriteImageInline{Cmd: c, Image: a, Region: [3]uint64{8, 1, 1}, Data: make([]byte, 7)}
		}},
		"half an element": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.WriteImageInline{Cmd: c, Image: a, Region: [3]uint64{6, 1, 1}, Data: make([]byte, 6)}
		}},
		"a write past the end": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.WriteImageInline{Cmd: c, Image: a, Origin: wraps, Region: four, Data: make([]byte, 4)}
		}},
		"a transfer of a range": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.Transfer{Cmd: c, Buffer: a, Segment: f.segmentID, Size: 4}
		}},
		"a transfer past the segment's end": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.Transfer{Cmd: c, Buffer: a, Segment: f.segmentID, SegmentOffset: 1<<20 - 3, Rect: true,
				Region: four}
		}},
		"an image copied as a buffer": {cl.INVALID_VALUE, func(c clwire.Cmd) clwire.Message {
			return &clwire.Copy{Cmd: c, Src: a, Dst: small, Size: 4}
		}},
	} {
		if status := f.ended(x.send); status != x.want {
			f.t.Errorf("%s: %s: ended with %d, want %d", name, what, status, x.want)
		}
	}
}

// TestImagesThatCannotBe: the driver's verdict comes back, and what is made of such an image is as it is.
func TestImagesThatCannotBe(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	for what, m := range map[string]clwire.CreateImage{
		"no size":       {Kind: cl.MEM_OBJECT_IMAGE2D},
		"no such kind":  {Kind: 0x1234, Width: 1, Height: 1},
		"a huge one":    {Kind: cl.MEM_OBJECT_IMAGE2D, Width: 1 << 40, Height: 1 << 40},
		"no such order": {Kind: cl.MEM_OBJECT_IMAGE2D, Width: 1, Height: 1, Order: 1, DataType: 2},
	} {
		id, _, status := f.picture(m)
		if status >= 0 {
			t.Errorf("%s: %d", what, status)
		}
		if end := f.ended(func(c clwire.Cmd) clwire.Message {
			return &clwire.FillImage{Cmd: c, Image: id, Region: [3]uint64{1, 1, 1}}
		}); end != status {
			t.Errorf("%s: a fill ended with %d, the image's status is %d", what, end, status)
		}
		f.send(&clwire.Release{ID: id})
	}
	if r := f.call(&clwire.ImageFormats{Context: f.context, Flags: cl.MEM_READ_WRITE,
		Kind: cl.MEM_OBJECT_IMAGE2D}); r.Status != 0 || len(r.Data) == 0 || len(r.Data)%8 != 0 {
		t.Errorf("formats: %d, %d bytes", r.Status, len(r.Data))
	}
	s := &clwire.CreateSampler{ID: f.id(), Context: f.context, Addressing: cl.ADDRESS_CLAMP, Filter: cl.FILTER_NEAREST}
	if r := f.call(s); r.Status != 0 {
		t.Errorf("a sampler: %d", r.Status)
	}
	f.send(&clwire.Release{ID: s.ID})
	f.finish(f.queue, 0)
}

// TestSubDevices: a device is counted, parted and its parts released; a part is a device for what comes after.
func TestSubDevices(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	ask := func(m clwire.CreateSubDevices) (answer clwire.SubDevices, status int32) {
		t.Helper()
		r := f.call(&m)
		if r.Status == 0 {
			f.must(json.Unmarshal(r.Data, &answer))
		}
		return answer, r.Status
	}
	byOne := []uint64{cl.DEVICE_PARTITION_EQUALLY, 1} // and no 0 behind it
	counted, status := ask(clwire.CreateSubDevices{First: clwire.SubDeviceBase, Properties: byOne})
	if status != 0 || counted.Count == 0 || len(counted.Devices) != 0 {
		t.Skipf("this driver parts no device: %d, %+v", status, counted)
	}
	if _, status := ask(clwire.CreateSubDevices{First: clwire.SubDeviceBase, Properties: []uint64{0x9999, 1},
		Room: 8}); status >= 0 {
		t.Errorf("no such partition: %d", status)
	}
	if counted.Count > 1 {
		if _, status := ask(clwire.CreateSubDevices{First: clwire.SubDeviceBase, Room: counted.Count - 1,
			Properties: byOne}); status != cl.INVALID_VALUE {
			t.Errorf("room for fewer: %d", status)
		}
	}
	made, status := ask(clwire.CreateSubDevices{First: clwire.SubDeviceBase, Room: 64, Properties: byOne})
	if status != 0 || len(made.Devices) != int(counted.Count) {
		t.Fatalf("%d, %d devices of %d", status, len(made.Devices), counted.Count)
	}
	if _, status := ask(clwire.CreateSubDevices{First: clwire.SubDeviceBase, Room: 64,
		Properties: byOne}); status != cl.INVALID_VALUE {
		t.Errorf("an index that is taken: %d", status)
	}
	part := &fixture{client: f.client, context: f.id()}
	if r := part.call(&clwire.CreateContext{ID: part.context, Devices: []uint32{clwire.SubDeviceBase}}); r.Status != 0 {
		t.Fatalf("a context of a part: %d", r.Status)
	}
	part.queue = part.newQueue(0)
	part.build(source)
	part.addSegment(1 << 16)
	b, mem := part.buffer(64)
	part.send(run1(clwire.Cmd{Queue: part.queue}, part.kernel("add"), 16, argMem(0, b), argInt(1, 3)))
	part.finish(part.queue, 0)
	part.expect("a part's sum", mem, 3)
	for i := range counted.Count {
		f.send(&clwire.ReleaseSubDevice{Device: clwire.SubDeviceBase + i})
	}
	if _, status := ask(clwire.CreateSubDevices{First: clwire.SubDeviceBase, Room: 64,
		Properties: byOne}); status != 0 {
		t.Errorf("an index that was given back: %d", status)
	}
	if r := f.call(&clwire.SpecConstant{Program: f.program, ID: 1, Value: []byte{1, 2, 3, 4}}); r.Status >= 0 {
		t.Errorf("a constant of a program from source: %d", r.Status)
	}
}
