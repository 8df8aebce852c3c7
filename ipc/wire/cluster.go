package wire

import (
	"tendril/store/object"
)

// MaxLanes bounds the connections between a client and a remote worker: one carries control, the others payload.
const MaxLanes = 8

// CreateTokenRequest asks for a token.
//
//wire:payload CreateToken
type CreateTokenRequest struct {
	Role        uint8  // cluster/pki's numbers
	LifeSeconds uint64 // 0 = for ever
	Once        bool
	Tenant      string // that certificates are for; "" = what is configured for their name
}

// RevokeTokenRequest ends a token, and the certificates that it paid for where Certificates is set.
//
//wire:payload RevokeToken
type RevokeTokenRequest struct {
	ID           object.ID // the token's
	Certificates bool
}

// RevokeCertificatesRequest ends the certificates of clients that have all that is set here. At least one is.
//
//wire:payload RevokeCertificates
type RevokeCertificatesRequest struct {
	Serial object.ID
	Tenant string
	Node   string // whose programs have them, by name or identifier
	Reason string
}

// TenantChange says what a ChangeTenantRequest does.
type TenantChange uint8

// The changes of a tenant.
const (
	TenantCreate  TenantChange = 1
	TenantRemove  TenantChange = 2 // with Anyway also one that has published objects
	TenantDisable TenantChange = 3
	TenantEnable  TenantChange = 4
	TenantMap     TenantChange = 5 // Kind, Member, Node
	TenantUnmap   TenantChange = 6 // the same
	TenantQuota   TenantChange = 7 // Fields say which of the bounds are set; on Node, or with Whole in the cluster
)

// The bounds that a TenantQuota sets.
const (
	QuotaMemory  = 1 << iota // bytes on a node; with Whole: of published objects
	QuotaDisk                // bytes on a node
	QuotaGPU                 // bytes of each GPU of a node
	QuotaDevices             // leased ones
	QuotaObjects             // with Whole: published ones
)

// ChangeTenantRequest changes a tenant of the cluster.
//
//wire:payload ChangeTenant
type ChangeTenantRequest struct {
	Name   string
	Change TenantChange
	Anyway bool
	Whole  bool
	Kind   uint8  // of the member: 1 user, 2 group, 3 name in a certificate
	Fields uint8  // which of the following bounds are set; 0 takes a bound away
	Memory uint64 // bytes
	Disk   uint64
	GPU    uint64
	// Devices and Objects are numbers.
	Devices uint32
	Objects uint32
	Member  string
	Node    string // by name or identifier; "" = every node
}

// AuditRequest asks for who did what, oldest first.
//
//wire:payload Audit
type AuditRequest struct {
	Since  uint64 // Unix ns
	Limit  uint32 // most events; 0: the daemon's most, which it never exceeds
	Tenant string // "" = all
	Cursor string // "" is the beginning; else that of the answer before
}

// TextReply is the reply of CreateToken (the token) and OpenPage (the address): both are secrets.
//
//wire:payload re CreateToken OpenPage
type TextReply struct{ Text string }

// EnrollRequest shows a token and asks for a certificate.
//
//wire:payload Enroll
type EnrollRequest struct {
	Token      object.ID
	SecretHash [32]byte
	Name       string // a wish
	Request    []byte // RFC 2986, DER
}

// DERMessage is a certificate request (Renew) or a certificate (the replies of Enroll and Renew).
//
//wire:payload Renew re Enroll Renew
type DERMessage struct{ DER []byte }

// OpenRemoteWorkerRequest asks for a worker that is reached through the front door.
//
//wire:payload OpenRemoteWorker
type OpenRemoteWorkerRequest struct {
	Platform     uint32
	ClientSHA256 [32]byte // of the client's ephemeral certificate (DER)
	Lanes        uint8    // 1 to MaxLanes; the first is the control stream
	Plaintext    bool     `wire:"bits"` // no TLS between client and worker
	Resume       bool     `wire:"bits"` // the connections can be replaced (KeepSession)
}

// OpenRemoteWorkerReply says how to reach the worker: ticket i opens lane i.
//
//wire:payload re OpenRemoteWorker
type OpenRemoteWorkerReply struct {
	Worker       uint64
	WorkerSHA256 [32]byte   // of the worker's ephemeral certificate (DER); zero without TLS
	Tickets      [][32]byte `wire:"u8,max=MaxLanes"` // 1 at least
}
