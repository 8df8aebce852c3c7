package conn

import (
	"sync/atomic"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// Completion is something a caller may wait for. The zero value is not done.
type Completion struct{ done atomic.Bool }

// Done says whether it has happened.
func (c *Completion) Done() bool { return c.done.Load() }

// Complete says that it has happened.
func (c *Completion) Complete() { c.done.Store(true) }

// Call is a request that wants a Reply. Status and Data are valid once it is done.
type Call struct {
	Completion
	Status int32
	Data   []byte
	Cause  trace.Cause // why it is waited for
	Detail string
	then   func(*Call) // nil, or runs when done, under the reader's lock: it must not block
}

func (c *Call) fail() {
	c.Status, c.Data = cl.OUT_OF_RESOURCES, nil
	if c.then != nil {
		c.then(c)
	}
	c.Complete()
}

// Gate is a command that this side carries out between HostReady and HostDone.
type Gate struct {
	Completion        // HostReady came
	Status     int32  // negative: a dependency failed
	Then       func() // nil, or runs when done, under the reader's lock: it must not block
}

// open says that HostReady came, or never will.
func (g *Gate) open(status int32) {
	g.Status = status
	g.Complete()
	if g.Then != nil {
		g.Then()
	}
}

// AddGate registers a gate before its command is sent.
func (c *Conn) AddGate(id uint64, g *Gate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gates[id] = g
}

// TakeGate takes a gate that has not opened, for the one who is to end it; nil: somebody else has.
func (c *Conn) TakeGate(id uint64) *Gate {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.gates[id]
	delete(c.gates, id)
	return g
}

// Begin registers a request; the caller sends it with the number. then is nil, or runs under the reader's lock when
// the reply is there: it must not block.
func (c *Conn) Begin(then func(*Call)) (*Call, uint64) {
	call := &Call{then: then}
	request := c.opt.NewID()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls.Put(request, call)
	return call, request
}

// Forget undoes Begin where the request was not sent.
func (c *Conn) Forget(request uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls.Delete(request)
}

// Ask sends a request and waits for its Reply.
func (c *Conn) Ask(m clwire.Message) (*Call, error) {
	cause, detail := causeOf(m)
	return c.AskFor(cause, detail, m)
}

// AskFor is Ask, for a cause that the message does not tell.
func (c *Conn) AskFor(cause trace.Cause, detail string, m clwire.Message) (*Call, error) {
	call, request := c.Begin(nil)
	call.Cause, call.Detail = cause, detail
	if err := c.Send(m, clwire.FlagUrgent, request); err != nil {
		c.Forget(request)
		c.AwaitSettled()
		return nil, err
	}
	return call, c.Await(call)
}

// Await waits for a call that was sent.
func (c *Conn) Await(call *Call) error {
	began := c.opt.Tracer.Began()
	arrived := c.Wait(&call.Completion)
	c.tripped(began, call.Cause, call.Detail)
	if !arrived {
		return ErrDead
	}
	return nil
}

// WaitEvents waits until the worker has reported the events: 0, or the negative status that it answers; −5 when it
// died.
func (c *Conn) WaitEvents(cause trace.Cause, ids ...uint64) int32 {
	for len(ids) > 0 {
		n := min(len(ids), clwire.MaxWait)
		call, err := c.AskFor(cause, "", &clwire.Wait{Events: ids[:n]})
		if err != nil {
			return cl.OUT_OF_RESOURCES
		}
		if call.Status != cl.SUCCESS {
			return call.Status
		}
		ids = ids[n:]
	}
	return cl.SUCCESS
}

// AskEvent asks for an event's end; await waits for it, and returns what WaitEvents does. It notes no round trip.
func (c *Conn) AskEvent(id uint64) (await func() int32) {
	call, request := c.Begin(nil)
	if err := c.Send(&clwire.Wait{Events: []uint64{id}}, clwire.FlagUrgent, request); err != nil {
		c.Forget(request)
		return func() int32 { return cl.OUT_OF_RESOURCES }
	}
	return func() int32 {
		if !c.Wait(&call.Completion) {
			return cl.OUT_OF_RESOURCES
		}
		return call.Status
	}
}

// WaitForNone waits for no event: an answer comes behind all ends that the worker knows of. A dead worker has none.
func (c *Conn) WaitForNone() { _, _ = c.AskFor(trace.CauseWait, "", &clwire.Wait{}) }

// blobPiece is how much of a blob one record carries.
const blobPiece = 60 << 10

// SendBlob sends the parts as one blob of the number id, for the record that names it.
func (c *Conn) SendBlob(id uint64, parts ...[]byte) error {
	var total, at uint64
	for _, part := range parts {
		total += uint64(len(part))
	}
	if total == 0 {
		return c.Send(&clwire.Blob{ID: id}, 0, 0)
	}
	for _, part := range parts {
		for len(part) > 0 {
			n := min(len(part), blobPiece)
			if err := c.Send(&clwire.Blob{ID: id, Total: total, Offset: at, Data: part[:n]}, 0, 0); err != nil {
				return err
			}
			part, at = part[n:], at+uint64(n)
		}
	}
	return nil
}
