package object

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestMetaIsReadableInAListing: one object's metadata never makes the others of a listing unreadable. Python decodes
// UTF-8, and neither it nor the C client goes as deep as Go.
func TestMetaIsReadableInAListing(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for meta, asItIs := range map[string]bool{
		`{"dtype":"<f4"}`:            true,
		`"ü"`:                        true,
		`"` + nested(100) + `"`:      true, // brackets in a string
		`["\"",` + nested(31) + `]`:  true,
		`"\\"`:                       true,
		nested(32):                   true,
		nested(33):                   false,
		nested(2000):                 false,
		`["\"[",` + nested(32) + `]`: false,
		`{"a":` + nested(32) + `}`:   false,
		"\"\xff\"":                   false, // Go's decoder takes it for JSON
		"{\"\xc3\":1}":               false,
		"\xff":                       false,
		"not JSON":                   false,
	} {
		shown := MetaJSON([]byte(meta))
		if !json.Valid(shown) || !utf8.Valid(shown) || depthOf(shown) > mostMetaDepth {
			t.Errorf("%.50q is shown as %.50q", meta, shown)
		}
		var wrapped map[string][]byte
		if asItIs && string(shown) != meta ||
			!asItIs && (json.Unmarshal(shown, &wrapped) != nil || string(wrapped["base64"]) != meta) {
			t.Errorf("%.50q is shown as %.50q, as it is: %v", meta, shown, asItIs)
		}
	}
	if MetaJSON(nil) != nil {
		t.Error("no metadata is shown")
	}
}

func TestParseDevice(t *testing.T) {
	want := Device{0: 0xfa, 15: 0x01}
	for _, good := range []string{"fa000000000000000000000000000001", "GPU-fa000000-0000-0000-0000-000000000001",
		"fa000000-0000-0000-0000-000000000001", "GPU-FA000000000000000000000000000001"} {
		if d, err := ParseDevice(good); err != nil || d != want {
			t.Errorf("%q: %v, %v", good, d, err)
		}
	}
	for _, bad := range []string{"", "GPU-", "fa", strings.Repeat("0", 32), "GPU-" + strings.Repeat("0", 32),
		strings.Repeat("f", 31) + "g", strings.Repeat("f", 33), strings.Repeat("f", 31), "MIG-" + strings.Repeat("f", 32),
		strings.Repeat("-", 32)} {
		if d, err := ParseDevice(bad); !errors.Is(err, ErrInvalid) || !d.IsZero() {
			t.Errorf("%q: %v, %v", bad, d, err)
		}
	}
	if other := (Device{0: 0xfb}); want.Compare(other) >= 0 || other.Compare(want) <= 0 || want.Compare(want) != 0 {
		t.Error("devices have no order")
	}
}

// textOf marshals a value and reads it into to.
func textOf(t *testing.T, from encoding.TextMarshaler, to encoding.TextUnmarshaler) string {
	t.Helper()
	b, err := from.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	if err := to.UnmarshalText(b); err != nil {
		t.Errorf("%q: %v", b, err)
	}
	return string(b)
}

// TestTextIsReadAgain: whatever has a name is read again by it, and what has none is no value.
func TestTextIsReadAgain(t *testing.T) {
	for i := range 4 {
		var class Class
		var state State
		var kind Kind
		names := textOf(t, Class(i), &class) + textOf(t, State(i), &state) + textOf(t, Kind(i), &kind)
		if int(class) != i || int(state) != i || int(kind) != i || !class.Valid() {
			t.Errorf("%s: %d, %d, %d", names, class, state, kind)
		}
	}
	for _, d := range []Device{{}, {3: 7}} {
		got := Device{1: 1} // what was there before is gone
		if textOf(t, d, &got); got != d {
			t.Errorf("%v came back as %v", d, got)
		}
	}
	var id ID
	if textOf(t, ID{5: 9}, &id); id != (ID{5: 9}) {
		t.Errorf("%v", id)
	}
	before := id
	for _, bad := range []encoding.TextUnmarshaler{new(Class), new(State), new(Kind), new(Device), &id} {
		for _, text := range []string{"class(4)", "Named ", "xyz"} {
			if err := bad.UnmarshalText([]byte(text)); !errors.Is(err, ErrInvalid) {
				t.Errorf("%T %q: %v", bad, text, err)
			}
		}
	}
	if id != before {
		t.Errorf("a bad text made %v of %v", id, before)
	}
	if Class(4).Valid() || Class(4).String() != "class(4)" || State(9).String() != "state(9)" {
		t.Errorf("%v, %v", Class(4), State(9))
	}
}

// TestShortOfMemory: waiting helps where memory is short, and not where a number is used up, though that is a quota.
// Both keep that across the wire.
func TestShortOfMemory(t *testing.T) {
	for _, s := range sentinels {
		if s == nil {
			continue
		}
		want := s == ErrFull || s == ErrQuota
		far := FromCode(s.Code(), "text")
		if near := fmt.Errorf("%w: here", s); IsShort(near) != want || IsShort(far) != want {
			t.Errorf("%v: %v here, %v from another process", s, IsShort(near), IsShort(far))
		}
	}
	if far := FromCode(ErrLimit.Code(), ""); !errors.Is(far, ErrQuota) || !errors.Is(far, ErrLimit) ||
		far.Error() != ErrLimit.Error() {
		t.Errorf("%v", far)
	}
	if errors.Is(ErrQuota, ErrLimit) || IsShort(nil) {
		t.Error("a quota is a limit, or nothing is short")
	}
	if got := FromCode(999, "").Error(); got != "internal error (unknown error code 999)" {
		t.Errorf("%q", got)
	}
}

// TestScrubReport: a pass is the sum of its steps, lists so many damages, and counts every one.
func TestScrubReport(t *testing.T) {
	step := func(damages int) (r ScrubReport) {
		r = ScrubReport{Objects: 1000, MemoryBytes: 1, DiskBytes: 2, New: 3, Unread: 4, Next: "there", TotalBytes: 9}
		for range damages {
			r.Note(Damage{Where: "disk"})
		}
		return r
	}
	var all ScrubReport
	for i, n := range []int{200, 56, 1, 300} {
		all.Add(step(n))
		if all.Objects != 1000*(i+1) || all.MemoryBytes != uint64(i+1) || all.DiskBytes != 2*uint64(i+1) ||
			all.New != 3*(i+1) || all.Unread != 4*(i+1) {
			t.Errorf("after %d steps: %+v", i+1, all)
		}
	}
	if all.Damages() != 557 || len(all.Damaged) != mostDamages || all.More != 557-mostDamages {
		t.Errorf("%d damages, %d listed, %d more", all.Damages(), len(all.Damaged), all.More)
	}
	if all.Add(ScrubReport{}); all.Next != "" || all.TotalBytes != 0 {
		t.Errorf("after the last step: %+v", all.Next)
	}
}
