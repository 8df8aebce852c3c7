package clwire

// Reply answers the record whose request number its header repeats. A long
// answer comes in several records, all but the last with FlagMore.
type Reply struct {
	Status int32 // cl_int
	Data   []byte
}

func (*Reply) Type() Type { return TypeReply }
func (m *Reply) Append(b []byte) []byte {
	return append(le.AppendUint32(b, uint32(m.Status)), m.Data...)
}
func (m *Reply) Decode(b []byte) error {
	c := cursor{b: b, t: TypeReply}
	m.Status = int32(c.u32("status"))
	m.Data = c.take(len(c.b), "data")
	return c.end()
}

// Profile holds the device's clock in ns (OpenCL 3.0 §5.14): queued, submitted, started, ended, complete.
type Profile [5]uint64

// EventEnd reports how an event ended.
type EventEnd struct {
	Event      uint64
	Status     int32 // 0 complete, negative failed; 1 and 2 where a Watch asked
	HasProfile bool
	Profile    Profile
}

// Events reports ends of events. MaxEventsPerRecord bounds one record.
type Events struct{ Ends []EventEnd }

// MaxEventsPerRecord is how many ends always fit a record.
const MaxEventsPerRecord = 1024

func (*Events) Type() Type { return TypeEvents }
func (m *Events) Append(b []byte) []byte {
	b = le.AppendUint16(b, uint16(len(m.Ends)))
	for i := range m.Ends {
		e := &m.Ends[i]
		b = le.AppendUint32(le.AppendUint64(b, e.Event), uint32(e.Status))
		if !e.HasProfile {
			b = append(b, 0)
			continue
		}
		b = append(b, 1)
		for _, t := range e.Profile {
			b = le.AppendUint64(b, t)
		}
	}
	return b
}
func (m *Events) Decode(b []byte) error {
	c := cursor{b: b, t: TypeEvents}
	n := c.count(MaxEventsPerRecord, 13, "count")
	m.Ends = m.Ends[:0]
	for range n {
		m.Ends = append(m.Ends, decodeEnd(&c))
	}
	return c.end()
}

func decodeEnd(c *cursor) (e EventEnd) {
	e.Event, e.Status = c.u64("event"), int32(c.u32("status"))
	switch c.u8("profile") {
	case 0:
	case 1:
		e.HasProfile = true
		for i := range e.Profile {
			e.Profile[i] = c.u64("profile")
		}
	default:
		c.fail("profile")
	}
	return e
}

// HostReady tells the client that its Host command may touch the memory
// (Status 0), or must not, since a dependency failed (negative).
type HostReady struct {
	Op     uint64
	Status int32
}

func (*HostReady) Type() Type { return TypeHostReady }
func (m *HostReady) Append(b []byte) []byte {
	return le.AppendUint32(le.AppendUint64(b, m.Op), uint32(m.Status))
}
func (m *HostReady) Decode(b []byte) error {
	c := cursor{b: b, t: TypeHostReady}
	m.Op, m.Status = c.u64("host op"), int32(c.u32("status"))
	return c.end()
}

// Fault reports a failure that no reply and no event carries: of Object, on Queue (0: none).
type Fault struct {
	Object, Queue uint64
	Status        int32
	Text          string
}

func (*Fault) Type() Type { return TypeFault }
func (m *Fault) Append(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(b, m.Object), m.Queue)
	text := m.Text
	if len(text) > 4096 {
		text = text[:4096]
	}
	return appendStr16(le.AppendUint32(b, uint32(m.Status)), text)
}
func (m *Fault) Decode(b []byte) error {
	c := cursor{b: b, t: TypeFault}
	m.Object, m.Queue = c.u64("object"), c.u64("queue")
	m.Status, m.Text = int32(c.u32("status")), c.str16("text")
	return c.end()
}

// Print is what kernels printed.
type Print struct{ Data []byte }

func (*Print) Type() Type               { return TypePrint }
func (m *Print) Append(b []byte) []byte { return append(b, m.Data...) }
func (m *Print) Decode(b []byte) error  { m.Data = b; return nil }
