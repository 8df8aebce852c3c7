package span

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// picture is n bytes that differ.
func picture(n uint64, from byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = from + byte(i)
	}
	return b
}

// TestImagesAreOneMemory: what one member writes of an image, of each kind and way of its memory, another one reads,
// copies and maps.
func TestImagesAreOneMemory(t *testing.T) {
	for _, desc := range []api.ImageDesc{
		{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 6, Height: 5},
		{Kind: cl.MEM_OBJECT_IMAGE3D, Width: 4, Height: 3, Depth: 2},
		{Kind: cl.MEM_OBJECT_IMAGE1D_ARRAY, Width: 7, ArraySize: 3},
		{Kind: cl.MEM_OBJECT_IMAGE1D, Width: 9},
	} {
		for _, way := range []string{"", "pushed", "copied", "program's", "over a buffer"} {
			t.Run(fmt.Sprintf("%#x/%s", desc.Kind, way), func(t *testing.T) { oneImage(t, desc, way) })
		}
	}
}

func oneImage(t *testing.T, desc api.ImageDesc, way string) {
	r := newRig(t, 2, 1)
	r.m.links = way == "pushed"
	d := r.d
	extent, _ := desc.Extent()
	all := api.ImageRegion{Region: extent}
	n := extent[0] * extent[1] * extent[2] * modelElement
	data, host, flags := picture(n, 1), api.HostPtr{}, uint64(0)
	memory := picture(n, 100)
	var under uintptr
	switch way {
	case "copied":
		flags, host = cl.MEM_COPY_HOST_PTR, api.HostBytes(memory)
	case "program's":
		flags, host = cl.MEM_USE_HOST_PTR, api.HostBytes(memory)
	case "over a buffer":
		under = r.buffer(cl.MEM_COPY_HOST_PTR, n, api.HostBytes(memory))
		desc.Parent = under
	}
	image, status := d.CreateImage(r.ctx, nil, flags, &api.ImageFormat{Order: cl.RGBA}, &desc, host)
	r.ok(status)
	r.made = append(r.made, func() { r.ok(d.ReleaseMemObject(image)) })
	read := func(q int, want []byte) {
		t.Helper()
		got := make([]byte, n)
		_, status := d.EnqueueReadImage(r.queues[q], image, true, all, 0, 0, api.HostBytes(got), api.Waits{})
		if r.ok(status); !bytes.Equal(got, want) {
			t.Fatalf("queue %d reads %x, want %x", q, got, want)
		}
	}
	if !host.Nil() || under != 0 {
		read(1, memory)
		read(0, memory)
	}
	e := r.event(d.EnqueueWriteImage(r.queues[0], image, false, all, 0, 0, api.HostBytes(data), api.Waits{Want: true}))
	r.ok(d.WaitForEvents(1, []uintptr{e}))
	read(1, data)
	pixel := api.ImageRegion{Origin: [3]uint64{extent[0] - 1, extent[1] - 1, extent[2] - 1}, Region: [3]uint64{1, 1, 1}}
	color := []byte{1, 2, 3, 4}
	e = r.event(d.EnqueueFillImage(r.queues[1], image, api.HostBytes(color), pixel, api.Waits{Want: true}))
	r.ok(d.WaitForEvents(1, []uintptr{e}))
	copy(data[n-4:], color)
	read(0, data)
	flat := r.buffer(0, n, api.HostPtr{})
	e = r.event(d.EnqueueCopyImageBuffer(true, r.queues[0], image, flat, all, 0, api.Waits{Want: true}))
	r.ok(d.WaitForEvents(1, []uintptr{e}))
	got := make([]byte, n)
	_, status = d.EnqueueRead(r.queues[1], flat, true, 0, n, api.HostBytes(got), api.Waits{})
	if r.ok(status); !bytes.Equal(got, data) {
		t.Fatalf("copied to a buffer: %x, want %x", got, data)
	}
	mapped := mapOneImage(r, image, all, n, desc.Kind, data)
	read(1, mapped)
	other, status := d.CreateImage(r.ctx, nil, 0, &api.ImageFormat{Order: cl.RGBA},
		&api.ImageDesc{Kind: desc.Kind, Width: desc.Width,
			Height: desc.Height, Depth: desc.Depth, ArraySize: desc.ArraySize}, api.HostPtr{})
	r.ok(status)
	r.made = append(r.made, func() { r.ok(d.ReleaseMemObject(other)) })
	e = r.event(d.EnqueueCopyImage(r.queues[1], image, other, all, [3]uint64{}, api.Waits{Want: true}))
	e = r.event(d.EnqueueCopyImageBuffer(false, r.queues[0], image, flat, all, 0,
		api.Waits{N: 1, List: []uintptr{e}, Want: true}))
	r.ok(d.WaitForEvents(1, []uintptr{e}))
	read(1, data)
	_, status = d.EnqueueReadImage(r.queues[0], other, true, all, 0, 0, api.HostBytes(got), api.Waits{})
	if r.ok(status); !bytes.Equal(got, mapped) {
		t.Fatalf("copied to an image: %x, want %x", got, mapped)
	}
	if way == "program's" && !bytes.Equal(memory, data) {
		t.Errorf("the program's memory is %x, want %x", memory, data)
	}
	if under != 0 {
		_, status = d.EnqueueRead(r.queues[0], under, true, 0, n, api.HostBytes(got), api.Waits{})
		if r.ok(status); !bytes.Equal(got, data) {
			t.Errorf("the buffer under it is %x, want %x", got, data)
		}
	}
	r.end()
}

// mapOneImage maps an image at one member, writes all of it and unmaps it at another one.
func mapOneImage(r *rig, image uintptr, all api.ImageRegion, n uint64, kind uint32, data []byte) []byte {
	r.t.Helper()
	d := r.d
	sliced := kind == cl.MEM_OBJECT_IMAGE3D || kind == cl.MEM_OBJECT_IMAGE1D_ARRAY
	shown, status := d.EnqueueMapImage(r.queues[0], image, true, cl.MAP_READ|cl.MAP_WRITE, all, sliced,
		api.Waits{Want: true})
	at := r.event(shown.Event, status)
	if kind := r.value(d.EventInfo(at, cl.EVENT_COMMAND_TYPE)); kind != cl.COMMAND_MAP_IMAGE {
		r.t.Errorf("a map's command is %#x", kind)
	}
	got := shown.At.Bytes(0, n)
	if !bytes.Equal(got, data) {
		r.t.Fatalf("a map shows %x, want %x", got, data)
	}
	want := picture(n, 77)
	copy(got, want)
	e := r.event(d.EnqueueUnmap(r.queues[1], image, shown.At, api.Waits{Want: true}))
	r.ok(d.WaitForEvents(1, []uintptr{e}))
	return slices.Clone(want)
}

// TestMembersWithoutImages: a context has images where one of its members has, at the members that have.
func TestMembersWithoutImages(t *testing.T) {
	r := newRig(t, 2, 1)
	r.end()
	m := newModel(t, 2, 1)
	m.noImages = 0
	d, err := New(m, One, 0)
	if err != nil {
		t.Fatal(err)
	}
	r = &rig{t: t, m: m, d: d}
	var status api.Status
	r.ctx, status = d.CreateContext(nil, m.devices, nil)
	r.ok(status)
	formats, status := d.ImageFormats(r.ctx, 0, cl.MEM_OBJECT_IMAGE2D)
	if r.ok(status); len(formats) != 2 {
		t.Errorf("formats %v", formats)
	}
	_, status = d.ImageFormats(5, 0, cl.MEM_OBJECT_IMAGE2D)
	r.is(status, cl.INVALID_CONTEXT)
	desc := api.ImageDesc{Kind: cl.MEM_OBJECT_IMAGE2D, Width: 4, Height: 4}
	image, status := d.CreateImage(r.ctx, nil, 0, &api.ImageFormat{}, &desc, api.HostPtr{})
	r.ok(status)
	_, status = d.CreateImage(r.ctx, nil, 0, nil, &desc, api.HostPtr{})
	r.is(status, cl.INVALID_IMAGE_DESCRIPTOR)
	desc.Parent = 5
	_, status = d.CreateImage(r.ctx, nil, 0, &api.ImageFormat{}, &desc, api.HostPtr{})
	r.is(status, cl.INVALID_MEM_OBJECT)
	if n := r.value(d.ImageInfo(image, cl.IMAGE_ROW_PITCH)); n != 16 {
		t.Errorf("a row of %d bytes", n)
	}
	if n := r.value(d.MemObjectInfo(image, cl.MEM_SIZE)); n != 64 {
		t.Errorf("an image of %d bytes", n)
	}
	if n := r.value(d.ImageInfo(image, cl.IMAGE_BUFFER)); n != 0 {
		t.Errorf("an image over %#x", n)
	}
	_, status = d.ImageInfo(5, cl.IMAGE_ROW_PITCH)
	r.is(status, cl.INVALID_MEM_OBJECT)
	q, status := d.CreateQueue(r.ctx, m.devices[0], 0)
	r.ok(status)
	_, status = d.EnqueueReadImage(q, image, true, api.ImageRegion{Region: [3]uint64{4, 4, 1}}, 0, 0,
		api.HostBytes(make([]byte, 64)), api.Waits{})
	r.is(status, cl.INVALID_OPERATION)
	s, status := d.CreateSampler(r.ctx, 1, 0, 0)
	r.ok(status)
	for _, status := range []api.Status{d.ReleaseSampler(s), d.ReleaseQueue(q), d.ReleaseMemObject(image),
		d.ReleaseContext(r.ctx)} {
		r.ok(status)
	}
	m.quiet()
	if left := m.left(); len(left) > 0 {
		t.Errorf("not released: %v", left)
	}
}
