package wire

import "fmt"

//go:generate go run ../../tools/wiregen -numbers numbers.go -fault object.ErrProtocol

// Type is a frame's message number.
type Type uint16

// The messages, and what the payloads of request and reply hold, as docs/design/codecs.md writes it (go generate).
// Numbers are for ever.
const (
	Hello            Type = 1 // u32 magic, u16 lowest highest, str16 program → u16 version, str16 …
	Create           Type = 2 // u64 sizeBytes, u8 class flags, str16 name, bytes32 meta → 16 bytes id, u64 …
	Seal             Type = 3 // 16 bytes id, bool strict
	Get              Type = 4 // 16 bytes id, str16 name, u32 waitMS → 16 bytes id, u64 segment segmentBytes …
	Release          Type = 5 // 16 bytes id
	Delete           Type = 6 // 16 bytes id, str16 name
	Abort            Type = 7 // 16 bytes id
	List             Type = 8 // str16 prefix, bool all
	Stat             Type = 9 // 16 bytes id, str16 name
	Status           Type = 10
	Devices          Type = 11
	Bind             Type = 12 // 16 bytes id, str16 name, bool replace
	Forget           Type = 13 // u64 n
	Sweep            Type = 14 // nothing → u32 × u64 segments
	Publish          Type = 15 // 16 bytes id, str16 name, bool replace → u64 n
	Unpublish        Type = 16 // 16 bytes id, str16 name
	Published        Type = 17 // str16 prefix, bool all
	CreateToken      Type = 18 // u8 role, u64 lifeSeconds, bool once, str16 tenant → str16 text
	Tokens           Type = 19
	RevokeToken      Type = 20  // 16 bytes id, bool certificates
	OpenPage         Type = 21  // nothing → str16 text
	Enroll           Type = 22  // 16 bytes token, 32 bytes secretHash, str16 name, bytes32 request → bytes32 der
	Renew            Type = 23  // bytes32 der → bytes32 der
	Upload           Type = 24  // CreateRequest, u64 ttlms, u16 × (str16, str16) labels → 16 bytes id
	Write            Type = 25  // 16 bytes id, u64 offset, bytes32 data
	Hold             Type = 26  // 16 bytes id, str16 name, u32 waitMS → 16 bytes id, u64 sizeBytes, u8 class, …
	Put              Type = 27  // u8 class, bool replace, str16 name, bytes32 meta, u64 ttlms, u16 × (str16, …
	OpenSession      Type = 32  // str16 libraryVersion, bytes32 options → u64 session, bytes32 snapshot
	OpenWorker       Type = 33  // u32 platform → u64 worker ringBytes
	AllocSegment     Type = 34  // u64 n → u64 segment bytes
	FreeSegment      Type = 35  // u64 n
	PublishSegment   Type = 36  // u64 segment sizeBytes, u8 class, bool replace, str16 name, bytes32 meta → 16 …
	CloseWorker      Type = 37  // u64 n
	WorkerFate       Type = 38  // u64 n → bool alive, str16 text
	OpenRemoteWorker Type = 39  // u32 platform, 32 bytes clientSHA256, u8 lanes, bits plaintext resume → u64 …
	AttachObject     Type = 40  // u64 worker attempt, 16 bytes id, str16 name → 16 bytes id, u64 segment offset …
	CreateWith       Type = 64  // CreateRequest, u64 ttlms, u16 × (str16, str16) labels → 16 bytes id, u64 …
	Update           Type = 65  // 16 bytes id, str16 name, u8 flags, u64 ttlms, u16 × (str16, str16) labels
	Grant            Type = 66  // 16 bytes id, str16 name, bool revoke, str16 to
	ListWhere        Type = 67  // str16 prefix, bool all shared, u16 × (str16, str16) labels
	Rename           Type = 68  // str16 from to, bool replace
	AwaitMany        Type = 69  // u32 waitMS, u16 × NameMessage wanted
	Checksum         Type = 70  // 16 bytes id, str16 name → u64 n
	ReadRange        Type = 71  // 16 bytes id, str16 name, u64 offset, u32 bytes
	Watch            Type = 72  // str16 prefix
	Top              Type = 73  // u64 n
	StreamOpen       Type = 80  // u8 flags, u32 frames, u64 bytes, str16 name → u64 stream, u32 frames, u64 …
	StreamPush       Type = 81  // u64 stream, 16 bytes id, bool seal, u32 waitMS, bytes32 meta
	StreamPop        Type = 82  // u64 stream, u32 waitMS → u64 number, GetReply
	StreamEnd        Type = 83  // u64 stream, bool abort
	StreamClose      Type = 84  // u64 n
	StreamUnpop      Type = 85  // u64 stream, 16 bytes id, u64 number
	StreamList       Type = 86  // str16 prefix
	StreamRemove     Type = 87  // 16 bytes id, str16 name
	StreamCancel     Type = 88  // u64 n
	Fill             Type = 89  // 16 bytes id, str16 name → 16 bytes id, u64 segment segmentBytes offset …
	Filled           Type = 90  // 16 bytes id
	SealFilled       Type = 91  // 16 bytes id, bool strict despite, u32 waitMS
	Compose          Type = 92  // u8 class, str16 name, bytes32 meta, u64 ttlms, u16 × (str16, str16) labels, …
	Reclaim          Type = 93  // u16 × (16 bytes id, u64 segment) claims → u16 × u8 verdicts
	Takeover         Type = 94  // u16 lowest highest → u16 format
	StreamAck        Type = 95  // 16 bytes id, u64 number
	FrameAck         Type = 96  // u64 stream, 16 bytes id, u64 number
	OpenIndex        Type = 100 // nothing → u64 slotsBytes levelBytes
	IndexLevel       Type = 101 // u8 level → u64 n
	Hurry            Type = 102
	ReserveDevice    Type = 110 // u64 worker bytes
	KeepSession      Type = 111 // u32 millis pulseMillis → 32 bytes secret, u32 millis
	ResumeSession    Type = 112 // u64 session, 32 bytes secret
	ResumeWorker     Type = 113 // u64 worker, u8 lanes → u8 × 32 bytes tickets
	LeaveSession     Type = 114
	Working          Type = 115 // daemon to client: a request under way is being worked on
	OfferPeer        Type = 120 // u64 worker link, u8 lanes, bool plaintext → bytes32 offer
	DialPeer         Type = 121 // u64 worker link, bytes32 offer
	PairPeers        Type = 122 // 2 × u64 workers, u64 link, u8 lanes
	TellPeer         Type = 123 // u64 worker link, bool up, str16 with text
	Peers            Type = 124
	SetPeer          Type = 125 // 32 bytes authority, str16 address
	EndSession       Type = 130 // u64 n
	SessionCommands  Type = 131 // u64 n
	Scrub            Type = 140 // str16 from
	ListPage         Type = 145 // ListWhereRequest, u32 limit, str16 cursor → str16 next, bytes32 items
	StreamPage       Type = 146 // str16 prefix, u32 limit, str16 cursor → str16 next, bytes32 items
	PublishedPage    Type = 147 // str16 prefix, u32 limit, str16 cursor → str16 next, bytes32 items
	TokenPage        Type = 148 // str16 prefix, u32 limit, str16 cursor → str16 next, bytes32 items
	PeerPage         Type = 149 // str16 prefix, u32 limit, str16 cursor → str16 next, bytes32 items
	TopPage          Type = 150 // str16 prefix, u32 limit, str16 cursor → str16 next, bytes32 items
	SessionPage      Type = 151 // str16 prefix, u32 limit, str16 cursor → str16 next, bytes32 items
	AllPage          Type = 152 // ListWhereRequest, u32 limit, str16 cursor → str16 next, bytes32 items
	CreateDevice     Type = 160 // u64 sizeBytes, 16 bytes device, u8 class, str16 name, bytes32 meta, u64 ttlms, …
	GetDevice        Type = 161 // 16 bytes id, str16 name → 16 bytes id device, u64 sizeBytes bytes, u8 class, …
	CopyObject       Type = 162 // 16 bytes to, u64 toOffset, 16 bytes from, str16 fromName, u64 fromOffset bytes
	GPUs             Type = 163
	SealDevice       Type = 164 // 16 bytes id, bytes32 meta
	IPCHandle        Type = 165 // 16 bytes id, str16 name → u64 number, 16 bytes device, u64 sizeBytes bytes, 64 …
	CloseIPC         Type = 166 // u64 n
	Join             Type = 170 // 16 bytes token, 32 bytes secretHash, 16 bytes node, u16 lowest highest, str16 …
	Propose          Type = 171 // bytes32 command → 16 bytes leader, u16 code, str16 text, u64 epoch index
	ReadIndex        Type = 172 // nothing → 16 bytes leader, u64 index
	JoinCluster      Type = 173 // str16 address token
	LeaveCluster     Type = 174 // bool anyway
	ClusterStatus    Type = 175
	Pulse            Type = 176 // nothing → 16 bytes node incarnation, u64 capacityBytes freeBytes, u32 …
	RemoveNode       Type = 177 // str16 node, bool anyway
	LogEnd           Type = 178 // nothing → u64 term index
	RecoverCluster   Type = 179 // bool do
	BackupCluster    Type = 180
	RotateAuthority  Type = 181 // bool finish anyway
	Place            Type = 185 // 16 bytes id, str16 name policy
	Replicate        Type = 186 // 16 bytes id, str16 name, u16 wanted, str16 to from, bool move
	Access           Type = 190 // nothing → 16 bytes node, bytes32 authority certificate key, u16 × (16 bytes …
	TakeDevices      Type = 191 // 16 bytes lease, u32 count, bool wait, str16 token selector → u32 matching, u16 …
	KeepDevices      Type = 192 // 16 bytes lease, u16 × (str16 key) devices
	Leases           Type = 193
	EndLease         Type = 194 // str16 name
	DevicesFree      Type = 195 // 16 bytes id

	CertificatePage    Type = 200 // str16 prefix, u32 limit, str16 cursor → str16 next, bytes32 items
	RevokeCertificates Type = 201 // 16 bytes serial, str16 tenant node reason
	TenantPage         Type = 202 // str16 prefix, u32 limit, str16 cursor → str16 next, bytes32 items
	ChangeTenant       Type = 203 // str16 name, u8 change, bool anyway whole, u8 kind fields, u64 memory disk gpu, …
	Audit              Type = 204 // u64 since, u32 limit, str16 tenant cursor
)

// Numbers of replies.
const (
	ReplyBit = Type(0x8000) // a reply's type is the request's with this bit
	Error    = Type(0xFFFF) // the reply that says why there is none
)

// String returns the message's name in PROTOCOL.md.
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
