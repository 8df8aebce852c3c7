package store

import (
	"errors"
	"fmt"
	"time"

	"tendril/store/handoff"
	"tendril/store/object"
	"tendril/store/segment"
	"tendril/store/spill"
)

// Options configures a Store. Zero values mean the defaults named here.
type Options struct {
	// CapacityBytes bounds all memory: segments by their real size, the warm pool, the table. Must be given.
	CapacityBytes uint64
	// SegmentBytes is the size that a connection's segments for small objects grow to, and of the warm pool's
	// segments. Default 64 MiB (less where CapacityBytes is below 8 of them).
	SegmentBytes uint64
	// LargeBytes is the size from which an object has a segment of its own. Default SegmentBytes/4.
	LargeBytes uint64
	// WarmBytes is how much populated, never shared memory stands ready. Default 0: none.
	WarmBytes uint64
	// WriterCacheBytes bounds the empty segments kept for one connection's next objects. Default CapacityBytes/4.
	WriterCacheBytes uint64
	// TenantBytes bounds what one tenant may be charged. Default 0: only CapacityBytes does, as where both are the
	// same.
	TenantBytes uint64
	// SpillDir is where objects go that memory has no room for, and where persisted ones are. Default "": neither can
	// be.
	SpillDir string
	// SpillBytes bounds what is kept there. Default 4 × CapacityBytes.
	SpillBytes uint64
	// TenantSpillBytes bounds one tenant's part of it. Default 0: only SpillBytes does.
	TenantSpillBytes uint64
	// TenantObjects bounds the objects of one tenant, spilled ones too. Default 0: memory alone does.
	TenantObjects int
	// Segments bounds the segments that have memory: each is a descriptor of this process. The last eighth is for
	// tenants with few of them. Default 0: no bound.
	Segments int
	// TenantSegments bounds those of one tenant. Default half of Segments.
	TenantSegments int
	// HighBytes is from where on memory is given back ahead of need, in the background: empty segments, the warm pool,
	// then objects that nobody uses, to disk. Default 7/8 of CapacityBytes.
	HighBytes uint64
	// HugeFromBytes is the size from which an object with a segment of its own gets reserved huge pages while the
	// machine has some free. Default 16 MiB: below it rounding up to whole pages wastes more than an eighth. NoHuge:
	// never.
	HugeFromBytes uint64
	// Available gives how many bytes the machine can still give (false: not known). It is asked before memory is taken,
	// so that the store refuses with ErrFull what would make the kernel end processes, and every ten seconds: memory
	// kept for nobody goes back while less than LowBytes are left. nil: not asked. It must not block and is called with
	// and without locks.
	Available func() (bytes uint64, known bool)
	// LowBytes is what the store leaves to the machine. Default 64 MiB.
	LowBytes uint64
	// RequestBytes bounds what all requests hold in the daemon's own memory while they wait or lie unread
	// (package requests); a tenant may hold a quarter of it, a connection a quarter of that. Default CapacityBytes/8,
	// but 64 to 512 MiB.
	RequestBytes uint64
	// ScrubEvery is the time between the end of one scrub of everything and the next. Default 0: only who asks for a
	// scrub gets one.
	ScrubEvery time.Duration
	// ScrubRate bounds those, in bytes a second. Default 64 MiB.
	ScrubRate uint64
	// OnDamage hears of each object that is found damaged, by a scrub or on its way to disk. It must not block. nil:
	// the status alone tells.
	OnDamage func(object.Damage)
	// Devices makes the memory of GPUs. nil: there is none.
	Devices Devices
	// DeviceKind says which kind of objects lies in a device's memory: CUDA or OpenCL. With wait it may wait, and is
	// asked without the store's lock; without, it says what is known. nil: CUDA's alone.
	DeviceKind func(device object.Device, wait bool) object.Kind
	// TenantDeviceBytes bounds what one tenant's objects take of one GPU's memory. Default 0: no bound.
	TenantDeviceBytes uint64
	// IdleDeviceBytes bounds what one tenant's connections keep of one GPU's memory for their next objects. Default 0:
	// they keep none.
	IdleDeviceBytes uint64
	// OnDeviceRoom hears when memory of a GPU became free, or may be made free by LeaveOnDevice, since nobody uses its
	// object any more. It is called without locks, and must not block. nil: nobody wants to know.
	OnDeviceRoom func()
	// NoIndex refuses connections the index in shared memory.
	NoIndex bool
	// SpillSystem is the file system. Default spill.Linux.
	SpillSystem spill.System
	// Handoff is what the previous store's Handoff returned; nil: nothing. New takes it over, also when it fails.
	Handoff *handoff.State
	// System is the kernel. Default segment.Linux.
	System segment.System
}

// NoHuge is an Options.HugeFromBytes that no object reaches.
const NoHuge = 1 << 62

// firstSegmentBytes is the size of a connection's first segment. A segment outlives its writer while any object in
// it lives, so a process that puts one small named object and ends must not pin 64 MiB.
const firstSegmentBytes = 256 << 10

func (o Options) withDefaults() Options {
	if o.TenantBytes == o.CapacityBytes {
		o.TenantBytes = 0 // who meets it met the store's end, and is told so
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 64 << 20
		for o.SegmentBytes > firstSegmentBytes && o.SegmentBytes > o.CapacityBytes/8 {
			o.SegmentBytes /= 2
		}
	}
	if o.LargeBytes == 0 {
		o.LargeBytes = o.SegmentBytes / 4
	}
	if o.WriterCacheBytes == 0 {
		o.WriterCacheBytes = o.CapacityBytes / 4
	}
	if o.TenantSegments == 0 {
		o.TenantSegments = max(1, o.Segments/2)
	}
	if o.SpillBytes == 0 {
		o.SpillBytes = 4 * o.CapacityBytes
	}
	if o.HighBytes == 0 {
		o.HighBytes = o.CapacityBytes - o.CapacityBytes/8
	}
	if o.HugeFromBytes == 0 {
		o.HugeFromBytes = 16 << 20
	}
	if o.RequestBytes == 0 {
		o.RequestBytes = requestBytesFor(o.CapacityBytes)
	}
	if o.ScrubRate == 0 {
		o.ScrubRate = 64 << 20
	}
	if o.LowBytes == 0 {
		o.LowBytes = 64 << 20
	}
	if o.System == nil {
		o.System = segment.Linux{}
	}
	return o
}

// requestBytesFor gives the default of Options.RequestBytes.
func requestBytesFor(capacity uint64) uint64 { return min(max(capacity/8, 64<<20), 512<<20) }

// Validate names every fault at once, as ErrInvalid. New calls it after filling in the defaults.
func (o Options) Validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{object.ErrInvalid}, args...)...))
		}
	}
	fault(o.CapacityBytes < 1<<20 || o.CapacityBytes > 1<<60, "capacity of %d bytes: want 1 MiB to 1 EiB",
		o.CapacityBytes)
	fault(o.SegmentBytes < segment.PageBytes || o.SegmentBytes%segment.PageBytes != 0 ||
		o.SegmentBytes > o.CapacityBytes,
		"segments of %d bytes: want a multiple of %d, at most the capacity", o.SegmentBytes, segment.PageBytes)
	fault(o.LargeBytes == 0 || o.LargeBytes > o.SegmentBytes, "large objects from %d bytes: want 1 to a segment's %d",
		o.LargeBytes, o.SegmentBytes)
	fault(o.WarmBytes > o.CapacityBytes, "warm pool of %d bytes: more than the capacity of %d", o.WarmBytes,
		o.CapacityBytes)
	fault(o.TenantBytes > o.CapacityBytes, "a tenant's quota of %d bytes: more than the capacity of %d", o.TenantBytes,
		o.CapacityBytes)
	fault(o.HighBytes > o.CapacityBytes, "high-water mark of %d bytes: more than the capacity of %d", o.HighBytes,
		o.CapacityBytes)
	fault(o.RequestBytes != 0 && (o.RequestBytes < 16<<20 || o.RequestBytes > 1<<60),
		"%d bytes for requests: want 16 MiB to 1 EiB", o.RequestBytes)
	fault(o.ScrubEvery < 0, "a scrub every %v", o.ScrubEvery)
	fault(o.TenantObjects < 0, "a tenant's %d objects", o.TenantObjects)
	fault(o.Segments < 0 || o.TenantSegments < 0, "%d segments, %d of one tenant", o.Segments, o.TenantSegments)
	return errors.Join(faults...)
}
