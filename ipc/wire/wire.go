// Package wire is the payload of each message of the local protocol (ipc/PROTOCOL.md) as a struct with AppendTo and
// Decode. Decode trusts no byte: every length is checked against what is there before it is used, and a payload must
// be consumed to its end; a fault is object.ErrProtocol. Decoded []byte fields alias the payload and are valid as
// long as it is. No state, no locks.
package wire

import (
	"fmt"

	"tendril/store/object"
)

// Type is a frame's message number.
type Type uint16

// The messages; numbers are for ever.
const (
	Hello          Type = 1
	Create         Type = 2
	Seal           Type = 3
	Get            Type = 4
	Release        Type = 5
	Delete         Type = 6
	Abort          Type = 7
	List           Type = 8
	Stat           Type = 9
	Status         Type = 10
	Devices        Type = 11
	Bind           Type = 12
	Forget         Type = 13
	Sweep          Type = 14
	Publish        Type = 15
	Unpublish      Type = 16
	Published      Type = 17
	CreateToken    Type = 18
	Tokens         Type = 19
	RevokeToken    Type = 20
	OpenPage       Type = 21
	Enroll         Type = 22
	Renew          Type = 23
	Upload         Type = 24
	Write          Type = 25
	Hold           Type = 26
	OpenSession    Type = 32
	OpenWorker     Type = 33
	AllocSegment   Type = 34
	FreeSegment    Type = 35
	PublishSegment Type = 36
	CloseWorker    Type = 37
	WorkerFate     Type = 38
	CreateWith     Type = 64
	Update         Type = 65
	Grant          Type = 66
	ListWhere      Type = 67
	Rename         Type = 68
	AwaitMany      Type = 69
	Checksum       Type = 70
	ReadRange      Type = 71
	Watch          Type = 72
	Top            Type = 73

	StreamOpen   Type = 80
	StreamPush   Type = 81
	StreamPop    Type = 82
	StreamEnd    Type = 83
	StreamClose  Type = 84
	StreamUnpop  Type = 85
	StreamList   Type = 86
	StreamRemove Type = 87
	StreamCancel Type = 88
	Fill         Type = 89
	Filled       Type = 90
	SealFilled   Type = 91
	Compose      Type = 92
	Reclaim      Type = 93
	Takeover     Type = 94
	Hurry        Type = 102

	OpenRemoteWorker Type = 39
	AttachObject     Type = 40
	ReserveDevice    Type = 110

	KeepSession   Type = 111
	ResumeSession Type = 112
	ResumeWorker  Type = 113
	LeaveSession  Type = 114
	Working       Type = 115 // daemon to client: a request under way is being worked on
	OfferPeer     Type = 120
	DialPeer      Type = 121
	PairPeers     Type = 122
	TellPeer      Type = 123
	Peers         Type = 124
	SetPeer       Type = 125
	EndSession    Type = 130
	Scrub         Type = 140

	ListPage      Type = 145
	StreamPage    Type = 146
	PublishedPage Type = 147
	TokenPage     Type = 148
	PeerPage      Type = 149
	TopPage       Type = 150
	SessionPage   Type = 151

	ReplyBit Type = 0x8000 // a reply's type is the request's with this bit
	Error    Type = 0xFFFF // the reply that says why there is none
)

var typeNames = map[Type]string{
	Hello: "Hello", Create: "Create", Seal: "Seal", Get: "Get", Release: "Release", Delete: "Delete", Abort: "Abort", List: "List",
	Stat: "Stat", Status: "Status", Devices: "Devices", Bind: "Bind", Forget: "Forget", Sweep: "Sweep", OpenSession: "OpenSession",
	OpenWorker: "OpenWorker", AllocSegment: "AllocSegment", FreeSegment: "FreeSegment", PublishSegment: "PublishSegment",
	Publish: "Publish", Unpublish: "Unpublish", Published: "Published",
	CreateToken: "CreateToken", Tokens: "Tokens", RevokeToken: "RevokeToken", OpenPage: "OpenPage", Enroll: "Enroll", Renew: "Renew",
	OpenRemoteWorker: "OpenRemoteWorker", AttachObject: "AttachObject", Upload: "Upload", Write: "Write", Hold: "Hold",
	CloseWorker: "CloseWorker", WorkerFate: "WorkerFate", CreateWith: "CreateWith", Update: "Update", Grant: "Grant",
	ListWhere: "ListWhere", Rename: "Rename", AwaitMany: "AwaitMany", Checksum: "Checksum", ReadRange: "ReadRange", Watch: "Watch", Top: "Top",
	OpenIndex: "OpenIndex", IndexLevel: "IndexLevel",
	StreamOpen: "StreamOpen", StreamPush: "StreamPush", StreamPop: "StreamPop", StreamEnd: "StreamEnd", StreamClose: "StreamClose",
	StreamUnpop: "StreamUnpop", StreamList: "StreamList", StreamRemove: "StreamRemove", StreamCancel: "StreamCancel", Fill: "Fill", Filled: "Filled",
	SealFilled: "SealFilled", Compose: "Compose", Reclaim: "Reclaim", Takeover: "Takeover", Hurry: "Hurry",
	ReserveDevice: "ReserveDevice",
	KeepSession:   "KeepSession", ResumeSession: "ResumeSession", ResumeWorker: "ResumeWorker", LeaveSession: "LeaveSession", Working: "Working",
	OfferPeer: "OfferPeer", DialPeer: "DialPeer", PairPeers: "PairPeers", TellPeer: "TellPeer", Peers: "Peers", SetPeer: "SetPeer",
	EndSession: "EndSession", Scrub: "Scrub",
	ListPage: "ListPage", StreamPage: "StreamPage", PublishedPage: "PublishedPage", TokenPage: "TokenPage", PeerPage: "PeerPage", TopPage: "TopPage",
	SessionPage: "SessionPage",
}

func (t Type) String() string {
	if t == Error {
		return "Error"
	}
	if name, ok := typeNames[t&^ReplyBit]; ok {
		if t&ReplyBit != 0 {
			return name + " reply"
		}
		return name
	}
	return fmt.Sprintf("message %d", uint16(t))
}

// Magic begins a Hello: "TDRL".
const Magic = 0x4C524454

// Version is the only protocol version so far.
const Version = 1

// Create's flags.
const (
	CreateOwn    = 1 // a segment of the object's own
	CreateShared = 2 // others of the tenant may fill it, too (Fill); implies CreateOwn
	CreateSummed = 4 // checksums are made when it is sealed, and compared from then on
)

// HelloRequest is the first message.
type HelloRequest struct {
	Magic           uint32
	Lowest, Highest uint16 // protocol versions that the peer speaks
	Program         string // for display
}

// AppendTo appends the payload.
func (m *HelloRequest) AppendTo(b []byte) []byte {
	b = le.AppendUint32(b, m.Magic)
	b = le.AppendUint16(b, m.Lowest)
	b = le.AppendUint16(b, m.Highest)
	return appendStr16(b, m.Program)
}

// Decode reads the payload.
func (m *HelloRequest) Decode(b []byte) error {
	c := read(b)
	*m = HelloRequest{Magic: c.u32(), Lowest: c.u16(), Highest: c.u16(), Program: c.str16()}
	return c.done()
}

// HelloReply says who answers.
type HelloReply struct {
	Version       uint16
	DaemonVersion string
	Incarnation   object.ID
	Tenant        string
	DaemonPID     uint32
	CapacityBytes uint64
}

// AppendTo appends the payload.
func (m *HelloReply) AppendTo(b []byte) []byte {
	b = le.AppendUint16(b, m.Version)
	b = appendStr16(b, m.DaemonVersion)
	b = append(b, m.Incarnation[:]...)
	b = appendStr16(b, m.Tenant)
	b = le.AppendUint32(b, m.DaemonPID)
	return le.AppendUint64(b, m.CapacityBytes)
}

// Decode reads the payload.
func (m *HelloReply) Decode(b []byte) error {
	c := read(b)
	*m = HelloReply{Version: c.u16(), DaemonVersion: c.str16(), Incarnation: c.id(), Tenant: c.str16(), DaemonPID: c.u32(), CapacityBytes: c.u64()}
	return c.done()
}

// CreateRequest asks for an object to fill.
type CreateRequest struct {
	SizeBytes uint64
	Class     object.Class
	Flags     uint8 // CreateOwn
	Name      string
	Meta      []byte
}

// AppendTo appends the payload.
func (m *CreateRequest) AppendTo(b []byte) []byte {
	b = le.AppendUint64(b, m.SizeBytes)
	b = append(b, uint8(m.Class), m.Flags)
	b = appendStr16(b, m.Name)
	return appendBytes32(b, m.Meta)
}

// Decode reads the payload.
func (m *CreateRequest) Decode(b []byte) error {
	c := read(b)
	*m = c.create()
	return c.done()
}

func (c *cursor) create() CreateRequest {
	m := CreateRequest{SizeBytes: c.u64(), Class: object.Class(c.u8()), Flags: c.u8(), Name: c.str16(), Meta: c.bytes32()}
	if m.Flags&^(CreateOwn|CreateShared|CreateSummed) != 0 && c.err == nil {
		c.err = fmt.Errorf("%w: Create flags 0x%x", object.ErrProtocol, m.Flags)
	}
	return m
}

// CreateReply says where the object lies.
type CreateReply struct {
	ID  object.ID
	Ref object.Ref
}

// AppendTo appends the payload.
func (m *CreateReply) AppendTo(b []byte) []byte { return appendRef(append(b, m.ID[:]...), m.Ref) }

// Decode reads the payload.
func (m *CreateReply) Decode(b []byte) error {
	c := read(b)
	*m = CreateReply{ID: c.id(), Ref: c.ref()}
	return c.done()
}

// SealRequest makes an object immutable.
type SealRequest struct {
	ID     object.ID
	Strict bool
}

// AppendTo appends the payload.
func (m *SealRequest) AppendTo(b []byte) []byte { return appendBool(append(b, m.ID[:]...), m.Strict) }

// Decode reads the payload.
func (m *SealRequest) Decode(b []byte) error {
	c := read(b)
	*m = SealRequest{ID: c.id(), Strict: c.bool()}
	return c.done()
}

// GetRequest asks for a reference, by name where ID is zero.
type GetRequest struct {
	ID     object.ID
	Name   string
	WaitMS uint32
}

// AppendTo appends the payload.
func (m *GetRequest) AppendTo(b []byte) []byte {
	return le.AppendUint32(appendStr16(append(b, m.ID[:]...), m.Name), m.WaitMS)
}

// Decode reads the payload.
func (m *GetRequest) Decode(b []byte) error {
	c := read(b)
	*m = GetRequest{ID: c.id(), Name: c.str16(), WaitMS: c.u32()}
	return c.done()
}

// GetReply says where the object lies and what it is.
type GetReply struct {
	ID        object.ID
	Ref       object.Ref
	SizeBytes uint64
	Class     object.Class
	Meta      []byte
}

// AppendTo appends the payload.
func (m *GetReply) AppendTo(b []byte) []byte {
	b = appendRef(append(b, m.ID[:]...), m.Ref)
	b = le.AppendUint64(b, m.SizeBytes)
	return appendBytes32(append(b, uint8(m.Class)), m.Meta)
}

// Decode reads the payload.
func (m *GetReply) Decode(b []byte) error {
	c := read(b)
	*m = GetReply{ID: c.id(), Ref: c.ref(), SizeBytes: c.u64(), Class: object.Class(c.u8()), Meta: c.bytes32()}
	return c.done()
}

// IDMessage is the payload of Release and Abort.
type IDMessage struct{ ID object.ID }

// AppendTo appends the payload.
func (m *IDMessage) AppendTo(b []byte) []byte { return append(b, m.ID[:]...) }

// Decode reads the payload.
func (m *IDMessage) Decode(b []byte) error {
	c := read(b)
	m.ID = c.id()
	return c.done()
}

// NameMessage is the payload of Delete, Stat and Unpublish: by name where ID is zero.
type NameMessage struct {
	ID   object.ID
	Name string
}

// AppendTo appends the payload.
func (m *NameMessage) AppendTo(b []byte) []byte { return appendStr16(append(b, m.ID[:]...), m.Name) }

// Decode reads the payload.
func (m *NameMessage) Decode(b []byte) error {
	c := read(b)
	*m = NameMessage{ID: c.id(), Name: c.str16()}
	return c.done()
}

// ListRequest asks for descriptions.
type ListRequest struct {
	Prefix string
	All    bool
}

// AppendTo appends the payload.
func (m *ListRequest) AppendTo(b []byte) []byte { return appendBool(appendStr16(b, m.Prefix), m.All) }

// Decode reads the payload.
func (m *ListRequest) Decode(b []byte) error {
	c := read(b)
	*m = ListRequest{Prefix: c.str16(), All: c.bool()}
	return c.done()
}

// BindRequest names an object: the payload of Bind and Publish.
type BindRequest struct {
	ID      object.ID
	Name    string
	Replace bool
}

// AppendTo appends the payload.
func (m *BindRequest) AppendTo(b []byte) []byte {
	return appendBool(appendStr16(append(b, m.ID[:]...), m.Name), m.Replace)
}

// Decode reads the payload.
func (m *BindRequest) Decode(b []byte) error {
	c := read(b)
	*m = BindRequest{ID: c.id(), Name: c.str16(), Replace: c.bool()}
	return c.done()
}

// Number is the payload of Forget, AllocSegment, FreeSegment, CloseWorker and WorkerFate, and of Publish's reply.
type Number struct{ N uint64 }

// AppendTo appends the payload.
func (m *Number) AppendTo(b []byte) []byte { return le.AppendUint64(b, m.N) }

// Decode reads the payload.
func (m *Number) Decode(b []byte) error {
	c := read(b)
	m.N = c.u64()
	return c.done()
}

// SweepReply lists segments to let go.
type SweepReply struct{ Segments []uint64 }

// AppendTo appends the payload.
func (m *SweepReply) AppendTo(b []byte) []byte {
	b = le.AppendUint32(b, uint32(len(m.Segments)))
	for _, s := range m.Segments {
		b = le.AppendUint64(b, s)
	}
	return b
}

// Decode reads the payload.
func (m *SweepReply) Decode(b []byte) error {
	c := read(b)
	n := c.u32()
	if uint64(n)*8 != uint64(len(c.b)) && c.err == nil {
		return fmt.Errorf("%w: %d segments in %d bytes", object.ErrProtocol, n, len(c.b))
	}
	m.Segments = nil
	for range n {
		m.Segments = append(m.Segments, c.u64())
	}
	return c.done()
}

// ErrorReply is the payload of Error.
type ErrorReply struct {
	Code object.Code
	Text string
}

// AppendTo appends the payload.
func (m *ErrorReply) AppendTo(b []byte) []byte {
	return appendStr16(le.AppendUint16(b, uint16(m.Code)), m.Text)
}

// Decode reads the payload.
func (m *ErrorReply) Decode(b []byte) error {
	c := read(b)
	*m = ErrorReply{Code: object.Code(c.u16()), Text: c.str16()}
	return c.done()
}
