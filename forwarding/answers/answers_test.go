package answers

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"tendril/forwarding/cl"
)

// TestEncodings: what a program's query is answered, byte by byte.
func TestEncodings(t *testing.T) {
	for what, x := range map[string]struct {
		got  []byte
		want string // hexadecimal
	}{
		"cl_uint":         {U32(0x01020304), "04030201"},
		"cl_ulong":        {U64(1<<63 | 2), "0200000000000080"},
		"size_t":          {Size(uint64(7)), "0700000000000000"},
		"a handle":        {Size(uintptr(0xffffffffff)), "ffffffffff000000"},
		"a negative int":  {Size(-1), "ffffffffffffffff"},
		"CL_TRUE":         {Bool(true), "01000000"},
		"CL_FALSE":        {Bool(false), "00000000"},
		"a string":        {String("ab"), "616200"},
		"an empty string": {String(""), "00"},
		"handles":         {Handles([]uintptr{1, 2}), "01000000000000000200000000000000"},
		"sizes":           {Sizes([]uint64{3}), "0300000000000000"},
	} {
		if hex.EncodeToString(x.got) != x.want {
			t.Errorf("%s: %x, want %s", what, x.got, x.want)
		}
	}
	// A query without a value is answered with no bytes, and not with nil: nil is no answer.
	for what, b := range map[string][]byte{"handles": Handles(nil), "sizes": Sizes(nil), "versions": NameVersions(nil)} {
		if b == nil || len(b) != 0 {
			t.Errorf("no %s: %v", what, b)
		}
	}
}

// TestNativeAnswersOfAnyLength: a driver may answer too little, too much, or a string without its end.
func TestNativeAnswersOfAnyLength(t *testing.T) {
	for _, x := range []struct {
		b    []byte
		want uint64
	}{
		{nil, 0}, {[]byte{5}, 5}, {[]byte{1, 2}, 0x201}, {U32(1 << 31), 1 << 31}, {U64(^uint64(0)), ^uint64(0)},
		{append(U64(9), 1, 2, 3), 9},
	} {
		if got := Number(x.b); got != x.want {
			t.Errorf("%x: %#x, want %#x", x.b, got, x.want)
		}
	}
	for in, want := range map[string]string{"": "", "\x00": "", "name\x00": "name", "name": "name",
		"name\x00\x00\x00": "name", " a b \x00": " a b "} {
		if got := Text([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestNameVersions: names are cut to what the struct holds, with its NUL, and what is half there is left out.
func TestNameVersions(t *testing.T) {
	long := strings.Repeat("n", 100)
	list := []NameVersion{{3 << 22, "cl_khr_fp64"}, {1, ""}, {2, long}}
	b := NameVersions(list)
	if len(b) != 3*(4+cl.NAME_VERSION_MAX_NAME_SIZE) || b[len(b)-1] != 0 {
		t.Fatalf("%d bytes, the last %d", len(b), b[len(b)-1])
	}
	want := slices.Clone(list)
	want[2].Name = long[:cl.NAME_VERSION_MAX_NAME_SIZE-1]
	if got := ParseNameVersions(b); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	for cut := range b {
		if got := ParseNameVersions(b[:cut]); len(got) != cut/nameVersionBytes {
			t.Fatalf("%d bytes: %+v", cut, got)
		}
	}
	full := append(U32(1), bytes.Repeat([]byte{'x'}, cl.NAME_VERSION_MAX_NAME_SIZE)...) // a driver that forgot the NUL
	if got := ParseNameVersions(full); len(got) != 1 || len(got[0].Name) != cl.NAME_VERSION_MAX_NAME_SIZE {
		t.Errorf("%+v", got)
	}
}
