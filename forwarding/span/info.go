package span

import (
	"encoding/binary"
	"strings"

	"tendril/forwarding/session"
)

var le = binary.LittleEndian

func infoU32(v uint32) []byte     { return le.AppendUint32(nil, v) }
func infoU64(v uint64) []byte     { return le.AppendUint64(nil, v) }
func infoHandle(h uintptr) []byte { return infoU64(uint64(h)) }

// infoString ends s with the NUL that OpenCL counts.
func infoString(s string) []byte { return append([]byte(s), 0) }

func infoHandles(hs []uintptr) []byte {
	b := make([]byte, 0, 8*len(hs))
	for _, h := range hs {
		b = le.AppendUint64(b, uint64(h))
	}
	return b
}

func infoList(vs []uint64) []byte {
	b := make([]byte, 0, 8*len(vs))
	for _, v := range vs {
		b = le.AppendUint64(b, v)
	}
	return b
}

// number reads a little-endian scalar of a native answer; 0 when it is not there.
func number(b []byte) (v uint64) {
	for i := range min(len(b), 8) {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}

// handlePointer makes a kernel argument of a handle. The slice lives as long as the pointer is used: by the caller.
func handlePointer(room *[8]byte, h uintptr) session.HostPtr {
	le.PutUint64(room[:], uint64(h))
	return session.HostBytes(room[:])
}

// splitNames takes CL_PROGRAM_KERNEL_NAMES apart.
func splitNames(text []byte) []string {
	names := strings.TrimRight(string(text), "\x00")
	if names == "" {
		return nil
	}
	return strings.Split(names, ";")
}
