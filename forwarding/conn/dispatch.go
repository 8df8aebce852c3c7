package conn

import (
	"fmt"

	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// dispatch handles one record of the worker. It runs under the reader's lock.
func (c *Conn) dispatch(h clwire.Header, payload []byte) error {
	_ = c.written.Load()
	c.traceRecord(h.Type, len(payload), trace.FlagFromWorker)
	c.inlineInFlight.Store(0)
	switch h.Type {
	case clwire.TypeReply:
		return c.onReply(h, payload)
	case clwire.TypeEvents:
		return c.onEvents(payload)
	case clwire.TypeHostReady:
		return c.onHostReady(payload)
	case clwire.TypeFault:
		return c.onFault(payload)
	case clwire.TypeBulkLength:
		return c.onLength(payload)
	case clwire.TypeBulkData, clwire.TypeBulkDone:
		return c.onBulk(h, payload)
	case clwire.TypeTraceData:
		return c.onTraceData(payload)
	case clwire.TypePeerState:
		return c.onPeerState(payload)
	case clwire.TypePrint:
		c.opt.Sink.Print(payload)
		return nil
	}
	return unexpected(h)
}

func unexpected(h clwire.Header) error {
	return fmt.Errorf("%w: unexpected %v", clwire.ErrRecord, h.Type)
}

func (c *Conn) onBulk(h clwire.Header, payload []byte) error {
	switch {
	case c.bulk == nil:
		return unexpected(h)
	case h.Type == clwire.TypeBulkData:
		return c.bulk.onData(payload)
	}
	c.reader.progress = true
	return c.bulk.onDone(payload)
}

// maxReplyBytes bounds what a worker may make this process keep for one answer.
const maxReplyBytes = clwire.MaxBlob

func (c *Conn) onReply(h clwire.Header, payload []byte) error {
	var m clwire.Reply
	if err := m.Decode(payload); err != nil {
		return err
	}
	last := h.Flags&clwire.FlagMore == 0
	c.mu.Lock()
	call := c.calls.Get(h.Request)
	if call != nil && last {
		c.calls.Delete(h.Request)
	}
	c.mu.Unlock()
	if call == nil {
		return nil // nobody waits any more
	}
	if len(call.Data)+len(m.Data) > maxReplyBytes {
		return fmt.Errorf("%w: an answer of more than %d bytes", clwire.ErrRecord, maxReplyBytes)
	}
	call.Data = append(call.Data, m.Data...)
	call.Status = m.Status
	if last {
		c.complete(call)
	}
	return nil
}

func (c *Conn) complete(call *Call) {
	if call.then != nil {
		call.then(call)
	}
	call.Complete()
	c.reader.progress = true
}

func (c *Conn) onEvents(payload []byte) error {
	m := &c.reader.ends
	if err := m.Decode(payload); err != nil {
		return err
	}
	for i := range m.Ends {
		if c.opt.Sink.Ended(&m.Ends[i]) {
			c.reader.progress = true
		}
	}
	return nil
}

func (c *Conn) onHostReady(payload []byte) error {
	var m clwire.HostReady
	if err := m.Decode(payload); err != nil {
		return err
	}
	if c.bulk != nil && c.bulk.onReady(m.Op, m.Status) {
		c.reader.progress = true
		return nil
	}
	if gate := c.TakeGate(m.Op); gate != nil {
		gate.open(m.Status)
		c.reader.progress = true
	}
	return nil
}

// onLength hears that a read, or a push to this worker, is over with its first bytes.
func (c *Conn) onLength(payload []byte) error {
	c.reader.progress = true
	var m clwire.BulkLength
	if err := m.Decode(payload); err != nil {
		return err
	}
	if c.bulk != nil {
		if o := c.bulk.find(m.Op); o != nil {
			return o.shorten(m.Bytes)
		}
	}
	c.opt.Sink.Pushed(m.Op, m.Bytes)
	return nil
}

func (c *Conn) onFault(payload []byte) error {
	var m clwire.Fault
	if err := m.Decode(payload); err != nil {
		return err
	}
	c.opt.Sink.Fault(&m)
	return nil
}

func (c *Conn) onPeerState(payload []byte) error {
	var m clwire.PeerState
	if err := m.Decode(payload); err != nil {
		return err
	}
	return c.opt.Sink.PeerState(&m)
}
