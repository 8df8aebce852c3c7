// Package answers encodes what OpenCL's queries return, and reads what drivers returned to the worker.
//
// A size_t and a handle have 8 bytes on the platforms that this library is built for. Pure functions; no trust, no
// locks: what is too short reads as 0.
package answers

import (
	"encoding/binary"
	"strings"

	"tendril/forwarding/cl"
)

var le = binary.LittleEndian

// U32 encodes a cl_uint, or an enumeration.
func U32(v uint32) []byte { return le.AppendUint32(nil, v) }

// U64 encodes a cl_ulong, or a bit field.
func U64(v uint64) []byte { return le.AppendUint64(nil, v) }

// Size encodes a size_t or a handle.
func Size[T ~uint64 | ~uintptr | ~int](v T) []byte { return U64(uint64(v)) }

// Bool encodes a cl_bool.
func Bool(v bool) []byte {
	if v {
		return U32(1)
	}
	return U32(0)
}

// String ends s with the NUL that OpenCL counts.
func String(s string) []byte { return append([]byte(s), 0) }

// Handles encodes a list of handles.
func Handles(hs []uintptr) []byte {
	b := make([]byte, 0, 8*len(hs))
	for _, h := range hs {
		b = le.AppendUint64(b, uint64(h))
	}
	return b
}

// Sizes encodes a list of sizes or of properties.
func Sizes(vs []uint64) []byte {
	b := make([]byte, 0, 8*len(vs))
	for _, v := range vs {
		b = le.AppendUint64(b, v)
	}
	return b
}

// Number reads a little-endian scalar of a native answer; 0 where it is not there.
func Number(b []byte) uint64 {
	var v uint64
	for i := range min(len(b), 8) {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}

// Text reads a string of a native answer, without its NUL.
func Text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// NameVersion is cl_name_version.
type NameVersion struct {
	Version uint32
	Name    string
}

const nameVersionBytes = 4 + cl.NAME_VERSION_MAX_NAME_SIZE

// ParseNameVersions reads a list of cl_name_version; a part of one at its end is left out.
func ParseNameVersions(b []byte) (list []NameVersion) {
	for ; len(b) >= nameVersionBytes; b = b[nameVersionBytes:] {
		name, _, _ := strings.Cut(string(b[4:nameVersionBytes]), "\x00")
		list = append(list, NameVersion{le.Uint32(b), name})
	}
	return list
}

// NameVersions encodes a list of cl_name_version.
func NameVersions(list []NameVersion) []byte {
	b := []byte{}
	for _, nv := range list {
		var name [cl.NAME_VERSION_MAX_NAME_SIZE]byte
		copy(name[:cl.NAME_VERSION_MAX_NAME_SIZE-1], nv.Name)
		b = append(le.AppendUint32(b, nv.Version), name[:]...)
	}
	return b
}
