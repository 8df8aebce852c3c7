package clwire

// The keeper is the process in which the CUDA driver runs that the daemon's memory of GPUs comes from. Daemon and
// keeper share a socket (SOCK_SEQPACKET): a request of the daemon is one packet, JSON, with descriptors beside it, and
// so is the one reply that follows. The keeper closes the descriptors that it got; the daemon owns those of a reply.

// KeeperRequest is one packet from the daemon: exactly one field is set.
type KeeperRequest struct {
	List     *KeeperList     `json:"list,omitempty"`
	Allocate *KeeperAllocate `json:"allocate,omitempty"`
	Copy     *KeeperCopy     `json:"copy,omitempty"`
}

// KeeperList asks for the devices.
type KeeperList struct{}

// KeeperAllocate asks for zeroed memory of a device; its descriptor comes with the reply.
type KeeperAllocate struct {
	Device string `json:"device"` // UUID, 32 hexadecimal digits
	Bytes  uint64 `json:"bytes"`  // rounded up to what the device gives
}

// KeeperCopy copies between two places, of which one at least is a device's. Two descriptors come with it: To's,
// From's.
type KeeperCopy struct {
	To    KeeperPlace `json:"to"`
	From  KeeperPlace `json:"from"`
	Bytes uint64      `json:"bytes"`
}

// KeeperPlace is memory behind a descriptor: of a device, or with Device "" a memfd's.
type KeeperPlace struct {
	Device string `json:"device,omitempty"`
	Bytes  uint64 `json:"bytes"` // of the whole allocation or memfd
	Offset uint64 `json:"offset"`
}

// KeeperReply is one packet from the keeper.
type KeeperReply struct {
	Error   string         `json:"error,omitempty"` // why not; "" = it is done
	Fault   KeeperFault    `json:"fault,omitempty"` // what sort of error
	Devices []KeeperDevice `json:"devices,omitempty"`
	Bytes   uint64         `json:"bytes,omitempty"` // of the allocation
}

// KeeperFault is a sort of error.
type KeeperFault string

// The sorts of a keeper's error.
const (
	KeeperNoDevice KeeperFault = "no device" // no driver, no such device, or it cannot share memory
	KeeperFull     KeeperFault = "full"      // the device has no memory left
	KeeperFailed   KeeperFault = "failed"    // the driver failed otherwise
)

// KeeperDevice is one device.
type KeeperDevice struct {
	Index  int    `json:"index"` // in the driver's order: cuda:INDEX
	UUID   string `json:"uuid"`  // 32 hexadecimal digits
	Name   string `json:"name"`
	Bytes  uint64 `json:"memory_bytes"`
	Shares bool   `json:"shares"` // its memory can be objects
}
