package session

import (
	"tendril/forwarding/cl"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
)

// sharedShadowBytes is the least buffer whose maps are shown in shared memory: a segment has a descriptor and a charge,
// and the driver's first use of it costs more than a copy of this many bytes.
const sharedShadowBytes = 256 << 10

// shareShadow gives maps of a large buffer out of place shared memory to show, so that the worker moves their bytes
// without a copy by this side. Where there is none left, maps show memory of the program's own.
func (b *Buffer) shareShadow(q *Queue) {
	if !b.ctx.Staged() || b.size < sharedShadowBytes || b.image != nil || b.mirror != nil {
		return
	}
	b.mu.Lock()
	has := b.shadow != nil
	b.mu.Unlock()
	if has {
		return
	}
	p, status := b.d.slabs.AllocOwn(b.size)
	if status != cl.SUCCESS {
		return
	}
	if b.ctx.PinMap(b, p) == cl.SUCCESS && b.setShadow(p) {
		return
	}
	q.w.freeMemory(b.d, p)
}

// setShadow reports whether the place became the buffer's shadow: another thread may have been first.
func (b *Buffer) setShadow(p *memory.Place) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shadow != nil || b.released {
		return false
	}
	b.shadow, b.shadowPlace = p.Bytes(b.size), p
	return true
}

// shadowSegment is the shared segment under the buffer's shadow, nil where there is none.
func (b *Buffer) shadowSegment() *node.Segment {
	if !b.ctx.Staged() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shadowPlace == nil {
		return nil
	}
	return b.shadowPlace.Segment
}

// Pin keeps what maps show until Unpin, also after the buffer's release: a write of it may be under way.
func (b *Buffer) Pin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pins++
}

func (b *Buffer) Unpin() {
	b.mu.Lock()
	b.pins--
	last := b.pins == 0 && b.released
	b.mu.Unlock()
	if last {
		b.dropShadow()
	}
}
