//go:build cgo

package worker

import (
	"fmt"
	"sync/atomic"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
)

// An image is a buffer whose memory is its driver's own business: it has no bytes that a range could name (size 0), and
// a shape instead.
type imageShape struct {
	kind         uint32
	elementBytes uint64
	extent       [3]uint64 // elements; an array's images are its last dimension
}

type sampler struct {
	native opencl.Sampler
	status opencl.Status
	refs   atomic.Int32
}

func (p *sampler) unref() {
	if p.refs.Add(-1) == 0 && p.native != 0 {
		p.native.Release()
	}
}

func (s *session) createImage(h clwire.Header, m *clwire.CreateImage) error {
	if err := s.fresh(m.ID); err != nil {
		return err
	}
	c, err := lookup[*clContext](s, m.Context)
	if err != nil {
		return err
	}
	desc := opencl.ImageDesc{Order: m.Order, DataType: m.DataType, Kind: m.Kind, Width: m.Width, Height: m.Height,
		Depth:     m.Depth,
		ArraySize: m.ArraySize, RowPitch: m.RowPitch, SlicePitch: m.SlicePitch}
	b := &buffer{context: c, status: c.status, image: &imageShape{kind: m.Kind, extent: extentOfImage(m)}}
	b.refs.Store(1)
	if m.Parent != 0 {
		parent, err := lookup[*buffer](s, m.Parent)
		if err != nil {
			return err
		}
		desc.Parent, b.status = parent.native, firstOf(b.status, parent.status)
		b.parent = parent
		parent.refs.Add(1)
	}
	var facts clwire.ImageFacts
	if b.status == cl.SUCCESS {
		facts = b.makeImage(m.Flags, &desc)
		s.takeImage(b, facts.MemBytes)
	}
	s.objects[m.ID] = b
	if h.Request != 0 && b.status == cl.SUCCESS {
		s.reply(h.Request, b.status, facts.Append(nil))
		return nil
	}
	s.outcome(h, m.ID, b.status, fmt.Sprintf("clCreateImage of %d x %d x %d", m.Width, m.Height, m.Depth))
	return nil
}

// takeImage books an image's bytes, which only its driver knew; where they are too many it goes again.
func (s *session) takeImage(b *buffer, n uint64) {
	if b.status != cl.SUCCESS || b.parent != nil {
		return
	}
	if b.status = s.deviceMemory.take(b, n); b.status != cl.SUCCESS {
		b.native.Release()
		b.native = 0
	}
}

// makeImage makes the native image and reads what its driver says of it.
func (b *buffer) makeImage(flags uint64, desc *opencl.ImageDesc) (facts clwire.ImageFacts) {
	flags &= accessFlags
	if b.native, b.status = b.context.native.CreateImage(flags, desc); b.status != cl.SUCCESS {
		return facts
	}
	for _, f := range [...]struct {
		param uint32
		into  *uint64
	}{{cl.IMAGE_ELEMENT_SIZE, &facts.ElementBytes}, {cl.IMAGE_ROW_PITCH, &facts.RowPitch},
		{cl.IMAGE_SLICE_PITCH, &facts.SlicePitch}} {
		value, _ := b.native.ImageInfo(f.param) // what a driver does not say is 0
		*f.into = answers.Number(value)
	}
	value, _ := b.native.MemInfo(cl.MEM_SIZE)
	facts.MemBytes = answers.Number(value)
	b.image.elementBytes = facts.ElementBytes
	return facts
}

// extentOfImage is the size of an image in the three dimensions of its regions; 0 where it has none.
func extentOfImage(m *clwire.CreateImage) [3]uint64 {
	switch m.Kind {
	case cl.MEM_OBJECT_IMAGE1D, cl.MEM_OBJECT_IMAGE1D_BUFFER:
		return [3]uint64{m.Width, 1, 1}
	case cl.MEM_OBJECT_IMAGE1D_ARRAY:
		return [3]uint64{m.Width, m.ArraySize, 1}
	case cl.MEM_OBJECT_IMAGE2D:
		return [3]uint64{m.Width, m.Height, 1}
	case cl.MEM_OBJECT_IMAGE2D_ARRAY:
		return [3]uint64{m.Width, m.Height, m.ArraySize}
	case cl.MEM_OBJECT_IMAGE3D:
		return [3]uint64{m.Width, m.Height, m.Depth}
	}
	return [3]uint64{}
}

// region checks a part of an image, in elements.
func (b *buffer) region(origin, region [3]uint64) (r opencl.Region, s opencl.Status) {
	if b.status != cl.SUCCESS {
		return r, b.status
	}
	if b.image == nil {
		return r, cl.INVALID_MEM_OBJECT
	}
	for i := range 3 {
		if region[i] == 0 || origin[i] > b.image.extent[i] || region[i] > b.image.extent[i]-origin[i] {
			return r, cl.INVALID_VALUE
		}
		r.Origin[i], r.Region[i] = uintptr(origin[i]), uintptr(region[i])
	}
	return r, cl.SUCCESS
}

// bytesRegion is region for a part whose x counts bytes; it must be whole elements.
func (b *buffer) bytesRegion(origin, region [3]uint64) (r opencl.Region, s opencl.Status) {
	if b.status != cl.SUCCESS {
		return r, b.status
	}
	if b.image == nil {
		return r, cl.INVALID_MEM_OBJECT
	}
	px := b.image.elementBytes
	if px == 0 || origin[0]%px != 0 || region[0]%px != 0 {
		return r, cl.INVALID_VALUE
	}
	origin[0], region[0] = origin[0]/px, region[0]/px
	return b.region(origin, region)
}

// densePitches are those of a region's bytes without gaps, as the driver wants them: 0 where the image has none.
func (b *buffer) densePitches(r *opencl.Region) (row, slice uint64) {
	row = uint64(r.Region[0]) * b.image.elementBytes
	switch b.image.kind {
	case cl.MEM_OBJECT_IMAGE1D_ARRAY:
		return row, row
	case cl.MEM_OBJECT_IMAGE2D_ARRAY, cl.MEM_OBJECT_IMAGE3D:
		return row, row * uint64(r.Region[1])
	}
	return row, 0
}

func (s *session) createSampler(h clwire.Header, m *clwire.CreateSampler) error {
	if err := s.fresh(m.ID); err != nil {
		return err
	}
	c, err := lookup[*clContext](s, m.Context)
	if err != nil {
		return err
	}
	p := &sampler{status: c.status}
	p.refs.Store(1)
	if p.status == cl.SUCCESS {
		p.native, p.status = c.native.CreateSampler(m.Normalized, m.Addressing, m.Filter)
	}
	s.objects[m.ID] = p
	s.outcome(h, m.ID, p.status, "clCreateSampler")
	return nil
}

func (s *session) imageFormats(h clwire.Header, m *clwire.ImageFormats) error {
	if h.Request == 0 {
		return fmt.Errorf("%w: formats that nobody asked for", errRecord)
	}
	c, err := lookup[*clContext](s, m.Context)
	if err != nil {
		return err
	}
	if c.status != cl.SUCCESS {
		s.reply(h.Request, c.status, nil)
		return nil
	}
	list, status := c.native.ImageFormats(m.Flags, m.Kind)
	var out []byte
	for _, v := range list {
		out = nativeOrder.AppendUint32(out, v)
	}
	s.reply(h.Request, status, out)
	return nil
}
