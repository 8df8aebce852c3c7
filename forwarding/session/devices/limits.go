package devices

import (
	"encoding/binary"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
)

// Limits are a device's numbers that commands are checked against.
type Limits struct {
	Kind        uint64 // cl_device_type
	Dimensions  uint64
	GroupSize   uint64    // work-items; 0: unknown
	ItemSizes   [3]uint64 // work-items of a group in each dimension
	MaxAlloc    uint64    // bytes
	GlobalBytes uint64    // of the device's memory; 0: unknown
	AlignBytes  uint64    // of a buffer's base address
	QueueProps  uint64    // cl_command_queue_properties
}

// LimitsOf reads the numbers off a device's answers.
func LimitsOf(info map[uint32][]byte) Limits {
	number := func(param uint32) uint64 { return answers.Number(info[param]) }
	l := Limits{
		Kind: number(cl.DEVICE_TYPE), Dimensions: number(cl.DEVICE_MAX_WORK_ITEM_DIMENSIONS),
		GroupSize: number(cl.DEVICE_MAX_WORK_GROUP_SIZE), MaxAlloc: number(cl.DEVICE_MAX_MEM_ALLOC_SIZE),
		GlobalBytes: number(cl.DEVICE_GLOBAL_MEM_SIZE), QueueProps: number(cl.DEVICE_QUEUE_PROPERTIES),
		AlignBytes: max(number(cl.DEVICE_MEM_BASE_ADDR_ALIGN)/8, 1),
	}
	for i := range l.ItemSizes {
		l.ItemSizes[i] = ^uint64(0)
		if b := info[cl.DEVICE_MAX_WORK_ITEM_SIZES]; len(b) >= 8*(i+1) {
			l.ItemSizes[i] = binary.LittleEndian.Uint64(b[8*i:])
		}
	}
	return l
}
