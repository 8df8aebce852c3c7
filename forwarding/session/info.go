package session

import (
	"encoding/binary"
	"strings"
)

var le = binary.LittleEndian

func infoU32(v uint32) []byte { return le.AppendUint32(nil, v) }
func infoU64(v uint64) []byte { return le.AppendUint64(nil, v) }

// infoSize encodes a size_t or a handle: both are 8 bytes on the platforms this library is built for.
func infoSize[T ~uint64 | ~uintptr | ~int](v T) []byte { return infoU64(uint64(v)) }

func infoBool(v bool) []byte {
	if v {
		return infoU32(1)
	}
	return infoU32(0)
}

// infoString ends s with the NUL that OpenCL counts.
func infoString(s string) []byte { return append([]byte(s), 0) }

func infoHandles(hs []uintptr) []byte {
	b := make([]byte, 0, 8*len(hs))
	for _, h := range hs {
		b = le.AppendUint64(b, uint64(h))
	}
	return b
}

func infoSizes(vs []uint64) []byte {
	b := make([]byte, 0, 8*len(vs))
	for _, v := range vs {
		b = le.AppendUint64(b, v)
	}
	return b
}

// number reads a little-endian scalar of a native answer; 0 when it is not there.
func number(b []byte) uint64 {
	var v uint64
	for i := range min(len(b), 8) {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// nameVersion is cl_name_version: u32 version, 64 bytes of name.
type nameVersion struct {
	version uint32
	name    string
}

const nameVersionBytes = 4 + maxNamedVersionName

func parseNameVersions(b []byte) (list []nameVersion) {
	for ; len(b) >= nameVersionBytes; b = b[nameVersionBytes:] {
		name, _, _ := strings.Cut(string(b[4:nameVersionBytes]), "\x00")
		list = append(list, nameVersion{le.Uint32(b), name})
	}
	return list
}

func infoNameVersions(list []nameVersion) []byte {
	b := []byte{}
	for _, nv := range list {
		var name [maxNamedVersionName]byte
		copy(name[:maxNamedVersionName-1], nv.name)
		b = append(le.AppendUint32(b, nv.version), name[:]...)
	}
	return b
}
