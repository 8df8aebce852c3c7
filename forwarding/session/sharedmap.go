package session

import "tendril/forwarding/cl"

// sharedShadowBytes is the least buffer whose maps are shown in shared memory: a segment has a descriptor and a charge,
// and the driver's first use of it costs more than a copy of this many bytes.
const sharedShadowBytes = 256 << 10

// shareShadow gives maps of a large buffer out of place shared memory to show, so that the worker moves their bytes
// without a copy by this side. Where there is none left, maps show memory of the program's own.
func (b *Buffer) shareShadow(q *Queue) {
	if !b.ctx.Staged() || b.size < sharedShadowBytes || b.image != nil || b.mirror != nil || b.maps.Shown() != nil {
		return
	}
	p, status := b.d.slabs.AllocOwn(b.size)
	if status != cl.SUCCESS {
		return
	}
	if b.ctx.PinMap(b, p) == cl.SUCCESS && b.maps.Show(p, b.size) {
		b.ctx.Views.Add(p, b.size)
		return
	}
	q.w.freeMemory(b.d, p)
}
