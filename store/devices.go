package store

import (
	"fmt"

	"tendril/store/object"
)

// Devices is what the store asks for the memory of GPUs. Safe for concurrent use; daemon/keeper implements it.
type Devices interface {
	// Available says why there is none: ErrUnsupported. It does not wait.
	Available() error
	// Allocate makes zeroed memory: a descriptor, which the caller owns, of real bytes, at least those asked for.
	// Errors: ErrUnsupported (no such device), ErrNoDevice; ErrTimeout where who asks is gone; ErrFull, with what is
	// free on the device in place of real.
	Allocate(who Asker, device object.Device, bytes uint64) (fd int, real uint64, err error)
	// Copy copies between two places, of which one at least is a device's. Afterwards the memory of both is as it
	// was, but that a host segment may be pinned, and mapped, until Forget.
	Copy(who Asker, to, from Place, bytes uint64) error
	// Forget ends that for a segment which goes, or which nobody may have mapped. It does not wait.
	Forget(fd int)
}

// Asker is for whom Devices does something: tenants have their turns one after the other.
type Asker struct {
	Tenant string
	Gone   func() bool // nobody waits for it any more; asked before what takes long
}

// ErrDevicesEnded is what Devices answers when the daemon is ending; it is an ErrNoDevice.
var ErrDevicesEnded = fmt.Errorf("%w: the daemon is ending", object.ErrNoDevice)

// Place is memory behind a descriptor.
type Place struct {
	FD     int
	Device object.Device // zero: host memory
	Kind   object.Kind   // of the memory; OpenCL: FD is its twin
	Bytes  uint64        // of the whole allocation or segment
	Offset uint64
}
