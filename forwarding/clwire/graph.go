package clwire

import (
	"fmt"

	"tendril/ipc/field"
)

// Limits of recorded commands.
const (
	MaxGraphBytes    = 64 << 20 // of one graph, and of all of a session
	MaxGraphCommands = 1 << 16  // of one graph
)

// cmdBytes is what an empty Cmd takes at the head of a command's payload.
const cmdBytes = 18

// recordable are the commands that a graph may hold.
var recordable = map[Type]bool{
	TypeNDRange: true, TypeCopy: true, TypeCopyRect: true, TypeFill: true, TypeCopyImage: true,
	TypeCopyImageBuffer: true, TypeFillImage: true,
}

// Graph is a command buffer's contents, or takes the place of the graph that has the number: Blob holds its commands,
// as AppendRecorded writes them. Release drops it.
//
//wire:record
type Graph struct{ ID, Blob uint64 }

// Replay enqueues a graph's commands in their order, each behind Cmd's list, and a marker behind the last with Cmd's
// event. With First ≠ 0 the first alone waits for the list, and each other for the one before it, by events that are
// numbered from First on and dropped at once: what an out-of-order queue needs.
//
//wire:record
type Replay struct {
	Cmd
	Graph uint64
	First uint64
}

// AppendRecorded adds a command to a graph's bytes: u16 type, u32 length, payload without its Cmd. The command's Cmd
// must be empty.
func AppendRecorded(b []byte, m Message) []byte {
	b = le.AppendUint16(b, uint16(m.Type()))
	at := len(b)
	b = m.Append(le.AppendUint32(b, 0))
	n := copy(b[at+4:], b[at+4+cmdBytes:])
	le.PutUint32(b[at:], uint32(n))
	return b[:at+4+n]
}

// Recorded calls each for the commands of a graph, in order, with payloads that have no Cmd; it returns how many there
// are.
func Recorded(graph []byte, each func(t Type, payload []byte) error) (n int, err error) {
	if len(graph) > MaxGraphBytes {
		return 0, fmt.Errorf("%w: a graph of %d bytes, the limit is %d", ErrRecord, len(graph), MaxGraphBytes)
	}
	r := field.Read(graph)
	for ; r.Left() > 0; n++ {
		t := Type(r.U16("command"))
		payload := r.Take(int(r.U32("length")), "payload")
		if r.Failed() || !recordable[t] || len(payload) > MaxRecord-cmdBytes-8 || n == MaxGraphCommands {
			return n, fmt.Errorf("%w: command %d of a graph, %v of %d bytes", ErrRecord, n, t, len(payload))
		}
		if err := each(t, payload); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Replayed writes a recorded command's payload with a Cmd of its own behind b.
func Replayed(b []byte, cmd *Cmd, payload []byte) []byte { return append(cmd.append(b), payload...) }
