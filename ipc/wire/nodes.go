package wire

import "tendril/store/object"

// Bounds of what nodes of a cluster tell each other.
const (
	MaxNodeAddresses = 64   // nodes in a JoinReply
	MaxAccessNodes   = 1024 // nodes in an AccessReply
	MaxTakenDevices  = 256  // of one node
)

// JoinRequest shows a token of role node: its sender wants to be a member of the cluster.
//
//wire:payload Join
type JoinRequest struct {
	Token           object.ID
	SecretHash      [32]byte
	Node            object.ID // the joining node's identifier
	Lowest, Highest uint16    // formats of the metadata's commands that it reads
	Name            string
	Version         string // of its daemon
	Request         []byte // RFC 2986, DER
}

// JoinReply makes it a member, as soon as it has said that it is one (PutNode, by Propose).
//
//wire:payload re Join
type JoinReply struct {
	Node         object.ID       // who answers
	Certificate  []byte          // the joining node's, DER
	AuthorityKey []byte          // PKCS #8, DER
	Nodes        []NodeAddresses `wire:"max=MaxNodeAddresses"`
}

// NodeAddresses says where a node is reached.
type NodeAddresses struct {
	Node      object.ID
	Name      string
	Addresses string // HOST:PORT of its front door, best first, a space between two
}

// ProposeRequest forwards a command of the metadata to the leader.
//
//wire:payload Propose
type ProposeRequest struct {
	Command []byte // cluster/PROTOCOL.md
}

// ProposeReply is what became of it. Where Leader is not zero, nothing did: that node leads.
//
//wire:payload re Propose
type ProposeReply struct {
	Leader object.ID
	Code   object.Code // of the result; 0 = done
	Text   string
	Epoch  uint64
	Index  uint64 // the entry that shows what was done
}

// ReadIndexReply says what a read that begins now waits for. Where Leader is not zero, that node is to be asked.
//
//wire:payload re ReadIndex
type ReadIndexReply struct {
	Leader object.ID
	Index  uint64
}

// PulseReply is how a node is. That it comes says that the node runs.
//
//wire:payload re Pulse
type PulseReply struct {
	Node          object.ID
	Incarnation   object.ID
	CapacityBytes uint64 // of its store
	FreeBytes     uint64 // of it, cached copies counted as free
	Transfers     uint32 // that it has under way, both ways
	LastIndex     uint64 // of its log
	LogFailed     bool   // it cannot write its log just now
}

// JoinClusterRequest has the daemon make its node a member of another cluster.
//
//wire:payload JoinCluster
type JoinClusterRequest struct {
	Address string // HOST:PORT of one of its nodes
	Token   string // as text
}

// LeaveClusterRequest has the daemon take its node out of its cluster.
//
//wire:payload LeaveCluster
type LeaveClusterRequest struct {
	Anyway bool // also where other nodes cannot take what it alone has, or the cluster cannot be told
}

// RemoveNodeRequest takes another node out of the cluster.
//
//wire:payload RemoveNode
type RemoveNodeRequest struct {
	Node   string // its name or identifier
	Anyway bool   // also where it answers, or has objects that no other node has
}

// LogEndReply is the last entry of a node's log of the metadata.
//
//wire:payload re LogEnd
type LogEndReply struct {
	Term, Index uint64
}

// RecoverClusterRequest has the daemon make its node a cluster of one of what it knows of its cluster.
//
//wire:payload RecoverCluster
type RecoverClusterRequest struct {
	Do bool // without it the answer says what would be lost, and nothing is done
}

// RotateAuthorityRequest begins a rotation of the cluster's authority, says how far one is, or finishes it.
//
//wire:payload RotateAuthority
type RotateAuthorityRequest struct {
	Finish bool
	Anyway bool // also where nodes or clients have certificates of the old one alone
}

// AccessReply is what a program needs to come in at the other nodes of its daemon's cluster. A program of the daemon's
// machine gets a certificate with its key; one of another machine has its own.
//
//wire:payload re Access
type AccessReply struct {
	Node        object.ID       // who answers
	Authority   []byte          // its certificate, DER
	Certificate []byte          // of a client of the program's tenant, DER
	Key         []byte          // PKCS #8, DER
	Nodes       []NodeAddresses `wire:"max=MaxAccessNodes"` // the others that answer
}

// TakeDevicesRequest wants devices of a node for a lease that the metadata has.
//
//wire:payload TakeDevices
type TakeDevicesRequest struct {
	Lease    object.ID
	Count    uint32 // the most that it takes; 0: all that match, or none
	Wait     bool   // the lease keeps its place in the node's line
	Token    string // with which sessions join it
	Selector string
}

// TakeDevicesReply is what the lease has of the node now.
//
//wire:payload re TakeDevices
type TakeDevicesReply struct {
	Matching uint32        // devices that would do
	Devices  []NamedDevice `wire:"max=MaxTakenDevices"`
	Why      string        // it does not have more
}

// NamedDevice is a device as its node calls it in leases.
type NamedDevice struct {
	Key string
}

// KeepDevicesRequest takes all other devices of a node from a lease that waits.
//
//wire:payload KeepDevices
type KeepDevicesRequest struct {
	Lease   object.ID
	Devices []NamedDevice `wire:"max=MaxTakenDevices"`
}

// EndLeaseRequest ends a lease.
//
//wire:payload EndLease
type EndLeaseRequest struct {
	Name string // its id, or the id's beginning; NODE/NUMBER
}
