package field

import (
	"errors"
	"strings"
	"testing"
)

var errHere = errors.New("here")

// TestReader: fields come in order, and nothing is left.
func TestReader(t *testing.T) {
	b := AppendBytes(AppendText([]byte{1, 0, 2, 0, 0, 0}, "name"), []byte("data"))
	r := Read(append(b, 7, 8, 9))
	if x, y := r.U16("x"), r.U32("y"); x != 1 || y != 2 {
		t.Errorf("numbers %d, %d", x, y)
	}
	if s := r.Take(int(r.U16("length")), "name"); string(s) != "name" {
		t.Errorf("text %q", s)
	}
	if p := r.Take(int(r.U32("length")), "data"); string(p) != "data" {
		t.Errorf("bytes %q", p)
	}
	if p := r.Elements(1, 1, 2, "list"); string(p) != "\x07\x08" || r.Left() != 1 {
		t.Errorf("list % x", p)
	}
	if !r.Count(1, 1, 1, "count") || string(r.Rest()) != "\x09" || r.Failed() {
		t.Error("the rest")
	}
	if err := r.End(errHere, "Message"); err != nil {
		t.Error(err)
	}
}

// TestFaults: each is named, and after it there are no bytes.
func TestFaults(t *testing.T) {
	for what, fault := range map[string]func(r *Reader){
		"take":     func(r *Reader) { r.Take(9, "take") },
		"negative": func(r *Reader) { r.Take(-1, "negative") },
		"u16":      func(r *Reader) { r.Take(7, ""); r.U16("u16") },
		"u32":      func(r *Reader) { r.Take(7, ""); r.U32("u32") },
		"elements": func(r *Reader) { r.Elements(2, 1, 1, "elements") },
		"least":    func(r *Reader) { r.Count(3, 3, 3, "least") },
		"count":    func(r *Reader) { r.Count(2, 1, 1, "count") },
		"bool":     func(r *Reader) { r.Bool(2, "bool") },
		"bits":     func(r *Reader) { r.Bits(4, 2, "bits") },
		"first":    func(r *Reader) { r.Fail("first"); r.Fail("second") },
	} {
		r := Read([]byte{255, 1, 2, 3, 4, 5, 6, 7})
		fault(&r)
		err := r.End(errHere, "Message")
		if !errors.Is(err, errHere) || !strings.Contains(err.Error(), "Message: bad or missing "+what) {
			t.Errorf("%s: %v", what, err)
		}
		if r.Left() != 0 || r.Take(1, "") != nil || !r.Failed() {
			t.Errorf("%s: bytes after the fault", what)
		}
	}
	r := Read([]byte{1, 2})
	if err := r.End(errHere, "Message"); err == nil || !strings.Contains(err.Error(), "2 bytes too many") {
		t.Errorf("bytes that nobody asked for: %v", err)
	}
}

// TestTextIsCut: a text that has no length on the wire is sent as far as it has one.
func TestTextIsCut(t *testing.T) {
	if b := AppendText(nil, strings.Repeat("x", MaxText+1)); len(b) != 2+MaxText || b[0] != 255 || b[1] != 255 {
		t.Errorf("%d bytes", len(b))
	}
	if Bit(true) != 1 || Bit(false) != 0 {
		t.Error("bits")
	}
}
