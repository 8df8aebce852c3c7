package handoff

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril/store/object"
	"tendril/store/spill"
)

// examples are objects as they stand in a table; testdata/objects.hex has the bytes.
func examples() []*Object {
	at := time.Unix(1_700_000_000, 5).UTC()
	full := &Object{Segment: 7, Offset: 1 << 33, Strict: true, Left: time.Minute, Record: spill.Record{
		ID: object.ID{1, 2, 15: 16}, SizeBytes: 1 << 40, Tenant: "uid:7", Name: "ü", Class: object.TTL,
		Meta: []byte(`{"a":1}`), Labels: map[string]string{"k": "v", "l": ""},
		Grants: []string{"all", "uid:8"}, Members: []object.Member{{Name: "m", ID: object.ID{3}}, {}}, Pinned: true,
		Created: at, Sealed: at.Add(1), Bound: at.Add(2), Expires: at.Add(3), CreatorPID: 42, Creator: "prog",
	}}
	return []*Object{full, {Spilled: true, Record: spill.Record{SizeBytes: 5, Sums: []byte("checksum")}},
		{Kept: true, Damaged: true, Device: object.Device{4, 15: 5}}}
}

func TestObjects(t *testing.T) {
	var table []byte
	for _, o := range examples() {
		table = o.AppendTo(table)
	}
	golden, err := os.ReadFile("testdata/objects.hex")
	if err != nil || hex.EncodeToString(table) != strings.TrimSpace(string(golden)) {
		t.Errorf("%x, want %s, %v", table, golden, err)
	}
	rest, o := table, (*Object)(nil)
	for _, want := range examples() {
		if o, rest, err = NextObject(rest, o); err != nil || !reflect.DeepEqual(o, want) {
			t.Fatalf("%+v, want %+v, %v", o, want, err)
		}
	}
	first := table[:4+binary.LittleEndian.Uint32(table)]
	longer := append(slices.Clone(first), "of a later release"...)
	binary.LittleEndian.PutUint32(longer, uint32(len(longer)-4))
	if o, rest, err := NextObject(longer, nil); err != nil || len(rest) > 0 ||
		!reflect.DeepEqual(o, examples()[0]) {
		t.Errorf("with a field more: %+v, %v", o, err)
	}
	for n := 4; n < len(first); n++ {
		if n == len(first)-4 {
			continue // of the release that had no sums
		}
		short := slices.Clone(first[:n])
		binary.LittleEndian.PutUint32(short, uint32(n-4))
		if _, _, err := NextObject(short, nil); !errors.Is(err, object.ErrProtocol) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
}

// FuzzObjects reads tables. An object that was read is written as the same bytes, but for a later release's
// fields.
func FuzzObjects(f *testing.F) {
	for _, o := range examples() {
		b := o.AppendTo(nil)
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, table []byte) {
		for len(table) > 0 {
			o, rest, err := NextObject(table, nil)
			if err != nil {
				return
			}
			again, left, err := NextObject(o.AppendTo(nil), o)
			if err != nil || len(left) > 0 || !reflect.DeepEqual(o, again) {
				t.Fatalf("%+v is read again as %+v, %v", o, again, err)
			}
			table = rest
		}
	})
}

// TestRefs: a table of references reads as it was written; what is cut off at its end is left out.
func TestRefs(t *testing.T) {
	want := []Ref{{object.ID{1, 15: 2}, 3, time.Unix(1_700_000_000, 5).UTC()}, {ID: object.ID{4}, Count: 1}}
	table := MakeRefs(len(want))
	for _, r := range want {
		table = r.AppendTo(table)
	}
	if got := slices.Collect(Refs(table)); !reflect.DeepEqual(got, want) || CountRefs(table) != len(want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := slices.Collect(Refs(table[:len(table)-1])); !reflect.DeepEqual(got, want[:1]) {
		t.Errorf("cut short: %+v, want %+v", got, want[:1])
	}
}
