package span

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// mirror keeps a buffer and the program's own memory under it alike, as session's does for one member: the memory is
// pushed to the member of a command that uses the buffer, and fetched back at every synchronisation. Guarded by
// Context.mu.
type mirror struct {
	pushed   bool      // the program has not had its turn to write since the last push
	devNewer bool      // a command may have written since the last fetch
	pending  []uintptr // session's events of commands that use the buffer; a reference is held of each
}

// pushLocked copies the program's memory to a member before its first command behind a synchronisation.
func (b *Buffer) pushLocked(member int) api.Status {
	if b.mirror.pushed {
		return cl.SUCCESS
	}
	b.mirror.pushed = true
	return b.writeHostLocked(member, 0, b.size)
}

// writeHostLocked copies a range of the program's memory to a member, now.
func (b *Buffer) writeHostLocked(member int, off, n uint64) api.Status {
	c := b.ctx
	q, status := c.moveQueueLocked(member)
	if status != cl.SUCCESS {
		return status
	}
	inner, status := b.atLocked(member)
	if status != cl.SUCCESS {
		return status
	}
	w := api.Waits{Want: true, Internal: true}
	var event uintptr
	if im := b.image; im != nil {
		event, status = c.d.base.EnqueueWriteImage(q, inner, true, im.whole(), im.row, im.slicePitch(), b.host, w)
	} else {
		event, status = c.d.base.EnqueueWrite(q, inner, true, off, n, b.host.Plus(off), w)
	}
	if status != cl.SUCCESS {
		return status
	}
	c.writes++
	b.parts.wrote(off, off+n, &write{member: member, event: event, queue: q, seq: c.writes, inOrder: true}, c.ends())
	return cl.SUCCESS
}

// fetchLocked brings a range to the program's memory from whoever has it, now. Nobody may be writing it.
func (b *Buffer) fetchLocked(off, n uint64) api.Status {
	c := b.ctx
	from, to := b.parts.cut(off, off+n)
	for _, p := range b.parts[from:to] {
		if p.valid == 0 {
			continue
		}
		source, _ := p.source()
		q, status := c.moveQueueLocked(source)
		if status != cl.SUCCESS {
			return status
		}
		inner, status := b.atLocked(source)
		if status != cl.SUCCESS {
			return status
		}
		w := api.Waits{Internal: true}
		if im := b.image; im != nil {
			_, status = c.d.base.EnqueueReadImage(q, inner, true, im.whole(), im.row, im.slicePitch(), b.host, w)
		} else {
			_, status = c.d.base.EnqueueRead(q, inner, true, p.lo, p.hi-p.lo, b.host.Plus(p.lo), w)
		}
		if status != cl.SUCCESS {
			return status
		}
	}
	return cl.SUCCESS
}

// quietLocked says that no command uses the buffer any more.
func (b *Buffer) quietLocked() bool {
	kept := b.mirror.pending[:0]
	for _, event := range b.mirror.pending {
		if b.ctx.d.statusOf(event) > cl.COMPLETE {
			kept = append(kept, event)
		} else {
			b.ctx.d.base.ReleaseEvent(event)
		}
	}
	b.mirror.pending = kept
	return len(kept) == 0
}

// syncHost runs at each synchronisation: what ended is fetched. What one member says of a command's end may be here
// before the word of another member about what that waited for; so the others are asked, where commands of theirs that
// use such memory are not known to have ended.
func (c *Context) syncHost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var open []uintptr
	for b := range c.mirrors {
		if !b.quietLocked() {
			open = append(open, b.mirror.pending...)
		}
	}
	if len(open) > 0 && len(c.members) > 1 {
		c.d.base.Hear(open)
	}
	for b := range c.mirrors {
		b.settleLocked()
	}
}

// settleLocked brings what the commands left to the program's memory, if all have ended, and reports whether there is
// nothing to bring any more.
func (b *Buffer) settleLocked() bool {
	if !b.quietLocked() {
		return !b.mirror.devNewer
	}
	if b.mirror.devNewer && b.fetchLocked(0, b.size) != cl.SUCCESS {
		return false // the next synchronisation tries again; the command's own status told the program
	}
	b.mirror.devNewer, b.mirror.pushed = false, false
	return true
}

// settle is settleLocked, after which nothing of the buffer's touches the program's memory, if it reports true.
func (b *Buffer) settle() bool {
	b.ctx.mu.Lock()
	defer b.ctx.mu.Unlock()
	settled := b.settleLocked()
	if settled {
		delete(b.ctx.mirrors, b)
	}
	return settled
}

// endMirror gives the program's memory back, as session's does: with the last results in it before the release returns,
// and where that would wait for the program itself, once the destructor callback has run, or, without one, at once and
// as it is.
func (b *Buffer) endMirror() {
	settled := b.settle()
	if !settled && b.ctx.gates.Load() == 0 && !b.ctx.d.base.InCallback() {
		b.awaitQuiet()
		settled = b.settle()
	}
	b.ctx.mu.Lock()
	told, quiet := len(b.destructors) > 0, b.quietLocked()
	if !told || quiet { // what could not be fetched now cannot be later
		delete(b.ctx.mirrors, b)
	}
	b.ctx.mu.Unlock()
	if quiet {
		b.end()
		return
	}
	go func() {
		b.awaitQuiet()
		if !settled && told {
			b.settle()
		}
		b.end()
	}()
}

// awaitQuiet waits until no command uses the buffer.
func (b *Buffer) awaitQuiet() {
	for {
		b.ctx.mu.Lock()
		quiet := b.quietLocked()
		var event uintptr
		if !quiet {
			event = b.mirror.pending[0]
			b.ctx.d.base.RetainEvent(event)
		}
		b.ctx.mu.Unlock()
		if quiet {
			return
		}
		b.ctx.d.base.WaitForEvents(1, []uintptr{event})
		b.ctx.d.base.ReleaseEvent(event)
	}
}
