package trace

import "errors"

// Layout of the buffer (little-endian, 8-byte words):
//
//	page 0   0 u64 magic   8 u64 version   16 u64 slots (2^k)   24 u64 bytes of texts
//	       128 u64 head: records ever begun      192 u64 texts' cursor   200 u64 texts that found no room
//	page 1   texts, then slots
//
//	text     u32 bytes n   u32 kind   u64 id   u32 process   u32 0   n bytes, padded to 8; the first word is last
//	slot     8 words, see Record; word 0 is 1 + its number once it is whole, 0 while it is written
const (
	magic   = 0x31304352544c4454 // "TDLTRC01"
	version = 1

	headerBytes = 4096
	headAt      = 128
	textTailAt  = 192
	textLostAt  = 200

	// SlotBytes is what a record takes; SlotsAt where the first stands in a buffer.
	SlotBytes = 64
	SlotsAt   = headerBytes + TextBytes
	slotWords = SlotBytes / 8

	// TextBytes is the room for names: of functions, kernels, threads, queues.
	TextBytes = 1 << 20
	textHead  = 24
	maxText   = 4096 // bytes of one text

	minSlots = 1 << 10
	maxSlots = 1 << 28
)

// ErrBuffer is wrapped by every complaint about a buffer's layout.
var ErrBuffer = errors.New("not a trace buffer")

// Kind says what a record tells. The words mean different things for each.
type Kind uint8

// Kinds of record. Times are ns of CLOCK_MONOTONIC of the process that took them.
const (
	// KindCall: an OpenCL call. Time, X: begin, end. Thread. Aux: text of its name. A: its first argument (a
	// handle). B: bytes it names. C: what it returned (cl_int; of creating calls *errcode_ret).
	KindCall Kind = 1 + iota
	// KindSent: a command went to its worker. X: its number in its queue. Code: record type. Thread: text of the
	// kernel's name. Aux: worker. A: the queue's handle. B: the queue's number. C: bytes that the command moves.
	KindSent
	// KindWire: a record or a chunk crossed. X: ns it took (chunks). Flags: FlagFromWorker. Code: record type. Aux:
	// worker. A: lane, 0 the control stream. B: bytes. C: operation. Thread: bytes of the operation in a chunk, which
	// may be packed.
	KindWire
	// KindTrip: a call waited for an answer. X: end. Code: Cause. Thread. Aux: worker, 0 the daemon. A: text with
	// the detail. B: the number of answers.
	KindTrip
	// KindClock: one round trip to compare clocks. Time, X: sent, answered. Aux: worker. A, B: taken and answered
	// by the worker, in its clock. Flags: FlagSameClock.
	KindClock
	// KindCommand: the worker's half of a command, in its clock. Time: taken off the wire. X, A: clEnqueue… of the
	// driver began and ended; 0: never. B: queue. C: low half the number in the queue, high half the cl_int status.
	// Code: record type. Aux: worker. The next record is its KindDevice.
	KindCommand
	// KindDevice: Time, X, A, B: queued, submitted, started and ended in the device's clock. C: when the worker saw
	// the end, in its clock. Flags: FlagProfiled. Code: device. Aux: worker.
	KindDevice
	// KindNote: something that was done without. A: text. Aux: worker or 0.
	KindNote
	// KindPush: bytes went from worker to worker. X: when the program heard that they had come. Aux: the worker that
	// they came to. Thread: the one that had them. B: bytes. C: the cl_int status. Flags: FlagLost.
	KindPush
)

// Flags of a record.
const (
	FlagFromWorker = 1 << 0 // KindWire
	FlagSameClock  = 1 << 0 // KindClock: both sides read one clock
	FlagProfiled   = 1 << 0 // KindDevice: the device's times are there
	FlagLost       = 1 << 0 // KindPush: its link ended first, the bytes came by way of the program
)

// Record is one slot.
type Record struct {
	Time, X     int64
	Kind        Kind
	Flags       uint8
	Code        uint16
	PID         uint32 // set by Append
	Thread, Aux uint32
	A, B, C     uint64
}

func (r *Record) words() [slotWords]uint64 {
	return [slotWords]uint64{
		0, uint64(r.Time), uint64(r.X),
		uint64(r.Kind) | uint64(r.Flags)<<8 | uint64(r.Code)<<16 | uint64(r.PID)<<32,
		uint64(r.Thread) | uint64(r.Aux)<<32, r.A, r.B, r.C,
	}
}

func recordOf(w *[slotWords]uint64) Record {
	return Record{
		Time: int64(w[1]), X: int64(w[2]),
		Kind: Kind(w[3]), Flags: uint8(w[3] >> 8), Code: uint16(w[3] >> 16), PID: uint32(w[3] >> 32),
		Thread: uint32(w[4]), Aux: uint32(w[4] >> 32), A: w[5], B: w[6], C: w[7],
	}
}

// TextKind says what a text names.
type TextKind uint32

// Kinds of text; ID is theirs.
const (
	TextFunction TextKind = 1 + iota // found by the text's number
	TextProcess                      // ID: process
	TextThread                       // ID: thread
	TextWorker                       // ID: worker
	TextQueue                        // ID: queue; the device's name
	TextKernel                       // found by the text's number
	TextDetail                       // found by the text's number
	TextClock                        // ID: a worker that reads the program's own clock
)

// Text is one name.
type Text struct {
	Kind TextKind
	ID   uint64
	PID  uint32
	Text string
}
