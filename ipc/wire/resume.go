package wire

import (
	"fmt"
	"math/bits"

	"tendril/store/object"
)

// KeepSessionRequest asks that the session outlive its connection.
type KeepSessionRequest struct {
	Millis      uint32 // for so long; 0: not at all
	PulseMillis uint32 // while a request takes time, a Working is wanted so often; 0: not
}

// AppendTo appends the payload.
func (m *KeepSessionRequest) AppendTo(b []byte) []byte {
	return le.AppendUint32(le.AppendUint32(b, m.Millis), m.PulseMillis)
}

// Decode reads the payload.
func (m *KeepSessionRequest) Decode(b []byte) error {
	c := read(b)
	m.Millis, m.PulseMillis = c.u32(), c.u32()
	return c.done()
}

// KeepSessionReply is what it takes to come back. The secret stands in no log.
type KeepSessionReply struct {
	Secret [32]byte
	Millis uint32 // what was granted: not more than was asked for, and 0 where sessions are not kept
}

// AppendTo appends the payload.
func (m *KeepSessionReply) AppendTo(b []byte) []byte {
	return le.AppendUint32(append(b, m.Secret[:]...), m.Millis)
}

// Decode reads the payload.
func (m *KeepSessionReply) Decode(b []byte) error {
	c := read(b)
	*m = KeepSessionReply{Secret: c.hash(), Millis: c.u32()}
	return c.done()
}

// ResumeSessionRequest makes a session that was kept this connection's.
type ResumeSessionRequest struct {
	Session uint64
	Secret  [32]byte
}

// AppendTo appends the payload.
func (m *ResumeSessionRequest) AppendTo(b []byte) []byte {
	return append(le.AppendUint64(b, m.Session), m.Secret[:]...)
}

// Decode reads the payload.
func (m *ResumeSessionRequest) Decode(b []byte) error {
	c := read(b)
	*m = ResumeSessionRequest{Session: c.u64(), Secret: c.hash()}
	return c.done()
}

// ResumeWorkerRequest asks for tickets for new connections to a worker.
type ResumeWorkerRequest struct {
	Worker uint64
	Lanes  uint8 // bit i: lane i
}

// AppendTo appends the payload.
func (m *ResumeWorkerRequest) AppendTo(b []byte) []byte {
	return append(le.AppendUint64(b, m.Worker), m.Lanes)
}

// Decode reads the payload.
func (m *ResumeWorkerRequest) Decode(b []byte) error {
	c := read(b)
	*m = ResumeWorkerRequest{Worker: c.u64(), Lanes: c.u8()}
	if err := c.done(); err != nil {
		return err
	}
	if m.Lanes == 0 {
		return fmt.Errorf("%w: ResumeWorker without a lane", object.ErrProtocol)
	}
	return nil
}

// ResumeWorkerReply has a ticket for each lane that was asked for, in ascending order.
type ResumeWorkerReply struct{ Tickets [][32]byte }

// AppendTo appends the payload.
func (m *ResumeWorkerReply) AppendTo(b []byte) []byte {
	b = append(b, uint8(len(m.Tickets)))
	for _, t := range m.Tickets {
		b = append(b, t[:]...)
	}
	return b
}

// Decode reads the payload.
func (m *ResumeWorkerReply) Decode(b []byte) error {
	c := read(b)
	n := c.u8()
	if n > MaxLanes && c.err == nil {
		return fmt.Errorf("%w: %d tickets, at most %d", object.ErrProtocol, n, MaxLanes)
	}
	m.Tickets = nil
	for range n {
		m.Tickets = append(m.Tickets, c.hash())
	}
	return c.done()
}

// LanesOf lists the lanes of a mask.
func LanesOf(mask uint8) []int {
	lanes := make([]int, 0, bits.OnesCount8(mask))
	for i := range 8 {
		if mask&(1<<i) != 0 {
			lanes = append(lanes, i)
		}
	}
	return lanes
}
