package transfer

import (
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
)

// Purpose says what a transfer is for.
type Purpose uint8

const (
	Command Purpose = iota // a read or a write command of the program's
	Map                    // a map or an unmap: the program's side is the memory that the map shows
	Own                    // a move of this side's own, whose caller waits and has seen to the order
)

// Layout is how a transfer's bytes lie.
type Layout uint8

const (
	Contiguous Layout = iota // one range on either side
	Rows                     // rows with pitches, on one side at least
	Image                    // a region of an image that only its driver lays out
)

// Memory is where the buffer's bytes lie.
type Memory uint8

const (
	Shared Memory = iota // in shared memory, where the device computes and this process has it mapped
	Device               // in memory of the driver's own, on this machine
	Remote               // on another machine
	// of a map: in the program's own memory (CL_MEM_USE_HOST_PTR), to which the results are fetched
	Program
)

// Request is all that the choice of a way looks at.
type Request struct {
	Purpose Purpose
	Write   bool   // to the buffer; else from it
	Size    uint64 // bytes; of a map 0 where there is nothing to bring
	Layout  Layout
	Memory  Memory

	InPlace bool // every device of the context computes on shared memory
	// the buffer is published, an object of the store, or over the program's memory: each use is looked at
	Special bool
	// the program's side is in memory that the device's driver has pinned: what a map shows, or showed once
	Pinned bool

	Blocking  bool
	Waits     int  // events in its wait list that may not have ended
	Idle      bool // every command sent to the queue has ended
	Unordered bool // the queue orders nothing before the command but its wait list
	Event     bool // somebody wants the command's event
	Timed     bool // the program may ask for the command's times, which the worker takes

	// a write's bytes are in the program's memory now: no read is about to bring them, no user event is open
	Settled    bool
	FitsInline bool // the control stream has room for the bytes; what is not small has been counted as in flight
	Visible    bool // the program could see that a write is still under way, though its blocking call returned
	NoStaging  bool // all staging memory is in use
}

// Sizes, in bytes.
const (
	// largest read that does not block, and write, of shared memory: larger ones are better copied once
	StagedBytes       = 64 << 10
	StagedDeviceBytes = 1 << 20 // of a device's own memory, whose bytes are copied twice anyway
	SharedInline      = 2 << 10 // largest write to shared memory in its record: the worker copies that twice
	ChunkBytes        = memory.ChunkBytes
	PromptBytes       = 1 << 20 // what a call that does not block copies itself: starting a goroutine costs more

	// least read or write that the device carries out in memory that a map shows: a copy of less is over sooner
	DirectBytes = 128 << 10

	RecordBytes = clwire.MaxRecord - 512 // what a record has for data and wait list
)

// fact is a condition of the table.
type fact uint32

const (
	nothing fact = 1 << iota
	own
	remote
	device
	read
	blocking
	free
	awaited
	record
	unseen
	stream
	pinned
	staged
	brief
	factCount = iota
)

// words are the facts' names and meanings, as the documents have them.
var words = [factCount]struct{ name, meaning string }{
	{"nothing", "no bytes have to move: the size is 0 and the device on another machine, or a map shows the very memory"},
	{"own", "a move of this side's own (the program's memory under a buffer, publishing, another way's chunks)"},
	{"remote", "the device is on another machine"},
	{"device", "the bytes lie in a driver's own memory on this machine"},
	{"read", "from the buffer to the program"},
	{"blocking", "the call returns when the transfer is complete"},
	{"free", "nothing comes before it (no event, and an idle queue or none that orders), and no times are asked for"},
	{"awaited", "it has an event, or a wait list with events that have not ended"},
	{"record", "the command's record can hold the bytes: a write of one range, or one to an image that does not block; " +
		"with its wait list at most 95.5 KiB, room on the control stream, nothing that may still change the bytes; " +
		"to shared memory at most 2 KiB, behind other commands, and not blocking"},
	{"unseen", "a blocking write, not to shared memory, and nothing could show the program that it is still under way: " +
		"no event or wait list, a queue in order, no user event open, no buffer over its own memory in the context, " +
		"no event of a command that has not ended"},
	{"stream", "the control stream has room: up to 32 KiB always; up to 64 KiB while at most 256 KiB are in flight " +
		"and the lanes do not compress"},
	{"pinned", "the bytes lie in a driver's own memory, and the program's side in memory that the driver has pinned: a map " +
		"that shows such memory, or a read or write of one range, from 128 KiB on, in memory that a map of the same " +
		"context shows; but not of a write whose bytes something may still change, a read into memory that another read " +
		"is about to fill, or of a buffer that is published, an object, or over the program's memory"},
	{"staged", "the device can copy it as one command, from or to staging memory that is free. Shared memory, behind " +
		"other commands: a read that does not block, up to 64 KiB, and such a write, from 2 KiB on. A driver's memory: " +
		"a read that does not block, up to 1 MiB; a blocking one, or a blocking map, behind other commands, up to " +
		"4 MiB; a write that does not block or is unseen, or an unmap, up to 1 MiB. A write's bytes nothing may " +
		"still change"},
	{"brief", "a copy costs less than starting a goroutine: up to 1 MiB in shared memory, or a fetch to " +
		"the program's own memory from there"},
}

// facts condenses a request to what the table looks at.
func (r *Request) facts() fact {
	f := when(record, r.record()) | when(staged, r.staged())
	f |= when(remote, r.Memory == Remote) | when(device, r.Memory == Device) | when(own, r.Purpose == Own)
	f |= when(read, !r.Write) | when(blocking, r.Blocking) | when(free, r.free()) | when(awaited,
		r.Event || r.Waits > 0)
	f |= when(nothing, r.nothing()) | when(pinned, r.pinned()) | when(brief, r.brief())
	return f | when(unseen, r.unseen()) | when(stream, r.FitsInline)
}

func when(f fact, holds bool) fact {
	if holds {
		return f
	}
	return 0
}

func (r *Request) nothing() bool { return r.Size == 0 && (r.Purpose == Map || r.Memory == Remote) }

func (r *Request) free() bool { return r.Waits == 0 && (r.Idle || r.Unordered) && !r.Timed }

// unseen: see words. A copy to shared memory is over sooner than a word from the worker.
func (r *Request) unseen() bool {
	return (r.Memory == Remote || r.Memory == Device) && r.Purpose == Command && r.Write && r.Blocking && !r.Visible
}

func (r *Request) pinned() bool {
	switch {
	case !r.Pinned || r.Memory != Device || r.Purpose == Own:
		return false
	case r.Write && !r.Settled: // the device would take the bytes before they are there
		return false
	case r.Purpose == Map:
		return true
	}
	return r.Layout == Contiguous && r.Size >= DirectBytes && !r.Special
}

// brief: a map that fetches to the program's own memory is, whatever its size.
func (r *Request) brief() bool {
	return r.Memory == Shared && r.Size <= PromptBytes || r.Memory == Program && r.InPlace
}

func (r *Request) record() bool {
	if r.Purpose != Command || !r.Write || r.Size == 0 || r.Size+8*uint64(r.Waits) > RecordBytes || !r.Settled ||
		!r.FitsInline {
		return false
	}
	switch {
	case r.Layout == Image:
		return r.Memory == Device && !r.Blocking
	case r.Layout == Rows:
		return false
	case r.Memory == Shared: // a blocking write waits for its turn anyway (§5.2.2), and copies when that has come
		return !r.Blocking && r.Size <= SharedInline && (r.Waits > 0 || !r.Idle)
	}
	return true
}

func (r *Request) staged() bool {
	switch {
	case r.Purpose == Own || r.Size == 0 || r.NoStaging || r.pinned():
		return false
	case r.Purpose == Map:
		return r.Memory == Device && r.Layout != Rows && !r.Special && r.stagedMap()
	case r.Layout != Contiguous:
		return false
	}
	switch r.Memory {
	case Shared:
		return !r.Blocking && !r.free() && !r.Special && r.Size <= StagedBytes &&
			(!r.Write || r.Settled && r.Size > SharedInline)
	case Device:
		switch {
		case r.Write:
			return (!r.Blocking || r.unseen()) && r.Settled && r.Size <= StagedDeviceBytes
		case r.Blocking: // alone, work of this side's own takes one wait as well, and its chunks overlap
			return !r.free() && r.Size <= ChunkBytes
		}
		return !r.Special && r.Size <= StagedDeviceBytes
	}
	return false
}

// stagedMap: a map that does not block brings its bytes to what it shows by this side's own work.
func (r *Request) stagedMap() bool {
	if r.Write {
		return r.Settled && r.Size <= StagedDeviceBytes
	}
	return r.Blocking && !r.free() && r.Size <= ChunkBytes
}
