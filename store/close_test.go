package store

import (
	"fmt"
	"os"
	"testing"

	"tendril/store/object"
)

// lateForget is a Devices whose Forget waits until a descriptor is closed; it looks in a way that the race detector
// takes for no order.
type lateForget struct {
	fakeDevices
	link    string
	entered chan struct{}
}

func (f *lateForget) Forget(fd int) {
	was, _ := os.Readlink(f.link)
	close(f.entered)
	for is := was; is == was; is, _ = os.Readlink(f.link) {
	}
	f.fakeDevices.Forget(fd)
}

// TestCloseBesideAnAbort: who gives memory back while the store is closed asks the kernel what is free afterwards, and
// not by a descriptor that is another's by then. The race detector says so.
func TestCloseBesideAnAbort(t *testing.T) {
	f := &lateForget{entered: make(chan struct{})}
	s := newStore(t, Options{Devices: f})
	if s.watch == nil {
		t.Skip("this kernel does not report what is free")
	}
	f.link = fmt.Sprintf("/proc/self/fd/%d", s.watch.FD())
	c := connect(t, s, "a")
	h, err := c.Create(Spec{SizeBytes: 1 << 20, Class: object.Ephemeral, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- c.Abort(h.ID) }()
	<-f.entered
	s.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
