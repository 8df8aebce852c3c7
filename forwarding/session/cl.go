package session

import (
	"encoding/binary"

	"tendril/forwarding/cl"
)

var le = binary.LittleEndian

// Limits, and flags that belong together.
const (
	maxWaitEvents          = 4096 // clwire.MaxWait, of events not known to be done
	maxHostBytes    uint64 = 1 << 47
	deviceTypeKnown        = cl.DEVICE_TYPE_DEFAULT | cl.DEVICE_TYPE_CPU | cl.DEVICE_TYPE_GPU |
		cl.DEVICE_TYPE_ACCELERATOR | cl.DEVICE_TYPE_CUSTOM
	memAccess     = cl.MEM_READ_WRITE | cl.MEM_WRITE_ONLY | cl.MEM_READ_ONLY
	memHostAccess = cl.MEM_HOST_WRITE_ONLY | cl.MEM_HOST_READ_ONLY | cl.MEM_HOST_NO_ACCESS
	memHostPtr    = cl.MEM_USE_HOST_PTR | cl.MEM_ALLOC_HOST_PTR | cl.MEM_COPY_HOST_PTR
	memKnown      = memAccess | memHostPtr | memHostAccess | cl.MEM_KERNEL_READ_AND_WRITE
)
