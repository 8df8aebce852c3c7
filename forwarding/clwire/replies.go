package clwire

// Reply answers the record whose request number its header repeats. A long
// answer comes in several records, all but the last with FlagMore.
//
//wire:record
type Reply struct {
	Status int32  // cl_int
	Data   []byte `wire:"rest"`
}

// Profile holds the device's clock in ns (OpenCL 3.0 §5.14): queued, submitted, started, ended, complete.
type Profile [5]uint64

// EventEnd reports how an event ended.
//
//wire:part
type EventEnd struct {
	Event      uint64
	Status     int32 // 0 complete, negative failed; 1 and 2 where a Watch asked
	HasProfile bool
	Profile    Profile `wire:"if=HasProfile"`
}

// Events reports ends of events. MaxEventsPerRecord bounds one record.
//
//wire:record
type Events struct {
	Ends []EventEnd `wire:"max=MaxEventsPerRecord"`
}

// MaxEventsPerRecord is how many ends always fit a record.
const MaxEventsPerRecord = 1024

// HostReady tells the client that its Host command may touch the memory
// (Status 0), or must not, since a dependency failed (negative).
//
//wire:record
type HostReady struct {
	Op     uint64
	Status int32
}

// Fault reports a failure that no reply and no event carries: of Object, on Queue (0: none).
//
//wire:record
type Fault struct {
	Object, Queue uint64
	Status        int32
	Text          string `wire:"cut=4096"`
}

// Print is what kernels printed.
//
//wire:record
type Print struct {
	Data []byte `wire:"rest"`
}
