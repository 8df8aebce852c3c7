package graphs

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// Event is the event of a replay.
type Event interface {
	Pending() bool // the replay has not ended
}

// Replay is one clEnqueueCommandBufferKHR. Its methods are called in the order in which they stand here: Open and Close
// once, Uses and Launch for each command in the order of recording. A status other than cl.SUCCESS goes to Close.
type Replay interface {
	Open() api.Status
	// Uses readies a buffer for a command.
	Uses(b Buffer, writes bool) api.Status
	// Launch readies a launch. changed says that its record is not the one that was sent last.
	Launch(l Launch) (changed bool, status api.Status)
	// Commands sends the worker all commands, encoded, in place of what it had.
	Commands(data []byte) api.Status
	// Run has the worker run them; count is how many they are.
	Run(count int) api.Status
	// Close ends the call, with the event where all went well.
	Close(status api.Status) (Event, api.Status)
}

// Enqueue replays the commands, which travel if the worker does not have them as they are.
func (g *Graph[Q]) Enqueue(r Replay) api.Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	if state := g.stateLocked(); state == cl.COMMAND_BUFFER_STATE_RECORDING_KHR ||
		state == cl.COMMAND_BUFFER_STATE_PENDING_KHR && !g.simultaneous {
		return cl.INVALID_OPERATION
	}
	status := r.Open()
	if status == cl.SUCCESS {
		status = g.replayLocked(r)
	}
	e, status := r.Close(status)
	if status == cl.SUCCESS {
		g.last = e
	}
	return status
}

func (g *Graph[Q]) replayLocked(r Replay) api.Status {
	for i := range g.commands {
		if status := g.readyLocked(r, &g.commands[i]); status != cl.SUCCESS {
			return status
		}
	}
	if !g.sent {
		var data []byte
		for i := range g.commands {
			data = clwire.AppendRecorded(data, g.commands[i].record())
		}
		if status := r.Commands(data); status != cl.SUCCESS {
			return status
		}
		g.sent = true
	}
	return r.Run(len(g.commands))
}

// readyLocked readies what one command uses. A buffer whose number has changed makes the commands travel again.
func (g *Graph[Q]) readyLocked(r Replay, c *command) api.Status {
	for i := range c.uses {
		u := &c.uses[i]
		if status := r.Uses(u.Buffer, u.Writes); status != cl.SUCCESS {
			return status
		}
		if now := u.Buffer.Number(); now != u.number {
			renumber(c.m, u.number, now)
			u.number, g.sent = now, false
		}
	}
	if c.launch == nil {
		return cl.SUCCESS
	}
	changed, status := r.Launch(c.launch)
	if changed {
		g.sent = false
	}
	return status
}

// renumber makes a record name a buffer by its new number.
func renumber(m clwire.Message, old, now uint64) {
	swap := func(fields ...*uint64) {
		for _, f := range fields {
			if *f == old {
				*f = now
			}
		}
	}
	switch m := m.(type) {
	case *clwire.Copy:
		swap(&m.Src, &m.Dst)
	case *clwire.CopyRect:
		swap(&m.Src, &m.Dst)
	case *clwire.Fill:
		swap(&m.Buffer)
	case *clwire.CopyImage:
		swap(&m.Src, &m.Dst)
	case *clwire.CopyImageBuffer:
		swap(&m.Image, &m.Buffer)
	case *clwire.FillImage:
		swap(&m.Image)
	}
}
