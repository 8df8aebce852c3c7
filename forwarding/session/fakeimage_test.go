package session

import (
	"fmt"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// Images of the fake worker: elements of 4 bytes, without gaps, in memory of their own or in a buffer's.

// newFakeImage makes an image; request 0: nobody asked.
func (w *fakeWorker) newFakeImage(request uint64, m *clwire.CreateImage) {
	extent := [3]uint64{4 * m.Width, max(m.Height, 1), max(m.Depth, m.ArraySize, 1)}
	size := extent[0] * extent[1] * extent[2]
	b := &fakeBuffer{extent: extent}
	if parent := w.buffers[m.Parent]; parent != nil {
		b.data = parent.data
	} else {
		b.data = make([]byte, size)
	}
	w.buffers[m.ID] = b
	if request != 0 {
		facts := clwire.ImageFacts{ElementBytes: 4, RowPitch: extent[0], MemBytes: size}
		if m.Kind == cl.MEM_OBJECT_IMAGE3D {
			facts.SlicePitch = extent[0] * extent[1]
		}
		w.reply(request, 0, facts.Append(nil))
	}
}

// at is where a row of a region begins: x of the origin in bytes.
func (b *fakeBuffer) at(origin [3]uint64, y, z uint64) uint64 {
	return ((origin[2]+z)*b.extent[1]+origin[1]+y)*b.extent[0] + origin[0]
}

// rows calls f with each row of a region, in order.
func (b *fakeBuffer) rows(origin, region [3]uint64, f func(row []byte)) {
	for z := range region[2] {
		for y := range region[1] {
			f(b.data[b.at(origin, y, z):][:region[0]])
		}
	}
}

func inBytes(v [3]uint64) [3]uint64 { return [3]uint64{4 * v[0], v[1], v[2]} }

// enqueueImage takes a command of an image.
func (w *fakeWorker) enqueueImage(h clwire.Header, p []byte, c *fakeCommand) error {
	switch h.Type {
	case clwire.TypeWriteImageInline:
		m := decode(&clwire.WriteImageInline{}, p)
		of, err := w.named(h.Type, m.Image)
		if err != nil {
			return err
		}
		c.cmd, c.run = m.Cmd, func() int32 {
			data := m.Data
			of[0].rows(m.Origin, m.Region, func(row []byte) { data = data[copy(row, data):] })
			return 0
		}
	case clwire.TypeFillImage:
		m := decode(&clwire.FillImage{}, p)
		of, err := w.named(h.Type, m.Image)
		if err != nil {
			return err
		}
		c.cmd, c.run = m.Cmd, func() int32 {
			of[0].rows(inBytes(m.Origin), inBytes(m.Region), func(row []byte) {
				for i := range row {
					row[i] = m.Color[0]
				}
			})
			return 0
		}
	case clwire.TypeCopyImage:
		m := decode(&clwire.CopyImage{}, p)
		of, err := w.named(h.Type, m.Src, m.Dst)
		if err != nil {
			return err
		}
		c.cmd, c.run = m.Cmd, func() int32 {
			var dense []byte
			region := inBytes(m.Region)
			of[0].rows(inBytes(m.SrcOrigin), region, func(row []byte) { dense = append(dense, row...) })
			of[1].rows(inBytes(m.DstOrigin), region, func(row []byte) { dense = dense[copy(row, dense):] })
			return 0
		}
	case clwire.TypeCopyImageBuffer:
		m := decode(&clwire.CopyImageBuffer{}, p)
		of, err := w.named(h.Type, m.Buffer, m.Image)
		if err != nil {
			return err
		}
		c.cmd, c.run = m.Cmd, func() int32 {
			dense := of[0].data[m.Offset:]
			of[1].rows(inBytes(m.Origin), inBytes(m.Region), func(row []byte) {
				if m.Direction == clwire.BufferToImage {
					copy(row, dense)
				} else {
					copy(dense, row)
				}
				dense = dense[len(row):]
			})
			return 0
		}
	default:
		return fmt.Errorf("the fake knows no %v", h.Type)
	}
	w.accept(c)
	return nil
}
