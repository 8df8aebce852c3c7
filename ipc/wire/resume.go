package wire

import (
	"math/bits"

	"tendril/ipc/field"
)

// KeepSessionRequest asks that the session outlive its connection.
//
//wire:payload KeepSession
type KeepSessionRequest struct {
	Millis      uint32 // for so long; 0: not at all
	PulseMillis uint32 // while a request takes time, a Working is wanted so often; 0: not
}

// KeepSessionReply is what it takes to come back. The secret stands in no log.
//
//wire:payload re KeepSession
type KeepSessionReply struct {
	Secret [32]byte
	Millis uint32 // what was granted: not more than was asked for, and 0 where sessions are not kept
}

// ResumeSessionRequest makes a session that was kept this connection's.
//
//wire:payload ResumeSession
type ResumeSessionRequest struct {
	Session uint64
	Secret  [32]byte
}

// ResumeWorkerRequest asks for tickets for new connections to a worker.
//
//wire:payload ResumeWorker
type ResumeWorkerRequest struct {
	Worker uint64
	Lanes  uint8 // bit i: lane i
}

func (m *ResumeWorkerRequest) check(r *field.Reader) {
	if m.Lanes == 0 {
		r.Fail("lanes")
	}
}

// ResumeWorkerReply has a ticket for each lane that was asked for, in ascending order.
//
//wire:payload re ResumeWorker
type ResumeWorkerReply struct {
	Tickets [][32]byte `wire:"u8,max=MaxLanes"`
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
