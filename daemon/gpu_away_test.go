package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"tendril/client"
	"tendril/daemon/frontdoor"
	"tendril/forwarding/cuda/fakecuda"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// A GPU has room for two objects. Programs make and use fourteen, which make way for each other and come back by
// whatever asks for them, also while the keeper is killed, and from disk.
func TestAFullGPUsObjectsMakeWay(t *testing.T) {
	const many = 14
	t.Setenv("CUDA_FAKE_BYTES", fmt.Sprint(4<<20))
	c := aConfig(t)
	c.CUDADriver, c.CapacityBytes, c.QuotaBytes, c.PinBytes = fakecuda.Build(t), 16<<20, 16<<20, 8<<20
	d, stop := serve(t, c)
	defer stop()
	conn, gpu := dialGPU(t, c.Socket)
	defer conn.Close()
	text := func(i int) string { return strings.Repeat(fmt.Sprintf("%09d", i), 150_000) }
	for i := range many {
		putOnGPU(t, conn, gpu, text(i), client.CreateOptions{Name: fmt.Sprint(i), Class: object.Named}).Release()
	}
	states := func() (here, away int) {
		list, err := conn.List(context.Background(), "", false)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			if o.Kind == object.CUDA && o.State == object.Spilled {
				away++
			} else if o.Kind == object.CUDA {
				here++
			}
		}
		return here, away
	}
	if here, away := states(); here != 2 || away != many-2 {
		t.Errorf("%d are there, %d made way", here, away)
	}
	await.Until(t, "some are on disk", func() bool { // the last one may still be under way there
		raw, err := d.Status(frontdoor.Peer{Admin: true})
		if err != nil || !strings.Contains(string(raw), `"away_objects":12`) {
			t.Fatalf("%s, %v", raw, err)
		}
		return !strings.Contains(string(raw), `"spilled_objects":0`)
	})
	for i := range many {
		if i == 2 {
			killKeeper(t, d)
		}
		got, err := conn.GetDevice(context.Background(), object.ID{}, fmt.Sprint(i), 0)
		if err != nil {
			t.Fatalf("object %d: %v", i, err)
		}
		if contents(t, &got.Memory, len(text(i))) != text(i) {
			t.Errorf("object %d has other bytes", i)
		}
		got.Release()
	}
	back, err := conn.Create(context.Background(), 18, client.CreateOptions{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range many { // a copy brings it back, too
		if err := conn.CopyObject(context.Background(), back.ID(), 0, object.ID{}, fmt.Sprint(i), 0, 18); err != nil ||
			string(back.Bytes()) != text(i)[:18] {
			t.Errorf("a copy of object %d: %q, %v", i, back.Bytes(), err)
		}
	}
	back.Abort(context.Background())
	held, err := conn.GetDevice(context.Background(), object.ID{}, "0", 0)
	if err != nil {
		t.Fatal(err)
	}
	other, err := conn.GetDevice(context.Background(), object.ID{}, "1", 0)
	if err != nil {
		t.Fatal(err)
	}
	if d.keeper.Status().Starts == 1 { // to the next keeper the fake GPU is empty
		t.Error("the keeper was not killed")
	}
	if _, err := conn.GetDevice(context.Background(), object.ID{}, "none", 0); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("one that is not there: %v", err)
	}
	held.Release()
	other.Release()
}

// Objects that made way, and whose GPU or its driver is gone, are read all the same, from host memory and from disk:
// by who gets them, and by copies. Their memory cannot be mapped.
func TestAwayFromAGPUThatIsGone(t *testing.T) {
	const many = 14
	for what, x := range map[string]struct{ variable, value string }{
		"the GPU":               {"CUDA_FAKE_DEVICES", "1"},
		"a driver that crashes": {"CUDA_FAKE_DIE", "1"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Setenv("CUDA_FAKE_BYTES", fmt.Sprint(4<<20))
			c := aConfig(t)
			c.CUDADriver, c.CapacityBytes, c.QuotaBytes, c.PinBytes = fakecuda.Build(t), 16<<20, 16<<20, 8<<20
			d, stop := serve(t, c)
			defer stop()
			conn, _ := dialGPU(t, c.Socket)
			defer conn.Close()
			bg := context.Background()
			gpu, err := conn.FindGPU(bg, "cuda:1")
			if err != nil {
				t.Fatal(err)
			}
			text := func(i int) string { return strings.Repeat(fmt.Sprintf("%09d", i), 150_000) }
			for i := range many {
				o := client.CreateOptions{Name: fmt.Sprint(i), Class: object.Named}
				putOnGPU(t, conn, gpu, text(i), o).Release()
			}
			t.Setenv(x.variable, x.value)
			killKeeper(t, d)
			size := uint64(len(text(0)))
			back, err := conn.Create(bg, size, client.CreateOptions{Own: true})
			if err != nil {
				t.Fatal(err)
			}
			defer back.Abort(bg)
			for i := range many - 2 { // the last two did not make way
				name := fmt.Sprint(i)
				if i%2 == 0 {
					if err := conn.CopyObject(bg, back.ID(), 0, object.ID{}, name, 0, size); err != nil {
						t.Fatalf("a copy of object %d: %v", i, err)
					}
				} else {
					o, err := conn.GetDevice(bg, object.ID{}, name, 0)
					if err != nil {
						t.Fatalf("object %d: %v", i, err)
					}
					if f := o.Memory.TakeFile(); f != nil || o.Memory.Bytes != 0 || o.Size() != size {
						t.Errorf("object %d has memory: %v, %d bytes", i, f, o.Memory.Bytes)
					}
					if err := conn.CopyObject(bg, back.ID(), 0, o.ID(), "", 0, size); err != nil {
						t.Fatalf("a copy of object %d: %v", i, err)
					}
					o.Release()
				}
				if string(back.Bytes()) != text(i) {
					t.Errorf("object %d has other bytes", i)
				}
			}
		})
	}
}
