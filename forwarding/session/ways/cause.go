package ways

import (
	"tendril/forwarding/cl"
	"tendril/forwarding/trace"
)

// causeOfCommand names why a blocking command of this kind waits.
func causeOfCommand(kind uint32) trace.Cause {
	switch kind {
	case cl.COMMAND_READ_BUFFER, cl.COMMAND_READ_BUFFER_RECT, cl.COMMAND_READ_IMAGE:
		return trace.CauseRead
	case cl.COMMAND_WRITE_BUFFER, cl.COMMAND_WRITE_BUFFER_RECT, cl.COMMAND_WRITE_IMAGE:
		return trace.CauseWrite
	case cl.COMMAND_MAP_BUFFER, cl.COMMAND_MAP_IMAGE:
		return trace.CauseMap
	}
	return trace.CauseOther
}

// causeOfTransfer is the same for a transfer, which may be one of the library's own: a new buffer's contents.
func causeOfTransfer(kind uint32, write bool) trace.Cause {
	if cause := causeOfCommand(kind); cause != trace.CauseOther {
		return cause
	}
	if write {
		return trace.CauseWrite
	}
	return trace.CauseRead
}
