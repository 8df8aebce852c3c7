package daemon

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"

	"tendril/cluster/fsm"
)

// clText reads a C string that a driver gave.
func clText(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r == utf8.RuneError {
			return -1
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}

// clip cuts a text to what the cluster keeps.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), fsm.MaxTextBytes)], "") }

// clNumber reads a cl_uint or cl_ulong; 0 where it has another length.
func clNumber(b []byte) uint64 {
	switch len(b) {
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	case 8:
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}
