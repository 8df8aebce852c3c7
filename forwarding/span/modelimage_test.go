package span

import (
	"slices"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// The model's images: elements of four bytes, row by row without gaps, alone or over a buffer.

const modelElement = 4

func (m *model) CreateImage(context uintptr, _ []uint64, flags uint64, format *api.ImageFormat, desc *api.ImageDesc,
	host api.HostPtr) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.get(context, "context")
	extent, ok := desc.Extent()
	switch {
	case c == nil:
		return 0, cl.INVALID_CONTEXT
	case m.noImages >= 0 && c.device == m.devices[m.noImages]:
		return 0, cl.INVALID_OPERATION
	case format == nil || !ok || extent[0] == 0:
		return 0, cl.INVALID_IMAGE_DESCRIPTOR
	}
	x := &thing{kind: "image", ctx: c, flags: flags, extent: extent, layout: *desc, element: modelElement}
	if flags&7 == 0 {
		x.flags |= cl.MEM_READ_WRITE
	}
	n := extent[0] * extent[1] * extent[2] * modelElement
	if desc.Parent != 0 {
		if x.parent = m.memory(desc.Parent); x.parent == nil || x.parent.ctx != c || uint64(len(x.parent.data)) < n {
			return 0, cl.INVALID_MEM_OBJECT
		}
		x.data = x.parent.data[:n]
		return m.put(x), cl.SUCCESS
	}
	x.data = make([]byte, n)
	for i := range x.data {
		x.data[i] = 0xEE
	}
	if !host.Nil() {
		row, slice := desc.RowPitch, desc.SlicePitch
		each(x, api.ImageRegion{Region: extent}, row, slice,
			func(in []byte, at uint64) { copy(in, host.Bytes(at, uint64(len(in)))) })
	}
	return m.put(x), cl.SUCCESS
}

// each calls f with the rows of a region, and where they lie in memory of the given pitches.
func each(x *thing, r api.ImageRegion, row, slice uint64, f func(in []byte, at uint64)) {
	width, height := x.extent[0]*modelElement, x.extent[1]
	region := [3]uint64{r.Region[0] * modelElement, r.Region[1], r.Region[2]}
	rows([3]uint64{r.Origin[0] * modelElement, r.Origin[1], r.Origin[2]}, [3]uint64{}, region, width,
		width*height, row, slice,
		func(a, b, n uint64) { f(x.data[a:a+n], b) })
}

func (m *model) ImageInfo(h uintptr, param uint32) ([]byte, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.get(h, "image")
	if x == nil {
		return nil, cl.INVALID_MEM_OBJECT
	}
	row := max(x.layout.RowPitch, x.extent[0]*modelElement)
	switch param {
	case cl.IMAGE_ELEMENT_SIZE:
		return answers.U64(modelElement), cl.SUCCESS
	case cl.IMAGE_ROW_PITCH:
		return answers.U64(row), cl.SUCCESS
	case cl.IMAGE_SLICE_PITCH:
		switch x.layout.Kind {
		case cl.MEM_OBJECT_IMAGE3D, cl.MEM_OBJECT_IMAGE2D_ARRAY:
			return answers.U64(row * x.extent[1]), cl.SUCCESS
		case cl.MEM_OBJECT_IMAGE1D_ARRAY:
			return answers.U64(row), cl.SUCCESS
		}
		return answers.U64(0), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

func (m *model) ImageFormats(context uintptr, _ uint64, _ uint32) ([]api.ImageFormat, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.get(context, "context")
	if c == nil {
		return nil, cl.INVALID_CONTEXT
	}
	own := api.ImageFormat{Order: uint32(slices.Index(m.devices, c.device))}
	return []api.ImageFormat{{Order: cl.RGBA, DataType: cl.UNSIGNED_INT8}, own}, cl.SUCCESS
}

func (m *model) image(queue, h uintptr, kind uint32, blocking bool, r api.ImageRegion, w api.Waits,
	do func(x *thing)) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q, list, status := m.on(queue, h)
	if status != cl.SUCCESS {
		return 0, status
	}
	x := list[0]
	if x.kind != "image" {
		return 0, cl.INVALID_MEM_OBJECT
	}
	for i := range r.Region {
		if r.Region[i] == 0 || r.Origin[i]+r.Region[i] > x.extent[i] {
			return 0, cl.INVALID_VALUE
		}
	}
	return m.enqueue(q, queue, kind, blocking, w, func() { do(x) })
}

func (m *model) EnqueueReadImage(queue, h uintptr, blocking bool, r api.ImageRegion, row, slice uint64, ptr api.HostPtr,
	w api.Waits) (uintptr, api.Status) {
	return m.image(queue, h, cl.COMMAND_READ_IMAGE, blocking, r, w, func(x *thing) {
		each(x, r, row, slice, func(in []byte, at uint64) { copy(ptr.Bytes(at, uint64(len(in))), in) })
	})
}
func (m *model) EnqueueWriteImage(queue, h uintptr, blocking bool, r api.ImageRegion, row, slice uint64,
	ptr api.HostPtr, w api.Waits) (uintptr, api.Status) {
	return m.image(queue, h, cl.COMMAND_WRITE_IMAGE, blocking, r, w, func(x *thing) {
		each(x, r, row, slice, func(in []byte, at uint64) { copy(in, ptr.Bytes(at, uint64(len(in)))) })
	})
}
func (m *model) EnqueueFillImage(queue, h uintptr, color api.HostPtr, r api.ImageRegion, w api.Waits) (uintptr,
	api.Status) {
	with := slices.Clone(color.Bytes(0, modelElement))
	return m.image(queue, h, cl.COMMAND_FILL_IMAGE, false, r, w, func(x *thing) {
		each(x, r, 0, 0, func(in []byte, _ uint64) { copy(in, slices.Repeat(with, len(in)/modelElement)) })
	})
}

func (m *model) memoryOf(h uintptr) *thing {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.memory(h)
}

func (m *model) EnqueueCopyImage(queue, src, dst uintptr, r api.ImageRegion, to [3]uint64, w api.Waits) (uintptr,
	api.Status) {
	target := m.memoryOf(dst)
	if target == nil {
		return 0, cl.INVALID_MEM_OBJECT
	}
	return m.image(queue, src, cl.COMMAND_COPY_IMAGE, false, r, w, func(x *thing) {
		var got [][]byte
		each(x, r, 0, 0, func(in []byte, _ uint64) { got = append(got, slices.Clone(in)) })
		each(target, api.ImageRegion{Origin: to, Region: r.Region}, 0, 0,
			func(in []byte, _ uint64) { copy(in, got[0]); got = got[1:] })
	})
}

func (m *model) EnqueueCopyImageBuffer(toBuffer bool, queue, h, buffer uintptr, r api.ImageRegion, offset uint64,
	w api.Waits) (uintptr, api.Status) {
	b := m.memoryOf(buffer)
	if b == nil {
		return 0, cl.INVALID_MEM_OBJECT
	}
	kind := uint32(cl.COMMAND_COPY_BUFFER_TO_IMAGE)
	if toBuffer {
		kind = cl.COMMAND_COPY_IMAGE_TO_BUFFER
	}
	return m.image(queue, h, kind, false, r, w, func(x *thing) {
		each(x, r, 0, 0, func(in []byte, at uint64) {
			if out := b.data[offset+at:]; toBuffer {
				copy(out, in)
			} else {
				copy(in, out)
			}
		})
	})
}

func (m *model) EnqueueMapImage(queue, h uintptr, blocking bool, flags uint64, r api.ImageRegion, _ bool,
	w api.Waits) (api.ImageMap, api.Status) {
	n := r.Region[0] * r.Region[1] * r.Region[2] * modelElement
	s := &shownMap{memory: make([]byte, n+1), writes: flags&(cl.MAP_WRITE|cl.MAP_WRITE_INVALIDATE_REGION) != 0}
	event, status := m.image(queue, h, cl.COMMAND_MAP_IMAGE, blocking, r, w, func(x *thing) {
		each(x, r, 0, 0, func(in []byte, at uint64) { copy(s.memory[at:], in) })
	})
	if status != cl.SUCCESS {
		return api.ImageMap{}, status
	}
	x := m.memoryOf(h)
	s.back = func() { each(x, r, 0, 0, func(in []byte, at uint64) { copy(in, s.memory[at:]) }) }
	shown := api.ImageMap{At: m.show(x, s), Row: r.Region[0] * modelElement, Event: event}
	if r.Region[2] > 1 {
		shown.Slice = shown.Row * r.Region[1]
	}
	return shown, cl.SUCCESS
}

func (m *model) sampler(context uintptr) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.get(context, "context")
	switch {
	case c == nil:
		return 0, cl.INVALID_CONTEXT
	case m.noImages >= 0 && c.device == m.devices[m.noImages]:
		return 0, cl.INVALID_OPERATION
	}
	return m.put(&thing{kind: "sampler", ctx: c}), cl.SUCCESS
}
func (m *model) CreateSampler(context uintptr, _, _, _ uint32) (uintptr, api.Status) {
	return m.sampler(context)
}
func (m *model) CreateSamplerWithProperties(context uintptr, _ []uint64) (uintptr, api.Status) {
	return m.sampler(context)
}
func (m *model) RetainSampler(h uintptr) api.Status {
	return m.retain(h, cl.INVALID_SAMPLER, "sampler")
}
func (m *model) ReleaseSampler(h uintptr) api.Status {
	return m.release(h, cl.INVALID_SAMPLER, "sampler")
}
func (m *model) SamplerInfo(h uintptr, _ uint32) ([]byte, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return answers.U32(1), m.check(m.get(h, "sampler") != nil, cl.INVALID_SAMPLER)
}
