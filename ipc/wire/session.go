package wire

import "tendril/store/object"

// OpenSessionRequest begins a session.
type OpenSessionRequest struct {
	LibraryVersion string
	Options        []byte // JSON
}

// AppendTo appends the payload.
func (m *OpenSessionRequest) AppendTo(b []byte) []byte {
	return appendBytes32(appendStr16(b, m.LibraryVersion), m.Options)
}

// Decode reads the payload.
func (m *OpenSessionRequest) Decode(b []byte) error {
	c := read(b)
	*m = OpenSessionRequest{LibraryVersion: c.str16(), Options: c.bytes32()}
	return c.done()
}

// OpenSessionReply is the answer, put together from all its frames.
type OpenSessionReply struct {
	Session  uint64
	Snapshot []byte
}

// AppendTo appends the payload.
func (m *OpenSessionReply) AppendTo(b []byte) []byte {
	return appendBytes32(le.AppendUint64(b, m.Session), m.Snapshot)
}

// Decode reads the payload.
func (m *OpenSessionReply) Decode(b []byte) error {
	c := read(b)
	*m = OpenSessionReply{Session: c.u64(), Snapshot: c.bytes32()}
	return c.done()
}

// OpenWorkerRequest asks for a worker.
type OpenWorkerRequest struct{ Platform uint32 }

// AppendTo appends the payload.
func (m *OpenWorkerRequest) AppendTo(b []byte) []byte { return le.AppendUint32(b, m.Platform) }

// Decode reads the payload.
func (m *OpenWorkerRequest) Decode(b []byte) error {
	c := read(b)
	m.Platform = c.u32()
	return c.done()
}

// OpenWorkerReply comes with two descriptors: socket, ring.
type OpenWorkerReply struct{ Worker, RingBytes uint64 }

// AppendTo appends the payload.
func (m *OpenWorkerReply) AppendTo(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(b, m.Worker), m.RingBytes)
}

// Decode reads the payload.
func (m *OpenWorkerReply) Decode(b []byte) error {
	c := read(b)
	*m = OpenWorkerReply{Worker: c.u64(), RingBytes: c.u64()}
	return c.done()
}

// AllocSegmentReply comes with a descriptor.
type AllocSegmentReply struct{ Segment, Bytes uint64 }

// AppendTo appends the payload.
func (m *AllocSegmentReply) AppendTo(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(b, m.Segment), m.Bytes)
}

// Decode reads the payload.
func (m *AllocSegmentReply) Decode(b []byte) error {
	c := read(b)
	*m = AllocSegmentReply{Segment: c.u64(), Bytes: c.u64()}
	return c.done()
}

// PublishSegmentRequest moves a session's segment into an object.
type PublishSegmentRequest struct {
	Segment   uint64
	SizeBytes uint64
	Class     object.Class
	Replace   bool
	Name      string
	Meta      []byte
}

// AppendTo appends the payload.
func (m *PublishSegmentRequest) AppendTo(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(b, m.Segment), m.SizeBytes)
	b = appendBool(append(b, uint8(m.Class)), m.Replace)
	return appendBytes32(appendStr16(b, m.Name), m.Meta)
}

// Decode reads the payload.
func (m *PublishSegmentRequest) Decode(b []byte) error {
	c := read(b)
	*m = PublishSegmentRequest{
		Segment: c.u64(), SizeBytes: c.u64(), Class: object.Class(c.u8()), Replace: c.bool(), Name: c.str16(), Meta: c.bytes32(),
	}
	return c.done()
}

// ReserveDeviceRequest says how many bytes of its devices' memory a worker's buffers may take in all, from now on.
type ReserveDeviceRequest struct{ Worker, Bytes uint64 }

// AppendTo appends the payload.
func (m *ReserveDeviceRequest) AppendTo(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(b, m.Worker), m.Bytes)
}

// Decode reads the payload.
func (m *ReserveDeviceRequest) Decode(b []byte) error {
	c := read(b)
	*m = ReserveDeviceRequest{Worker: c.u64(), Bytes: c.u64()}
	return c.done()
}

// WorkerFateReply says how a worker is.
type WorkerFateReply struct {
	Alive bool
	Text  string
}

// AppendTo appends the payload.
func (m *WorkerFateReply) AppendTo(b []byte) []byte {
	return appendStr16(appendBool(b, m.Alive), m.Text)
}

// Decode reads the payload.
func (m *WorkerFateReply) Decode(b []byte) error {
	c := read(b)
	*m = WorkerFateReply{Alive: c.bool(), Text: c.str16()}
	return c.done()
}
