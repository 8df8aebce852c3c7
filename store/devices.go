package store

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

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

// IPCLender is a Devices that lends copies of memory of GPUs, for programs that open a handle and no descriptor. What
// is lent lies in memory of a process's own, and ends with that. Safe for concurrent use.
type IPCLender interface {
	// LendIPC copies bytes from a place on a GPU into such memory, of real bytes. Errors: as Devices.Allocate.
	LendIPC(who Asker, from Place, bytes uint64) (n uint64, handle [object.IPCHandleBytes]byte, real uint64, err error)
	// HasIPC says whether memory n is there still. It does not wait.
	HasIPC(n uint64) bool
	// EndedIPC gives what has ended with its process since it was last asked. It does not wait.
	EndedIPC() []uint64
	// FreeIPC gives memory n back. It does not wait.
	FreeIPC(n uint64)
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

// hostStep is how much CopyHost copies at once.
const hostStep = 1 << 20

// CopyHost copies between two places whose descriptors are host memory's, a twin's among them, without any driver.
// Errors: ErrTimeout (who asks is gone), ErrInternal.
func CopyHost(who Asker, to, from Place, bytes uint64) error {
	part := make([]byte, min(bytes, hostStep))
	for done := uint64(0); done < bytes; {
		if who.Gone() {
			return fmt.Errorf("%w: the client that asked for a copy is gone", object.ErrTimeout)
		}
		n, err := unix.Pread(from.FD, part[:min(bytes-done, hostStep)], int64(from.Offset+done))
		if err == nil && n > 0 {
			n, err = unix.Pwrite(to.FD, part[:n], int64(to.Offset+done))
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n == 0:
			return fmt.Errorf("%w: a copy in host memory, %d bytes at byte %d: %w", object.ErrInternal, n, from.Offset+done, err)
		default:
			done += uint64(n)
		}
	}
	return nil
}
