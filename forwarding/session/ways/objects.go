package ways

import (
	"tendril/forwarding/api"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/node"
	"tendril/forwarding/session/transfer"
	"tendril/forwarding/trace"
)

// Queue is a command queue.
type Queue interface {
	memory.Queue
	Worker() Worker
	State() State
	Sent() uint64               // commands: the position of the newest
	NewEvent(kind uint32) Event // an event of a command that the program does not see
	Watched() bool              // the program has an event of a command of the context's that may not have ended

	Submitter
	// Together calls do with the queue locked: no other command comes between those that it submits.
	Together(do func(Submitter))
	// SubmitHost sends a command that this side carries out: the worker opens the gate op when its turn has come.
	SubmitHost(op uint64, e Event, wait []uint64) (seq uint64, status api.Status)
	// SubmitInline sends a write with its bytes.
	SubmitInline(buffer, offset uint64, data []byte, e Event, wait []uint64) api.Status

	Ended(seq uint64) // a command has ended, well
	// AskFinish asks whether all that was sent has ended. await waits for the answer, and keeps a failure for the
	// program's next call of the queue.
	AskFinish() (await func(), status api.Status)
}

// Submitter sends commands of a queue.
type Submitter interface {
	// Submit sends a command whose head is cmd, and returns its position in the queue. e and first may be nil.
	Submit(m clwire.Message, cmd *clwire.Cmd, e Event, wait []uint64, first Positioned) (seq uint64, status api.Status)
}

// State is how a queue stands.
type State struct {
	Idle       bool // every command sent has ended
	OutOfOrder bool
	Gated      bool // a barrier was sent: even out of order, what follows may have to wait
	Timed      bool // the worker stamps its commands' times
}

// Positioned is told a command's position before the command is sent; false: it is not to be sent.
type Positioned interface {
	At(seq uint64) (ok bool)
}

// Event is the event of a command.
type Event interface {
	Number() uint64         // by which the worker knows it
	Status() int32          // as it is known: of an ended command 0 or negative
	Timed() bool            // the program may ask for the command's times
	Advance(status int32)   // moves it towards the end, never back
	Fail(api.Status)        // ends it as the worker's word would
	EndHere(api.Status)     // ends it: the worker never heard of its command
	LetGo()                 // drops the worker's event, once nothing here wants its end any more
	Host()                  // from here on this side's word ends it, also when the worker dies
	SetRead(UnfinishedRead) // sets what is called at its end, before others see the end; before its command is sent
}

// UnfinishedRead is a read that does not block. End is called when its command has ended, with the status, and makes
// the bytes the program's. It may be called more than once; each call returns the first call's result. The reader's
// lock may be held.
type UnfinishedRead interface{ End(status int32) int32 }

// Buffer is a buffer, or an image that only its driver lays out.
type Buffer interface {
	Number() uint64         // by which the worker knows it; it changes when the buffer gets fresh memory
	Reach(Queue) api.Status // makes it known to the queue's worker, before the record that names it
	Mapped() []byte         // its memory where the device computes on shared memory, nil elsewhere
	Special() bool          // published, an object of the store, or over the program's memory
	ElementBytes() uint64   // of an image; 0: a buffer

	// Keep keeps the worker's object, the memory and the context until done is called: the program may release it. What
	// sends several records of it, or works for a command of this side's, keeps it from before the first on. A status
	// says that it is gone.
	Keep() (done func(), status api.Status)
	// Pin keeps what maps show until Unpin, also after the buffer's release.
	Pin()
	Unpin()
}

// Worker is the connection to a worker, as package conn has it, with what the session adds.
type Worker interface {
	transfer.Worker
	SendOneWay(m clwire.Message)
	Kick()
	MemoryWritten()
	ReadPromptly() (done func())
	Wait(it *conn.Completion) (arrived bool)
	WaitEvents(cause trace.Cause, ids ...uint64) int32
	AskEvent(id uint64) (await func() int32) // WaitEvents, of which await waits; no trip is noted
	AddGate(id uint64, g *conn.Gate)
	TakeGate(id uint64) *conn.Gate
	FitsInline(size uint64) bool
	Operate(o *conn.BulkOp, owner conn.BulkOwner) Operation // the worker is on another machine
	Share(s *node.Segment) error                            // makes a segment known before the record that names it
	Hosting(n int32)                                        // so many more commands may touch the program's memory
	Began() int64                                           // a trip's begin, for Tripped; 0 where nobody traces
	Tripped(began int64, cause trace.Cause, detail string)  // a round trip was waited for
}

// Operation is a bulk operation under way, as conn.BulkOp is.
type Operation interface {
	Register() (ok bool)
	Send(wait bool)
	Finish(status int32)
}
