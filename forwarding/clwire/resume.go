package clwire

import (
	"fmt"

	"tendril/ipc/field"
)

// Sessions that outlive their connections (PROTOCOL.md, Resume).

// ResumeBytes is the length of what each end says first on every connection of a session that can be resumed.
const ResumeBytes = 16

// resumeMagic begins it: "TNDRres1".
const resumeMagic = 0x3173_6572_5244_4e54

// AppendResume appends the greeting of an end that has received so many bytes on this lane's connections so far.
func AppendResume(b []byte, received uint64) []byte {
	return le.AppendUint64(le.AppendUint64(b, resumeMagic), received)
}

// ParseResume reads the other end's greeting.
func ParseResume(b []byte) (received uint64, err error) {
	if len(b) != ResumeBytes || le.Uint64(b) != resumeMagic {
		return 0, fmt.Errorf("%w: a connection that begins with % x", ErrRecord, b[:min(len(b), ResumeBytes)])
	}
	return le.Uint64(b[8:]), nil
}

// Ack says how much of what was sent on a lane has come: what is before need not be kept to be sent again.
//
//wire:record
type Ack struct {
	Lane     uint8  // 0: the control stream
	Received uint64 // bytes since the lane's first connection, greetings apart
}

func (m *Ack) check(r *field.Reader) {
	if m.Lane >= MaxLanes {
		r.Fail("lane")
	}
}

// Leave says that its sender ends the session: nothing is to be resumed.
//
//wire:record
type Leave struct{}

// ChannelState is what one end says of a lane.
type ChannelState struct {
	// bytes given to the kernel so far, greetings apart: what of them was lost is told again after the next greeting
	Sent        uint64
	Received    uint64 // bytes received so far; the same as an Ack
	QuietMillis uint32 // for how long nothing has come from the other end though somebody reads, ms; 0: not known
}

// Pulse says that its sender is there, though it may compute, and how far it is: what lets each end tell a connection
// that was swallowed from one over which nothing need come.
//
//wire:record
type Pulse struct {
	EveryMillis uint32 // how often the sender wants to hear as much at least, ms; 0: as the other end likes
	PaceMillis  uint32 // when its next one comes, ms
	Lanes       uint8  // of Channels that count; 0 is the control stream

	Channels [MaxLanes]ChannelState `wire:"len=Lanes"`
}
