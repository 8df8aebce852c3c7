package session

import (
	"testing"

	"tendril/forwarding/clwire"
)

// TestCarries: few large transfers ride at once, and others take the lanes until something comes back.
func TestCarries(t *testing.T) {
	w := &worker{d: &Driver{}, bulk: &bulk{}}
	for range 2 {
		rode := 0
		for range 100 {
			if !w.carries(alwaysRides) {
				t.Fatal("a small one does not ride")
			}
			if w.carries(clwire.InlineBytes) {
				rode++
			}
		}
		if rode*clwire.InlineBytes != rideAhead {
			t.Errorf("%d of %d bytes ride at once, not %d bytes", rode, clwire.InlineBytes, rideAhead)
		}
		if w.dispatch(clwire.Header{Type: clwire.TypePad}, nil) == nil {
			t.Error("padding was taken for a record")
		}
	}
	if w.carries(clwire.InlineBytes + 1) {
		t.Error("more than a record holds rides")
	}
	if local := (&worker{}); local.carries(clwire.InlineBytes) {
		t.Error("much rides in a ring")
	}
}
