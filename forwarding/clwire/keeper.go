package clwire

// The keeper is the process in which the CUDA driver runs that the daemon's memory of GPUs comes from. Daemon and
// keeper share a socket (SOCK_SEQPACKET): a request of the daemon is one packet, JSON, with descriptors beside it, and
// so is the one reply that follows. The keeper closes the descriptors that it got; the daemon owns those of a reply.

// KeeperRequest is one packet from the daemon: exactly one field is set.
type KeeperRequest struct {
	List     *KeeperList     `json:"list,omitempty"`
	Allocate *KeeperAllocate `json:"allocate,omitempty"`
	Copy     *KeeperCopy     `json:"copy,omitempty"`
	End      *KeeperEnd      `json:"end,omitempty"`
	Forget   *KeeperForget   `json:"forget,omitempty"`
	Lend     *KeeperLend     `json:"lend,omitempty"`
	Free     *KeeperFree     `json:"free,omitempty"`
}

// KeeperList asks for the devices.
type KeeperList struct{}

// KeeperAllocate asks for zeroed memory of a device; its descriptor comes with the reply.
type KeeperAllocate struct {
	Device string `json:"device"` // UUID, 32 hexadecimal digits
	Bytes  uint64 `json:"bytes"`  // rounded up to what the device gives
}

// KeeperCopy is one step of a copy between two places, of which one at least is a device's. Two descriptors come with
// the first step, To's and From's; both are mapped until the last one, or a KeeperEnd. A step without descriptors of a
// copy that the keeper does not know is answered KeeperUnknown.
type KeeperCopy struct {
	ID    uint64      `json:"id"` // of the copy, never used again
	To    KeeperPlace `json:"to"`
	From  KeeperPlace `json:"from"`
	Bytes uint64      `json:"bytes"`
	Last  bool        `json:"last,omitempty"`
}

// KeeperEnd ends a copy before its last step. One that is not known is no error.
type KeeperEnd struct {
	ID uint64 `json:"id"`
}

// KeeperForget has the keeper unpin and unmap host memory.
type KeeperForget struct {
	Memory []HostMemory `json:"memory"`
}

// KeeperLend asks for a copy of memory of a device, whose descriptor comes with it, in memory of the keeper's own,
// which other processes open by a handle. It ends with the keeper.
type KeeperLend struct {
	ID    uint64      `json:"id"` // never used again
	From  KeeperPlace `json:"from"`
	Bytes uint64      `json:"bytes"`
}

// KeeperFree gives such memory back. What is not known is no error.
type KeeperFree struct {
	IDs []uint64 `json:"ids"`
}

// HostMemory is a memfd by its inode, which is its own as long as anybody has it.
type HostMemory struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
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
	Bytes   uint64         `json:"bytes,omitempty"`  // of the allocation; with KeeperFull: what is free
	Way     KeeperWay      `json:"way,omitempty"`    // of a copy's step
	Why     string         `json:"why,omitempty"`    // no better way
	Handle  string         `json:"handle,omitempty"` // of what is lent (CUipcMemHandle), in hexadecimal digits
	Pinned  *KeeperPins    `json:"pinned,omitempty"` // after a copy's step; nil: what the last one said
}

// KeeperWay is how bytes went.
type KeeperWay string

// The ways of a copy, the best first.
const (
	KeeperOnDevice KeeperWay = "device" // within a device
	KeeperPeer     KeeperWay = "peer"   // from one device to another by themselves
	KeeperPinned   KeeperWay = "pinned" // the device reads or writes the host memory by itself
	KeeperStaged   KeeperWay = "staged" // threads copy through pinned memory of the keeper's
	KeeperPlain    KeeperWay = "plain"  // the driver does as it likes
)

// KeeperPins is what host memory is pinned.
type KeeperPins struct {
	Memory []HostMemory `json:"memory"`
}

// KeeperFault is a sort of error.
type KeeperFault string

// The sorts of a keeper's error.
const (
	KeeperNoDevice KeeperFault = "no device" // no driver, no such device, or it cannot share memory
	KeeperFull     KeeperFault = "full"      // the device has no memory left
	KeeperFailed   KeeperFault = "failed"    // the driver failed otherwise
	KeeperUnknown  KeeperFault = "unknown"   // the copy's first step is wanted again
)

// KeeperDevice is one device.
type KeeperDevice struct {
	Index  int         `json:"index"` // in the driver's order: cuda:INDEX
	UUID   string      `json:"uuid"`  // 32 hexadecimal digits
	Name   string      `json:"name"`
	Bytes  uint64      `json:"memory_bytes"`
	Shares bool        `json:"shares"` // its memory can be objects
	Mode   ComputeMode `json:"compute_mode,omitempty"`
}

// ComputeMode says that an NVIDIA GPU is not for every process: `nvidia-smi --compute-mode`. "": it is.
type ComputeMode string

// The compute modes of which something follows.
const (
	ComputeProhibited ComputeMode = "prohibited" // for no process
	ComputeExclusive  ComputeMode = "exclusive"  // for one process at a time
)

// ComputeModeOf translates a CUcomputemode.
func ComputeModeOf(mode int) ComputeMode {
	switch mode {
	case 2:
		return ComputeProhibited
	case 3:
		return ComputeExclusive
	}
	return ""
}
