package conn

import (
	"testing"

	"tendril/forwarding/clwire"
)

// A segment is shown to the worker once, and again after it was dropped. Mappings change where both ends can.
func TestSegments(t *testing.T) {
	r := open(t)
	w := r.w()
	f := memfd(t, 4096)
	defer f.Close()
	if _, err := r.c.ProtectSegment(3, f, false); err != nil {
		t.Error(err) // the worker does not know it: nothing to do
	}
	for range 2 {
		for range 3 {
			if err := r.c.AddSegment(3, f, 4096); err != nil {
				t.Fatal(err)
			}
		}
		r.c.DropSegment(3)
		r.c.DropSegment(3)
		w.expect(clwire.TypeAddSegment)
		w.expect(clwire.TypeDropSegment)
	}
	if err := r.c.AddSegment(3, f, 4096); err != nil {
		t.Fatal(err)
	}
	w.expect(clwire.TypeAddSegment)
	for _, want := range []int32{success, -5} {
		status := make(chan int32, 1)
		go func() {
			got, err := r.c.ProtectSegment(3, f, false)
			if err != nil {
				t.Error(err)
			}
			status <- got
		}()
		w.reply(w.expect(clwire.TypeProtectSegment).Request, want, nil)
		if got := <-status; got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	if w.files.Load() != 5 {
		t.Errorf("%d descriptors came", w.files.Load())
	}
	r.quiet()
	w.nothing()
}

func TestWorkerThatCannotProtect(t *testing.T) {
	r := open(t, func(r *rig, _ *Options) {
		r.daemon.hello = func(w *fakeWorker, request uint64) {
			w.reply(request, success, (&clwire.HelloReply{Version: clwire.Version}).Append(nil))
		}
	})
	f := memfd(t, 4096)
	defer f.Close()
	if err := r.c.AddSegment(3, f, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := r.c.ProtectSegment(3, f, false); err != nil {
		t.Error(err)
	}
	r.w().expect(clwire.TypeAddSegment)
	r.quiet()
	r.w().nothing()
}
