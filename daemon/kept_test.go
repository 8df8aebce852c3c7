package daemon

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// hostile is a client of this test's own that says Forget and keeps the descriptors.
type hostile struct {
	t     *testing.T
	link  *ipc.Dialed
	calls uint64
	kept  []int
}

func newHostile(t *testing.T, socket string) *hostile {
	t.Helper()
	link, err := ipc.Dial(socket, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	h := &hostile{t: t, link: link}
	hello := wire.HelloRequest{Magic: wire.Magic, Lowest: wire.Version, Highest: wire.Version, Program: "hostile"}
	if _, err := h.ask(wire.Hello, &hello); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.free)
	return h
}

func (h *hostile) ask(kind wire.Type, p ipc.Payload) (ipc.Frame, error) {
	h.calls++
	return ask(h.link, h.calls, kind, p)
}

// keep makes objects of size bytes, lets them go and keeps their memory, until it is refused; it gives the refusal.
func (h *hostile) keep(size uint64, most int) error {
	h.t.Helper()
	for range most {
		f, err := h.ask(wire.Create, &wire.CreateRequest{SizeBytes: size, Flags: wire.CreateOwn})
		if err != nil {
			return err
		}
		var m wire.CreateReply
		if err := m.Decode(f.Payload); err != nil || f.NumFDs != 1 {
			h.t.Fatalf("%d descriptors, %v", f.NumFDs, err)
		}
		h.kept = append(h.kept, f.FDs[0])
		_, err = h.ask(wire.Abort, &wire.IDMessage{ID: m.ID})
		if _, e := h.ask(wire.Forget, &wire.Number{N: m.Ref.Segment}); err != nil || e != nil {
			h.t.Fatal(errors.Join(err, e))
		}
	}
	return nil
}

func (h *hostile) free() {
	for _, fd := range h.kept {
		unix.Close(fd)
	}
	h.kept = nil
}

// TestQuotaHoldsAcrossTakeover: who lets memory go and keeps it is charged for it by this daemon, and by the next
// one, until he gives it back.
func TestQuotaHoldsAcrossTakeover(t *testing.T) {
	c := aConfig(t)
	c.CapacityBytes, c.QuotaBytes = 64<<20, 16<<20
	first, up := newDaemon(t, c), make(chan struct{})
	first.OnReady(func() { close(up) })
	ended := make(chan error, 1)
	go func() { ended <- first.Run(context.Background()) }()
	<-up
	h := newHostile(t, c.Socket)
	if err := h.keep(1<<20, 64); !errors.Is(err, object.ErrQuota) || len(h.kept) > 16 || len(h.kept) < 8 {
		t.Errorf("%d MiB were kept before: %v", len(h.kept), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	next, served := takeOver(t, ctx, c)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if kept := next.store.Status().KeptBytes; kept != uint64(len(h.kept))<<20 {
		t.Errorf("%d MiB are kept, %d bytes are charged after the takeover", len(h.kept), kept)
	}
	again := newHostile(t, c.Socket)
	if err := again.keep(4<<20, 3); !errors.Is(err, object.ErrQuota) {
		t.Errorf("after the takeover %d MiB more were kept: %v", 4*len(again.kept), err)
	}
	h.free()
	again.free()
	honest, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "room, for all was given back", func() bool { // a process that just starts has it for a moment
		o, err := honest.Put(context.Background(), make([]byte, 12<<20), client.CreateOptions{})
		if err == nil {
			o.Release()
		} else if !errors.Is(err, object.ErrQuota) {
			t.Fatal(err)
		}
		return err == nil
	})
	honest.Close()
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
