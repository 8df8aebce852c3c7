package clwire

// Tracing: the worker's half of every command, and the clocks (PROTOCOL.md, Tracing).

// MaxTraced is how many commands one TraceData tells of.
const MaxTraced = 512

// tracedBytes is what one of them takes.
const tracedBytes = 88

// ClockSync asks for the worker's clock; its Reply carries ClockReply's bytes.
type ClockSync struct{}

func (*ClockSync) Type() Type             { return TypeClockSync }
func (*ClockSync) Append(b []byte) []byte { return b }
func (*ClockSync) Decode(b []byte) error {
	c := cursor{b: b, t: TypeClockSync}
	return c.end()
}

// ClockReply is the result of ClockSync: ns of the worker's CLOCK_MONOTONIC when it took the question up and when it answered.
type ClockReply struct{ Taken, Answered int64 }

func (m *ClockReply) Append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(b, uint64(m.Taken)), uint64(m.Answered))
}
func (m *ClockReply) Decode(b []byte) error {
	c := cursor{b: b, t: TypeReply}
	m.Taken, m.Answered = int64(c.u64("taken")), int64(c.u64("answered"))
	return c.end()
}

// TraceOn makes the worker tell of every command from here on. It comes before the first CreateQueue: queues made
// later measure, what the program sees of them stays the same.
type TraceOn struct {
	Process uint32 // the client's
	Worker  uint32 // how the trace numbers this worker
	Shared  bool   // the trace buffer is the next descriptor on the socket: the worker appends to it, and sends no TraceData
}

func (*TraceOn) Type() Type { return TypeTraceOn }
func (m *TraceOn) Append(b []byte) []byte {
	b = le.AppendUint32(le.AppendUint32(b, m.Process), m.Worker)
	if m.Shared {
		return append(b, 1)
	}
	return append(b, 0)
}
func (m *TraceOn) Decode(b []byte) error {
	c := cursor{b: b, t: TypeTraceOn}
	m.Process, m.Worker = c.u32("process"), c.u32("worker")
	switch c.u8("shared") {
	case 0:
		m.Shared = false
	case 1:
		m.Shared = true
	default:
		c.fail("shared")
	}
	return c.end()
}

// TraceFlush is answered after TraceData has told of all that ended before.
type TraceFlush struct{}

func (*TraceFlush) Type() Type             { return TypeTraceFlush }
func (*TraceFlush) Append(b []byte) []byte { return b }
func (*TraceFlush) Decode(b []byte) error {
	c := cursor{b: b, t: TypeTraceFlush}
	return c.end()
}

// Traced is one command as the worker saw it. Times are ns: of the worker's CLOCK_MONOTONIC, but Device's, which are
// CL_PROFILING_COMMAND_QUEUED, SUBMIT, START and END of the device's clock.
type Traced struct {
	Queue        uint64
	Seq          uint32 // its number among the queue's commands, from 1
	Command      Type
	DeviceNumber uint16
	Status       int32
	Profiled     bool // Device is there
	Taken        int64
	Begun, Given int64 // clEnqueue… of the driver; 0: never called
	Seen         int64 // when the worker saw the end
	Device       [4]int64
}

// TraceData tells of commands that ended; Lost of how many it does not.
type TraceData struct {
	Lost     uint32
	Commands []Traced // at most MaxTraced
}

func (*TraceData) Type() Type { return TypeTraceData }
func (m *TraceData) Append(b []byte) []byte {
	b = le.AppendUint16(le.AppendUint32(b, m.Lost), uint16(len(m.Commands)))
	for i := range m.Commands {
		t := &m.Commands[i]
		b = le.AppendUint32(le.AppendUint64(b, t.Queue), t.Seq)
		b = le.AppendUint16(le.AppendUint16(b, uint16(t.Command)), t.DeviceNumber)
		b = le.AppendUint32(b, uint32(t.Status))
		profiled := uint32(0)
		if t.Profiled {
			profiled = 1
		}
		b = le.AppendUint32(b, profiled)
		for _, v := range [...]int64{t.Taken, t.Begun, t.Given, t.Seen, t.Device[0], t.Device[1], t.Device[2], t.Device[3]} {
			b = le.AppendUint64(b, uint64(v))
		}
	}
	return b
}
func (m *TraceData) Decode(b []byte) error {
	c := cursor{b: b, t: TypeTraceData}
	m.Lost = c.u32("lost")
	n := c.count(MaxTraced, tracedBytes, "commands")
	m.Commands = m.Commands[:0]
	for range n {
		t := Traced{Queue: c.u64("queue"), Seq: c.u32("number"), Command: Type(c.u16("type")), DeviceNumber: c.u16("device")}
		t.Status = int32(c.u32("status"))
		switch c.u32("profiled") {
		case 0:
		case 1:
			t.Profiled = true
		default:
			c.fail("profiled")
		}
		for _, v := range [...]*int64{&t.Taken, &t.Begun, &t.Given, &t.Seen, &t.Device[0], &t.Device[1], &t.Device[2], &t.Device[3]} {
			*v = int64(c.u64("time"))
		}
		m.Commands = append(m.Commands, t)
	}
	return c.end()
}
