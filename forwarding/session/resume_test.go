package session

import (
	"slices"
	"testing"

	"tendril/forwarding/link"
)

// A lane that loses its connection before the resumer knows of it is looked for all the same.
func TestLaneLostBeforeItIsKnown(t *testing.T) {
	r := newResumer(nil, nil)
	lane := &link.Lane{} // without a connection
	r.noteLoss()
	<-r.lost
	if len(r.missing()) > 0 {
		t.Fatal("something is missing where there is nothing")
	}
	r.carry(lane, 1)
	select {
	case <-r.lost:
	default:
		t.Error("nobody is told of a loss that came before")
	}
	if !slices.Equal(r.missing(), []int{1}) {
		t.Errorf("missing: %v", r.missing())
	}
}
