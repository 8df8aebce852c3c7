package clwire

// Tracing: the worker's half of every command, and the clocks (PROTOCOL.md, Tracing).

// MaxTraced is how many commands one TraceData tells of.
const MaxTraced = 512

// ClockSync asks for the worker's clock; its Reply carries ClockReply's bytes.
//
//wire:record
type ClockSync struct{}

// ClockReply is the result of ClockSync: ns of the worker's CLOCK_MONOTONIC when it took the question up and when it
// answered.
//
//wire:payload
type ClockReply struct{ Taken, Answered int64 }

// TraceOn makes the worker tell of every command from here on. It comes before the first CreateQueue: queues made
// later measure, what the program sees of them stays the same.
//
//wire:record
type TraceOn struct {
	Process uint32 // the client's
	Worker  uint32 // how the trace numbers this worker
	// the trace buffer is the next descriptor on the socket: the worker appends to it, and sends no TraceData
	Shared bool
}

// TraceFlush is answered after TraceData has told of all that ended before.
//
//wire:record
type TraceFlush struct{}

// Traced is one command as the worker saw it. Times are ns: of the worker's CLOCK_MONOTONIC, but Device's, which are
// CL_PROFILING_COMMAND_QUEUED, SUBMIT, START and END of the device's clock.
type Traced struct {
	Queue        uint64
	Seq          uint32 // its number among the queue's commands, from 1
	Command      Type
	DeviceNumber uint16
	Status       int32
	Profiled     bool `wire:"u32"` // Device is there
	Taken        int64
	Begun, Given int64 // clEnqueue… of the driver; 0: never called
	Seen         int64 // when the worker saw the end
	Device       [4]int64
}

// TraceData tells of commands that ended; Lost of how many it does not.
//
//wire:record
type TraceData struct {
	Lost     uint32
	Commands []Traced `wire:"max=MaxTraced"`
}
