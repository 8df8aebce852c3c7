package conn

import (
	"testing"

	"tendril/forwarding/clwire"
)

// TestFitsInline: few large transfers go inline at once, and others take the lanes until something comes back.
func TestFitsInline(t *testing.T) {
	c := New(Options{})
	c.bulk = newBulk(c)
	for range 2 {
		rode := 0
		for range 100 {
			if !c.FitsInline(alwaysInline) {
				t.Fatal("a small one does not ride")
			}
			if c.FitsInline(clwire.InlineBytes) {
				rode++
			}
		}
		if rode*clwire.InlineBytes != mostInFlight {
			t.Errorf("%d of %d bytes ride at once, not %d bytes", rode, clwire.InlineBytes, mostInFlight)
		}
		if c.dispatch(clwire.Header{Type: clwire.TypePad}, nil) == nil {
			t.Error("padding was taken for a record")
		}
	}
	if c.FitsInline(clwire.InlineBytes + 1) {
		t.Error("more than a record holds rides")
	}
	if local := New(Options{}); local.FitsInline(clwire.InlineBytes) {
		t.Error("much rides in a ring")
	}
}
