//go:build cgo

package worker

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/tools/e2e/await"
)

// The test's driver imports no memory: a buffer of a GPU's memory fails, what names it fails, and the session goes on.
// On a GPU tools/gpucheck/tensors.py reads such a buffer.
func TestMemoryOfAGPUWhereTheDriverImportsNone(t *testing.T) {
	const number uint64 = clwire.AttachedSegment | clwire.AttachedDevice | 7
	fd, err := unix.MemfdCreate("allocation", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	var memory unix.Stat_t
	if err = unix.Fstat(fd, &memory); err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "allocation")
	sent := &attachments{}
	sent.put(&clwire.WorkerAttach{Segment: number, Bytes: 2 << 20, Device: "fafafafafafafafafafafafafafafa00"}, file)
	f := newFixture(inProcessWith(t, false, sent), 0)
	f.send(&clwire.AddSegment{ID: number, Bytes: 100})
	buffer := f.id()
	r := f.call(&clwire.CreateBuffer{ID: buffer, Context: f.context, Flags: cl.MEM_READ_ONLY, Size: 100,
		Segment: number})
	if r.Status != cl.INVALID_OPERATION {
		t.Errorf("status %d", r.Status)
	}
	part := f.call(&clwire.CreateBuffer{ID: f.id(), Context: f.context, Size: 10, Parent: buffer})
	if part.Status != cl.INVALID_OPERATION {
		t.Errorf("a part of it: status %d", part.Status)
	}
	f.send(&clwire.Release{ID: buffer})
	f.send(&clwire.DropSegment{ID: number})
	ordinary := f.call(&clwire.CreateBuffer{ID: f.id(), Context: f.context, Size: 100})
	if ordinary.Status != cl.SUCCESS {
		t.Errorf("an ordinary buffer: status %d", ordinary.Status)
	}
	await.Until(t, "the descriptor is closed", func() bool {
		var now unix.Stat_t // its number may be another file's by now
		return unix.Fstat(fd, &now) != nil || now.Ino != memory.Ino
	})
}
