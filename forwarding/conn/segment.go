package conn

import (
	"os"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// AddSegment makes shared memory known to the worker before the record that names it.
func (c *Conn) AddSegment(id uint64, file *os.File, bytes uint64) error {
	c.segMu.Lock()
	defer c.segMu.Unlock()
	if c.segments[id] {
		return nil
	}
	if c.dead.Load() {
		return ErrDead
	}
	if err := c.link.SendFD(file); err != nil {
		c.die(err)
		return err
	}
	if err := c.Send(&clwire.AddSegment{ID: id, Bytes: bytes}, 0, 0); err != nil {
		return err
	}
	c.segments[id] = true
	return nil
}

// DropSegment has the worker forget a segment, if it knows it.
func (c *Conn) DropSegment(id uint64) {
	c.segMu.Lock()
	defer c.segMu.Unlock()
	if c.segments[id] {
		delete(c.segments, id)
		c.SendOneWay(&clwire.DropSegment{ID: id})
	}
}

// ProtectSegment has the worker map a segment that it knows anew, by another descriptor. A worker that cannot, or is
// dead, leaves it as it is. status is what the worker answers.
func (c *Conn) ProtectSegment(id uint64, by *os.File, writable bool) (status int32, err error) {
	call, request := c.Begin(nil)
	call.Cause, call.Detail = trace.CausePublish, "protect"
	asked, err := c.sendProtect(request, id, by, writable)
	if !asked || err != nil {
		c.Forget(request)
		return cl.SUCCESS, err
	}
	err = c.Await(call)
	return call.Status, err
}

func (c *Conn) sendProtect(request, id uint64, by *os.File, writable bool) (asked bool, err error) {
	c.segMu.Lock()
	defer c.segMu.Unlock()
	if !c.segments[id] || c.capabilities&clwire.CapProtect == 0 || c.dead.Load() {
		return false, nil
	}
	if err := c.link.SendFD(by); err != nil {
		c.die(err)
		return false, err
	}
	return true, c.Send(&clwire.ProtectSegment{ID: id, Writable: writable}, clwire.FlagUrgent, request)
}
