package ways

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/trace"
)

// Command is a command of a queue that transfers bytes.
type Command struct {
	*Context
	Queue  Queue
	Kind   uint32   // CL_EVENT_COMMAND_TYPE
	Event  Event    // nil: nobody wants one; a way may make one for itself, which stays here if it fails
	Wait   []uint64 // events that may not have ended
	Listed bool     // the program gave a wait list
	Wanted bool     // the program wants the event
}

// CarryOut chooses the way of a transfer and takes it: for a blocking one until it is complete. The ways of a small
// write have no function between here and the queue that they can do without: a processor foresees where so many nested
// calls return to, and each that is nested deeper costs 10 ns.
func (c *Command) CarryOut(t *Transfer) api.Status {
	var r transfer.Request
	for c.request(&r, t); ; {
		way := transfer.Route(&r).Way
		switch way {
		case transfer.InlineAsync:
			sent, status := c.inlineAsync(t)
			if sent {
				return status
			}
			r.Visible = true
			continue
		case transfer.Inline:
			return c.inline(t)
		}
		if done, status := c.take(way, t, &r); done {
			return status
		}
	}
}

// request gathers in r what the choice of a way looks at.
func (c *Command) request(r *transfer.Request, t *Transfer) {
	q := c.Queue.State()
	c.view(t)
	r.Purpose, r.Write, r.Size, r.Layout, r.Memory = t.Purpose, t.Write, t.Host.Size, t.layout(), t.memory(c.Context)
	r.InPlace, r.Special, r.Pinned = c.InPlace, t.Buffer != nil && t.Buffer.Special(), t.Shared != nil
	r.Blocking, r.Waits, r.Idle, r.Unordered = t.Blocking, len(c.Wait), q.Idle, q.OutOfOrder && !q.Gated
	r.Event, r.Timed = c.Event != nil, c.timed()
	if t.Write {
		r.Settled = c.settled(t)
	}
	if r.Memory != transfer.Program {
		r.FitsInline = c.Queue.Worker().FitsInline(r.Size)
	}
	if r.Memory != transfer.Shared && t.Write && t.Blocking {
		r.Visible = c.Listed || c.Event != nil || q.OutOfOrder || c.visible()
	}
}

// timed says that the program may ask for the command's times, which the worker stamps.
func (c *Command) timed() bool { return c.Event != nil && c.Event.Timed() }

// settled says whether what a write is to take is there already: no read is about to land in it, and the program holds
// back no command of the context, as it may to fill the memory first.
func (c *Context) settled(t *Transfer) bool {
	t.reads = c.Reads.Meeting(t.Host.Ptr.Address(), &t.Host.Side)
	return t.reads == nil && c.AsyncWrites.UserEvents() == 0
}

// take takes a way. done false: it cannot be taken now, nothing was sent, and the request says why.
func (c *Command) take(way transfer.Way, t *Transfer, r *transfer.Request) (done bool, status api.Status) {
	switch way {
	case transfer.None:
		c.endHere(cl.SUCCESS)
		return true, cl.SUCCESS
	case transfer.Marker:
		m := &clwire.Marker{}
		_, status = c.Queue.Submit(m, &m.Cmd, c.Event, c.Wait, nil)
		return true, status
	case transfer.Stream, transfer.Lanes:
		return true, c.bulk(t, way == transfer.Stream, !r.Settled)
	case transfer.Direct:
		return true, c.direct(t)
	case transfer.CopyNow:
		return true, c.copyNow(t)
	case transfer.CopyInTurn:
		return true, c.copyInTurn(t)
	case transfer.CopyLater:
		return true, c.copyLater(t)
	}
	if done, status = c.takeStaged(way, t); !done {
		r.NoStaging = true
	}
	return done, status
}

// takeStaged takes a way through staging memory. done false: there is none now.
func (c *Command) takeStaged(way transfer.Way, t *Transfer) (done bool, status api.Status) {
	switch way {
	case transfer.ChunkRead:
		return c.chunkRead(t)
	case transfer.StagedRead:
		return c.stagedRead(t)
	}
	return c.stagedWrite(t)
}

// waited makes the event of a blocking command that has none: its caller is told of a failure, and an event keeps that
// from being latched on the queue as well. The caller lets go of it; nil: there is one already.
func (c *Command) waited() (made Event) {
	if c.Event != nil {
		return nil
	}
	c.Event = c.Queue.NewEvent(cl.COMMAND_MARKER)
	return c.Event
}

// endHere ends the event of a command that the worker never heard of.
func (c *Command) endHere(status api.Status) {
	if c.Event != nil {
		c.Event.EndHere(status)
	}
}

// inline sends a write in its record, and waits for its end if it blocks.
func (c *Command) inline(t *Transfer) api.Status {
	if status := t.Buffer.Reach(c.Queue); status != cl.SUCCESS {
		return status
	}
	if t.isImage() {
		return c.inlineImage(t)
	}
	if t.Blocking {
		if made := c.waited(); made != nil {
			defer made.LetGo()
		}
	}
	status := c.Queue.SubmitInline(t.Buffer.Number(), t.Device.Offset, t.Host.Ptr.Bytes(0, t.Host.Size), c.Event,
		c.Wait)
	if status != cl.SUCCESS || !t.Blocking {
		return status
	}
	return api.Status(c.Queue.Worker().WaitEvents(trace.CauseWait, c.Event.Number()))
}

func (c *Command) inlineImage(t *Transfer) api.Status {
	m := &clwire.WriteImageInline{Image: t.Buffer.Number(), Origin: t.Device.Origin, Region: t.Device.Region,
		Data: make([]byte, 0, t.Host.Size)}
	t.Host.runs(0, t.Host.Size, func(part []byte) { m.Data = append(m.Data, part...) })
	_, status := c.Queue.Submit(m, &m.Cmd, c.Event, c.Wait, nil)
	return status
}
