package node

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

const aGPU = "000102030405060708090a0b0c0d0e0f"

// gpus has memory of GPUs that is memfds. gone: there is none any more.
type gpus struct{ gone *atomic.Bool }

func (gpus) Available() error { return nil }

func (g gpus) Allocate(_ store.Asker, _ object.Device, bytes uint64) (int, uint64, error) {
	if g.gone.Load() {
		return -1, 0, object.ErrNoDevice
	}
	fd, err := unix.MemfdCreate("gpu", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, 0, err
	}
	real := max((bytes+2<<20-1)/(2<<20), 1) * (2 << 20)
	return fd, real, unix.Ftruncate(fd, int64(real))
}

func (gpus) Copy(_ store.Asker, to, from store.Place, bytes uint64) error {
	b := make([]byte, bytes)
	_, err := unix.Pread(from.FD, b, int64(from.Offset))
	if err == nil {
		_, err = unix.Pwrite(to.FD, b, int64(to.Offset))
	}
	return err
}

func (gpus) Forget(int) {}

// TestPieces: a large object is copied piece by piece, by drafts, into another one and out of it. An object in the
// memory of a GPU is shown to a worker as a copy in host memory. The bytes are the same, and nothing else is left.
func TestPieces(t *testing.T) {
	d, c := start(t)
	s, err := c.AllocSegment(10000, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.Bytes {
		s.Bytes[i] = byte(i % 251)
	}
	host, err := c.PublishSegment(s, 10000, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.UnmapSegment(s)
	whole, err := c.DraftAlone(aGPU, 10000, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for at := uint64(0); at < 10000; at += 4000 {
		part, err := c.DraftObject(3, aGPU, min(4000, 10000-at), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.FillDraft(part, host, at, part.Size); err != nil {
			t.Fatal(err)
		}
		c.DetachObject(part) // the worker has used it
		if err := c.JoinDraft(whole, at, part); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.PublishDraft(whole, "result"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "end of the pieces", func() bool { return d.store.Status().Objects == 2 })
	o, err := c.AttachObject(3, [16]byte{}, "result")
	if err != nil || o.ID != whole.ID || o.Device != aGPU || o.Size != 10000 {
		t.Fatalf("%+v, %v", o, err)
	}
	copied, err := c.AttachCopy(3, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(copied.Bytes) != 10000 || copied.Bytes[9999] != 9999%251 || copied.Bytes[250] != 250 || copied.Device != "" {
		t.Errorf("a copy of %d bytes in the memory of %q, or other bytes", len(copied.Bytes), copied.Device)
	}
	c.DetachObject(copied)
	c.DetachObject(o)
	await.Until(t, "end of the copy", func() bool { return d.store.Status().Objects == 2 })
	if _, err := c.DraftAlone("no UUID", 10000, nil); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("a UUID that is none: %v", err)
	}
	part, err := c.DraftAlone(aGPU, 10, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.FillDraft(part, [16]byte{9}, 0, 10); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("an object that is none: %v", err)
	}
	if err := c.SendDraft(part, 5, []byte("123456")); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("bytes behind its end: %v", err)
	}
	await.Until(t, "end of what was sent", func() bool { return d.store.Status().Objects == 3 })
	if err := errors.Join(c.SendDraft(part, 0, []byte("0123456789")), c.SendDraft(part, 5, []byte("abcde")),
		c.PublishDraft(part, "sent")); err != nil {
		t.Fatal(err)
	}
	if o, err = c.AttachObject(3, [16]byte{}, "sent"); err != nil {
		t.Fatal(err)
	}
	if copied, err = c.AttachCopy(3, o); err != nil || string(copied.Bytes) != "01234abcde" {
		t.Errorf("%+v, %v", copied, err)
	}
	c.DetachObject(copied)
	c.DetachObject(o)
	if part, err = c.DraftAlone(aGPU, 10, nil); err != nil {
		t.Fatal(err)
	}
	c.DropDraft(part)
	await.Until(t, "end of the draft", func() bool { return d.store.Status().OpenObjects == 0 })
}

// TestAttachOfAGPUThatIsGone: an object that made way, and whose GPU is gone, is shown to a worker as a copy in host
// memory, by its id and by its name, as often as it is asked for; nothing is left of it.
func TestAttachOfAGPUThatIsGone(t *testing.T) {
	d, c := start(t)
	made, err := c.DraftAlone(aGPU, 10, nil)
	if err == nil {
		err = errors.Join(c.SendDraft(made, 0, []byte("0123456789")), c.PublishDraft(made, "result"))
	}
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := object.ParseDevice(aGPU)
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "an object that made way", func() bool { return d.store.LeaveOnDevice("lab", gpu, 0) == 0 })
	d.gone.Store(true)
	for _, x := range []struct {
		id   [16]byte
		name string
	}{{made.ID, ""}, {[16]byte{}, "result"}, {made.ID, ""}} {
		o, err := c.AttachObject(3, x.id, x.name)
		if err != nil {
			t.Fatalf("%+v: %v", x, err)
		}
		if string(o.Bytes) != "0123456789" || o.Device != "" || o.Copied != (x.name == "") {
			t.Errorf("%+v: %+v", x, o)
		}
		c.DetachObject(o)
	}
	await.Until(t, "end of the copies", func() bool { return d.store.Status().Objects == 1 })
	d.gone.Store(false)
	o, err := c.AttachObject(3, made.ID, "")
	if err != nil || o.Device != aGPU || o.Copied {
		t.Fatalf("the GPU is there again: %+v, %v", o, err)
	}
	c.DetachObject(o)
}

// TestDraft: an unsealed object in the memory of a GPU becomes one that others find, or goes.
func TestDraft(t *testing.T) {
	d, c := start(t)
	o, err := c.DraftObject(3, aGPU, 1000, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if o.Device != aGPU || !o.Draft || o.Size != 1000 || o.Segment&clwire.AttachedDevice == 0 {
		t.Errorf("%+v", o)
	}
	seen, err := c.AttachObject(3, o.ID, "")
	if err != nil || !seen.Draft || seen.Bytes != nil {
		t.Fatalf("a draft of this session's own: %+v, %v", seen, err)
	}
	c.DetachObject(seen)
	if err := c.PublishDraft(o, "result"); err != nil {
		t.Fatal(err)
	}
	named, err := c.AttachObject(3, [16]byte{}, "result")
	if err != nil || named.ID != o.ID || named.Draft || named.Device == "" {
		t.Fatalf("%+v, %v", named, err)
	}
	c.DetachObject(named)
	c.DetachObject(o) // the worker has used it
	await.Until(t, "end of the references", func() bool { return d.store.Status().References == 0 })

	held, err := c.DraftObject(3, aGPU, 1000, nil)
	if err == nil {
		err = c.PublishDraft(held, "")
		c.DetachObject(held)
	}
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "one reference to what has no name", func() bool { return d.store.Status().References == 1 })
	dropped, err := c.DraftObject(3, aGPU, 1000, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.DetachObject(dropped)
	c.DropDraft(dropped)
	await.Until(t, "end of the draft", func() bool { return d.store.Status().OpenObjects == 0 })
}

// TestDraftFails: what cannot be shown to its worker is not left behind.
func TestDraftFails(t *testing.T) {
	d, c := start(t)
	if _, err := c.DraftObject(3, "no UUID", 1000, nil); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("a UUID that is none: %v", err)
	}
	if _, err := c.DraftObject(4, aGPU, 1000, nil); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a worker that is none: %v", err)
	}
	await.Until(t, "end of the drafts", func() bool { return d.store.Status().OpenObjects == 0 })
}

// TestOthersWithoutACluster: a daemon that is in no cluster says so.
func TestOthersWithoutACluster(t *testing.T) {
	_, c := start(t)
	if list, err := c.(*local).Others("program", time.Second); err == nil || list != nil {
		t.Errorf("%v, %v", list, err)
	}
}
