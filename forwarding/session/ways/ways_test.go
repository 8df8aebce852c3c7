package ways

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/transfer"
)

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7+i>>8) + seed
	}
	return b
}

// lent is the memory that transfers had last: to them it is an address, which keeps nothing from being collected.
var lent struct {
	last [4][]byte
	n    int
}

func lend(b []byte) api.HostPtr {
	lent.last[lent.n%len(lent.last)] = b
	lent.n++
	return api.HostBytes(b)
}

func linear(b *fakeBuffer, write, blocking bool, off uint64, mine []byte) *Transfer {
	n := uint64(len(mine))
	return &Transfer{Buffer: b, Write: write, Blocking: blocking, Device: clwire.Shape{Offset: off, Size: n},
		Host: Linear(lend(mine), n)}
}

// types are the records sent, by name.
func types(sent []clwire.Message) (all string) {
	for _, m := range sent {
		all += fmt.Sprintf("%T ", m)[len("*clwire."):]
	}
	return all
}

// TestEachWay: what is sent for a transfer of each way, and that its bytes are where they belong.
func TestEachWay(t *testing.T) {
	const shared, device, remote = 0, 1, 2
	for _, c := range []struct {
		name            string
		memory          int
		write, blocking bool
		busy            bool
		size            int
		sent            string
	}{
		{"copy now", shared, true, true, false, 5000, ""},
		{"copy now", shared, false, true, false, 5000, ""},
		{"copy now, a small one that does not block", shared, false, false, false, 5000, ""},
		{"copy in turn", shared, false, true, true, 5000, "Marker Host HostDone "},
		{"copy in turn", shared, true, true, true, 5000, "Marker Host HostDone "},
		{"copy later", shared, false, false, true, 100 << 10, "Marker Host HostDone "},
		{"copy later", shared, true, false, true, 100 << 10, "Marker Host HostDone "},
		{"inline", shared, true, false, true, 1000, "Marker WriteInline "},
		{"staged write", shared, true, false, true, 5000, "Marker Transfer "},
		{"staged read", shared, false, false, true, 5000, "Marker Transfer Release "},
		{"inline", device, true, true, false, 1000, "WriteInline "},
		{"inline", device, true, false, true, 1000, "Marker WriteInline "},
		{"chunk read", device, false, true, true, 5000, "Marker Transfer Release Transfer "},
		{"chunks, in turn", device, true, true, true, 9 << 20,
			"Marker Host Transfer Release Transfer Transfer Transfer Release Release Release HostDone "},
		{"inline async", remote, true, true, false, 1000, "WriteInline "},
		{"stream", remote, false, true, false, 5000, "BulkRead "},
		{"stream", remote, false, false, true, 5000, "Marker BulkRead "},
		{"lanes", remote, true, false, false, 1 << 20, "BulkWrite "},
		{"lanes", remote, false, true, true, 1 << 20, "Marker BulkRead "},
	} {
		t.Run(fmt.Sprintf("%s/memory=%d/write=%v", c.name, c.memory, c.write), func(t *testing.T) {
			r := newRig(t, c.memory == shared, c.memory == remote)
			b, mine := r.buffer(c.size+100), pattern(c.size, 3)
			copy(b.data[50:], pattern(c.size, 9))
			want := bytes.Clone(b.data[50 : 50+c.size])
			if c.write {
				want = bytes.Clone(mine)
			}
			if c.busy {
				r.busy()
			}
			r.ok(r.command(cl.COMMAND_READ_BUFFER).CarryOut(linear(b, c.write, c.blocking, 50, mine)))
			if c.busy && c.blocking && r.w.left() > 1 { // of a copy in turn the worker has the end still to hear
				t.Errorf("%d commands are left", r.w.left())
			}
			r.w.finish()
			r.background.Wait()
			if got := types(r.sentSince(0)); got != c.sent {
				t.Errorf("sent %s, want %s", got, c.sent)
			}
			if !bytes.Equal(mine, want) || !bytes.Equal(b.data[50:50+c.size], want) {
				t.Error("other bytes")
			}
		})
	}
}

// TestRandomTransfers compares random transfers of every kind with copies that are done at once.
func TestRandomTransfers(t *testing.T) {
	for _, c := range []struct {
		name            string
		inPlace, remote bool
	}{{"shared", true, false}, {"device", false, false}, {"remote", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 4))
			r := newRig(t, c.inPlace, c.remote)
			const size = 300 << 10
			b, model := r.buffer(size), make([]byte, size)
			img, elements := r.image(64, 16, 4), make([]byte, 64*16*4*4)
			for range 200 {
				if rng.IntN(4) == 0 {
					r.w.finish()
				}
				if !c.inPlace && rng.IntN(4) == 0 {
					r.randomImage(rng, img, elements)
				} else {
					r.randomRange(rng, b, model)
				}
			}
			r.w.finish()
			if !bytes.Equal(b.data, model) || !bytes.Equal(img.data, elements) {
				t.Error("other bytes are in the device's memory")
			}
		})
	}
}

// byHand does a transfer between the model of a buffer's memory and the program's: a write takes mine, a read brings
// to want.
func byHand(b *fakeBuffer, tr *Transfer, model, mine, want []byte) {
	i := uint64(0)
	tr.Host.Runs(0, tr.Host.Size, func(at, n uint64) {
		for done := uint64(0); done < n; {
			part := n - done // in one piece on the device too
			if tr.Device.Rect {
				part = min(part, tr.Device.Region[0]-i%tr.Device.Region[0])
			}
			theirs := model[b.place(&tr.Device, i):][:part]
			if tr.Write {
				copy(theirs, mine[at+done:])
			} else {
				copy(want[at+done:][:part], theirs)
			}
			i, done = i+part, done+part
		}
	})
}

func (r *rig) randomRange(rng *rand.Rand, b *fakeBuffer, model []byte) {
	n := rng.IntN([]int{100, 5000, 70 << 10, 200 << 10}[rng.IntN(4)]) + 1
	off, write, blocking := rng.IntN(len(model)-n+1), rng.IntN(2) == 0, rng.IntN(2) == 0
	mine := pattern(n, byte(rng.Uint32()))
	tr := linear(b, write, blocking, uint64(off), mine)
	if n > 64 && rng.IntN(2) == 0 { // rows, with gaps on the program's side
		region := [3]uint64{8, uint64(n / 32), 1}
		dev := transfer.Box{Origin: [3]uint64{uint64(off), 0, 0}, Row: 16, Slice: 16 * region[1]}
		host := transfer.Box{Row: 24, Slice: 24 * region[1]}
		mine = pattern(int(24*region[1]), 5)
		tr.Device = dev.Shape(region)
		tr.Host = Host{lend(mine), transfer.Side{Size: region[0] * region[1], Rect: true, Box: host,
			Region: region}}
	}
	want := bytes.Clone(mine)
	byHand(b, tr, model, mine, want)
	r.ok(r.command(cl.COMMAND_WRITE_BUFFER).CarryOut(tr))
	if !blocking {
		r.w.finish()
		r.background.Wait()
	}
	if !bytes.Equal(mine, want) {
		r.t.Fatalf("a transfer (write %v, blocking %v) of %d bytes brought others", write, blocking, n)
	}
}

func (r *rig) randomImage(rng *rand.Rand, b *fakeBuffer, model []byte) {
	region := [3]uint64{4 * (1 + rng.Uint64N(64)), 1 + rng.Uint64N(16), 1 + rng.Uint64N(4)}
	shape := clwire.Shape{Rect: true, Region: region}
	host := transfer.Box{Row: region[0] + 12, Slice: (region[0] + 12) * region[1]}
	mine := pattern(int(host.Slice*region[2]), byte(rng.Uint32()))
	tr := &Transfer{Buffer: b, Write: rng.IntN(2) == 0, Blocking: rng.IntN(2) == 0, Device: shape,
		Host: Host{lend(mine), transfer.Side{Size: region[0] * region[1] * region[2], Rect: true, Box: host,
			Region: region, Unit: 4}}}
	want := bytes.Clone(mine)
	byHand(b, tr, model, mine, want)
	r.ok(r.command(cl.COMMAND_WRITE_IMAGE).CarryOut(tr))
	if !tr.Blocking {
		r.w.finish()
		r.background.Wait()
	}
	if !bytes.Equal(mine, want) {
		r.t.Fatalf("a transfer of an image (write %v, blocking %v) brought other bytes", tr.Write, tr.Blocking)
	}
}

// A blocking transfer's event is let go; one of the program's ends, on this side where the worker never heard of it.
func TestEvents(t *testing.T) {
	r := newRig(t, true, false)
	b, mine := r.buffer(5000), make([]byte, 5000)
	e := newFakeEvent(false)
	c := r.command(cl.COMMAND_READ_BUFFER)
	c.Event, c.Wanted = e, true
	r.ok(c.CarryOut(linear(b, false, true, 0, mine)))
	if e.Status() != 0 || e.id != 0 {
		t.Errorf("the event of a copy has status %d and number %d", e.Status(), e.id)
	}
	timed := newFakeEvent(true)
	c = r.command(cl.COMMAND_READ_BUFFER)
	c.Event, c.Wanted, r.q.state.Timed = timed, true, true
	r.ok(c.CarryOut(linear(b, false, true, 0, mine)))
	if timed.Status() != 0 || timed.id == 0 {
		t.Error("the worker did not stamp the times of a command that may be asked for them")
	}
	r.busy()
	c = r.command(cl.COMMAND_READ_BUFFER)
	r.ok(c.CarryOut(linear(b, false, true, 0, mine)))
	if made := c.Event.(*fakeEvent); made.letGo.Load() != 1 {
		t.Errorf("the event of a blocking command was let go %d times", made.letGo.Load())
	}
}

// A transfer of nothing has its place: none, a marker, or the wait for those before it.
func TestNothing(t *testing.T) {
	r := newRig(t, true, false)
	order := func(blocking bool, e Event) {
		c := r.command(cl.COMMAND_MAP_BUFFER)
		c.Event = e
		r.ok(c.CarryOut(&Transfer{Purpose: transfer.Map, Blocking: blocking}))
	}
	here := newFakeEvent(false)
	order(false, here)
	if here.Status() != 0 || len(r.sentSince(0)) != 0 {
		t.Error("a map of an idle queue was sent")
	}
	r.busy()
	order(false, nil)
	if got := types(r.sentSince(1)); got != "" {
		t.Errorf("sent %s for what nobody can see", got)
	}
	marked := newFakeEvent(false)
	order(false, marked)
	order(true, nil)
	r.w.finish()
	if got := types(r.sentSince(1)); got != "Marker Host HostDone " || marked.Status() != 0 {
		t.Errorf("sent %s", got)
	}
}

// A failure reaches the caller or the event, whatever the way, and leaves the program's memory alone.
func TestFailures(t *testing.T) {
	for _, inPlace := range []bool{true, false} {
		r := newRig(t, inPlace, false)
		b, mine := r.buffer(5000), make([]byte, 5000)
		r.warm(b)
		r.busy()
		r.w.finish()
		before := bytes.Clone(mine)
		for range 2 { // the command before, the read
			r.busy()
		}
		r.w.step()
		e := newFakeEvent(false)
		c := r.command(cl.COMMAND_READ_BUFFER)
		c.Event = e
		r.ok(c.CarryOut(linear(b, false, false, 0, mine)))
		r.w.step()
		r.w.fail = cl.OUT_OF_RESOURCES
		r.w.finish()
		if e.Status() != cl.OUT_OF_RESOURCES || !bytes.Equal(mine, before) {
			t.Errorf("in place %v: status %d", inPlace, e.Status())
		}
	}
	r := newRig(t, false, true)
	b, mine := r.buffer(1<<20), make([]byte, 1<<20)
	r.w.fail = cl.MEM_OBJECT_ALLOCATION_FAILURE
	if status := r.command(cl.COMMAND_READ_BUFFER).CarryOut(linear(b, false, true, 0, mine)); status !=
		cl.MEM_OBJECT_ALLOCATION_FAILURE {
		t.Errorf("a read by lanes: %d", status)
	}
}

// warm opens the staging pool.
func (r *rig) warm(b *fakeBuffer) {
	r.t.Helper()
	if r.Staged() {
		r.ok(r.MoveNow(b, false, clwire.Shape{Size: 1}, Linear(lend(make([]byte, 1)), 1)))
	}
}

// TestGone: of a buffer that another thread has released meanwhile a way of several records sends none.
func TestGone(t *testing.T) {
	for _, c := range []struct {
		name                           string
		write, blocking, busy, isShown bool
		size                           int
	}{
		{"read in pieces", false, true, true, false, 1 << 20}, {"write in pieces", true, true, true, false, 1 << 20},
		{"chunks", false, true, false, false, 1 << 20}, {"chunks, in turn", true, true, true, false, 9 << 20},
		{"chunks, later", false, false, true, false, 9 << 20}, {"map", false, true, true, true, 5000},
		{"map at once", false, true, false, true, 5000}, {"map, in turn", false, true, true, true, 9 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, false, false)
			b := r.buffer(c.size)
			r.warm(b)
			if c.busy {
				r.busy()
			}
			b.gone = true
			before := len(r.sentSince(0))
			tr := linear(b, c.write, c.blocking, 0, make([]byte, c.size))
			if c.isShown {
				tr.Purpose, tr.Shown = transfer.Map, b
			}
			status := r.command(cl.COMMAND_READ_BUFFER).CarryOut(tr)
			if sent := types(r.sentSince(before)); status != cl.INVALID_MEM_OBJECT || sent != "" {
				t.Errorf("status %d, sent %s", status, sent)
			}
		})
	}
}

// What a buffer or the memory refuses is said, or goes another way, and nothing stays behind.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name            string
		inPlace, remote bool
		write, blocking bool
		size            int
	}{
		{"inline", false, false, true, true, 100}, {"async", false, true, true, true, 100},
		{"lanes", false, true, false, true, 1 << 20}, {"staged read", true, false, false, false, 5000},
		{"staged read", false, false, false, false, 5000}, {"chunks", false, false, true, true, 9 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.inPlace, c.remote)
			b := r.buffer(c.size)
			r.warm(b)
			r.busy()
			b.refuse = cl.MEM_OBJECT_ALLOCATION_FAILURE
			mine := make([]byte, c.size)
			status := r.command(cl.COMMAND_READ_BUFFER).CarryOut(linear(b, c.write, c.blocking, 0, mine))
			if status != cl.MEM_OBJECT_ALLOCATION_FAILURE {
				t.Errorf("status %d", status)
			}
			b.refuse = cl.SUCCESS
		})
	}
	t.Run("no staging memory", func(t *testing.T) {
		r := newRig(t, true, false)
		r.source.left = 0
		for _, write := range []bool{true, false} {
			b, mine := r.buffer(5000), pattern(5000, 1)
			r.busy()
			r.ok(r.command(cl.COMMAND_READ_BUFFER).CarryOut(linear(b, write, false, 0, mine)))
			r.w.finish()
			r.background.Wait()
			if !bytes.Equal(b.data, mine) {
				t.Error("other bytes")
			}
		}
	})
	t.Run("a segment that cannot be shared", func(t *testing.T) {
		r := newRig(t, true, false)
		r.w.refuse = true
		b, mine := r.buffer(5000), pattern(5000, 1)
		r.busy()
		r.ok(r.command(cl.COMMAND_WRITE_BUFFER).CarryOut(linear(b, true, false, 0, mine)))
		r.w.finish()
		r.background.Wait()
		if !bytes.Equal(b.data, mine) {
			t.Error("other bytes")
		}
		far := newRig(t, false, false)
		far.w.refuse = true
		dev := far.buffer(100)
		if status := far.MoveNow(dev, false, clwire.Shape{Size: 100},
			Linear(lend(make([]byte, 100)), 100)); status != cl.OUT_OF_RESOURCES {
			t.Errorf("a move through memory that the worker does not have: %d", status)
		}
	})
}

// Staged reads have a bound; beyond it reads go another way, and all bring their bytes.
func TestManyStagedReads(t *testing.T) {
	r := newRig(t, true, false)
	const size, count = 60 << 10, maxStagedReadBytes/(60<<10) + 10
	b := r.buffer(size)
	copy(b.data, pattern(size, 6))
	r.busy()
	all := make([][]byte, count)
	for i := range all {
		all[i] = make([]byte, size)
		r.ok(r.command(cl.COMMAND_READ_BUFFER).CarryOut(linear(b, false, false, 0, all[i])))
	}
	if n := r.StagedBytes(); n > maxStagedReadBytes || n < maxStagedReadBytes-size {
		t.Errorf("%d bytes are under way", n)
	}
	r.w.finish()
	r.background.Wait()
	for i := range all {
		if !bytes.Equal(all[i], b.data) {
			t.Fatalf("read %d brought other bytes", i)
		}
	}
}

// TestLostWorker: a worker that dies ends every transfer, and lets go of the program's memory before their events end.
func TestLostWorker(t *testing.T) {
	for _, c := range []struct {
		name            string
		inPlace, remote bool
		size            int
	}{
		{"copy later", true, false, 100 << 10}, {"staged read", true, false, 5000}, {"lanes", false, true, 1 << 20},
		{"staged read out of place", false, false, 5000},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.inPlace, c.remote)
			b, e := r.buffer(c.size), newFakeEvent(false)
			r.warm(b)
			r.busy()
			cmd := r.command(cl.COMMAND_READ_BUFFER)
			cmd.Event = e
			r.ok(cmd.CarryOut(linear(b, false, false, 0, make([]byte, c.size))))
			r.w.die()
			r.background.Wait()
			if e.Status() >= 0 {
				t.Errorf("the event has status %d", e.Status())
			}
			cmd = r.command(cl.COMMAND_READ_BUFFER)
			for _, blocking := range []bool{true, false} {
				if status := cmd.CarryOut(linear(b, false, blocking, 0, make([]byte, c.size))); !c.inPlace &&
					status == cl.SUCCESS {
					t.Error("a transfer of a dead worker's went well")
				}
			}
		})
	}
}

// TestMaps: a map shows the device's bytes, an unmap brings the program's, by whichever way.
func TestMaps(t *testing.T) {
	for _, shared := range []bool{true, false} {
		r := newRig(t, false, false)
		const size = 300 << 10
		b, shown := r.buffer(size), make([]byte, size)
		copy(b.data, pattern(size, 1))
		var p *memory.Place
		if shared {
			var status api.Status
			p, status = r.Slabs.AllocOwn(size)
			r.ok(status)
			r.ok(r.PinMap(b, p))
			shown = p.Bytes(size)
		}
		show := func(write, blocking bool) {
			tr := linear(b, write, blocking, 0, shown)
			tr.Purpose, tr.Shown = transfer.Map, b
			if shared {
				tr.Shared, tr.SharedAt = p.Segment, p.Offset
			}
			tr.Fetch = func() api.Status {
				return r.MoveNow(b, write, tr.Device, tr.Host)
			}
			r.ok(r.command(cl.COMMAND_MAP_BUFFER).CarryOut(tr))
		}
		for _, blocking := range []bool{true, false} {
			r.busy()
			show(false, blocking)
			r.w.finish()
			r.background.Wait()
			if !bytes.Equal(shown, b.data) {
				t.Errorf("shared %v: a map shows other bytes", shared)
			}
			copy(shown, pattern(size, 77))
			show(true, false)
			r.w.finish()
			r.background.Wait()
			if !bytes.Equal(b.data, pattern(size, 77)) {
				t.Errorf("shared %v: an unmap brought other bytes", shared)
			}
			copy(b.data, pattern(size, 2))
		}
		// an unmap takes what a read before it is still to bring
		other := r.buffer(5000)
		r.warm(other)
		copy(other.data, pattern(5000, 9))
		r.busy()
		r.ok(r.command(cl.COMMAND_READ_BUFFER).CarryOut(linear(other, false, false, 0, shown[:5000])))
		from := len(r.sentSince(0))
		show(true, false)
		if sent := types(r.sentSince(from)); sent != "Host " { // in its turn, this side takes the bytes when they are there
			t.Errorf("shared %v: an unmap of what is still being read sends %s", shared, sent)
		}
		r.w.finish()
		r.background.Wait()
		if !bytes.Equal(b.data[:5000], other.data) {
			t.Errorf("shared %v: an unmap did not wait for a read into what it takes", shared)
		}
	}
}

// TestStagedMaps: a blocking map of a driver's memory behind other commands is one record, and so is an unmap; of an
// image the rows are where the map shows them.
func TestStagedMaps(t *testing.T) {
	r := newRig(t, false, false)
	b, img := r.buffer(5000), r.image(16, 4, 2)
	r.warm(b)
	copy(b.data, pattern(5000, 1))
	copy(img.data, pattern(len(img.data), 2))
	shown, rows := make([]byte, 5000), make([]byte, 100*10*3)
	plane := Host{lend(rows), transfer.Side{Size: 40 * 3 * 2, Rect: true, Region: [3]uint64{40, 3, 2}, Unit: 4,
		Box: transfer.Box{Origin: [3]uint64{8, 1, 0}, Row: 100, Slice: 1000}}}
	show := func(write bool) {
		of := linear(b, write, !write, 0, shown)
		image := &Transfer{Buffer: img, Write: write, Blocking: !write, Host: plane,
			Device: clwire.Shape{Rect: true, Origin: [3]uint64{4, 1, 0}, Region: plane.Region}}
		for _, tr := range []*Transfer{of, image} {
			tr.Purpose, tr.Shown = transfer.Map, tr.Buffer
			r.busy()
			from := len(r.sentSince(0))
			r.ok(r.command(cl.COMMAND_MAP_BUFFER).CarryOut(tr))
			if sent := types(r.sentSince(from)); sent != "Transfer " {
				t.Errorf("unmap %v: sent %s", write, sent)
			}
		}
		r.w.finish()
	}
	show(false)
	element := func(x, y, z int) ([]byte, []byte) { // in the image; where the map shows it
		return img.data[(z*4+y)*64+4*x:][:4], rows[z*1000+y*100+4*(x+1):][:4]
	}
	if there, seen := element(1, 1, 0); !bytes.Equal(shown, b.data) || !bytes.Equal(there, seen) {
		t.Error("maps show other bytes")
	}
	for i := range shown {
		shown[i] ^= 0xFF
	}
	for i := range rows {
		rows[i] ^= 0xFF
	}
	show(true)
	for z := range 2 {
		for y := 1; y < 4; y++ {
			for x := 1; x < 11; x++ {
				if there, seen := element(x, y, z); !bytes.Equal(there, seen) || !bytes.Equal(shown, b.data) {
					t.Fatalf("unmaps brought other bytes at %d, %d, %d", x, y, z)
				}
			}
		}
	}
}

// TestDirect: the device copies by itself from and to memory that a map shows, unless that lies elsewhere in part, is
// little, or is still to be read.
func TestDirect(t *testing.T) {
	const size = 1 << 20
	for _, c := range []struct {
		name            string
		write, blocking bool
		at, n           uint64 // in the view, which begins at size/2 and is of size/2 bytes
		reading         bool   // a read is under way to the memory
		direct          bool
	}{
		{"write", true, true, size / 2, size / 2, false, true},
		{"write, not waited for", true, false, size/2 + 100, transfer.DirectBytes, false, true},
		{"read", false, true, size / 2, size / 2, false, true},
		{"read, not waited for", false, false, size - transfer.DirectBytes, transfer.DirectBytes, false, true},
		{"read into what is being read", false, false, size / 2, size / 2, true, false},
		{"blocking read into what is being read", false, true, size / 2, size / 2, true, false},
		{"write of what is being read", true, false, size / 2, size / 2, true, false},
		{"little", true, true, size / 2, transfer.DirectBytes - 1, false, false},
		{"before the view", true, true, size/2 - 1, size / 4, false, false},
		{"beyond the view", false, true, size/2 + 1, size / 2, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, false, false)
			p, status := r.Slabs.AllocOwn(size + 1)
			r.ok(status)
			view := *p
			view.Offset += size / 2
			r.Views.Add(&view, size/2)
			b, program := r.buffer(int(c.n)), p.Bytes(size + 1)[c.at:][:c.n]
			r.warm(b)
			copy(b.data, pattern(int(c.n), 1))
			copy(program, pattern(int(c.n), 2))
			if c.reading {
				other := r.buffer(int(c.n))
				copy(other.data, pattern(int(c.n), 3))
				r.busy()
				r.ok(r.command(cl.COMMAND_READ_BUFFER).CarryOut(linear(other, false, false, 0, program)))
			}
			from := len(r.sentSince(0))
			r.ok(r.command(cl.COMMAND_READ_BUFFER).CarryOut(linear(b, c.write, c.blocking, 0, program)))
			r.w.finish()
			r.background.Wait()
			direct := slices.ContainsFunc(r.sentSince(from), func(m clwire.Message) bool {
				x, ok := m.(*clwire.Transfer)
				return ok && x.Segment == p.Segment.ID && x.SegmentOffset == c.at && x.Size == c.n
			})
			if direct != c.direct {
				t.Errorf("direct: %v, want %v", direct, c.direct)
			}
			want := byte(1)
			switch {
			case c.write && c.reading:
				want = 3
			case c.write:
				want = 2
			}
			if !bytes.Equal(b.data, pattern(int(c.n), want)) || !bytes.Equal(program, b.data) {
				t.Error("other bytes")
			}
			r.Views.Remove(&view)
		})
	}
}

// TestMoves: moves of this side's own, of ranges and of images, larger than all chunks.
func TestMoves(t *testing.T) {
	for _, kind := range []string{"shared", "device", "remote"} {
		r := newRig(t, kind == "shared", kind == "remote")
		const size = 7*memory.ChunkBytes + 5
		b, mine := r.buffer(size), pattern(size, 4)
		shape := clwire.Shape{Size: size}
		r.ok(r.MoveNow(b, true, shape, Linear(lend(mine), size)))
		if !bytes.Equal(b.data, mine) {
			t.Errorf("%s: other bytes went", kind)
		}
		back := make([]byte, size)
		r.ok(r.MoveNow(b, false, shape, Linear(lend(back), size)))
		if !bytes.Equal(back, mine) {
			t.Errorf("%s: other bytes came", kind)
		}
		r.ok(r.MoveNow(b, false, clwire.Shape{}, Linear(lend(nil), 0)))
		if kind == "device" {
			r.w.fail = cl.MEM_OBJECT_ALLOCATION_FAILURE
			if status := r.MoveNow(b, false, shape, Linear(lend(back), size)); status !=
				cl.MEM_OBJECT_ALLOCATION_FAILURE {
				t.Errorf("a piece that failed: %d", status)
			}
		}
	}
	r := newRig(t, false, false)
	img := r.image(16, 4, 2)
	region := [3]uint64{64, 4, 2}
	mine := pattern(64*4*2, 8)
	r.ok(r.MoveNow(img, true, clwire.Shape{Rect: true, Region: region}, Host{lend(mine), transfer.Side{
		Size: 512, Rect: true, Region: region, Box: transfer.Box{Row: 64, Slice: 256}, Unit: 4,
	}}))
	if !bytes.Equal(img.data, mine) {
		t.Error("other bytes went to an image")
	}
}

// A write of what a read is still to bring takes it when its turn comes.
func TestWriteOfWhatIsRead(t *testing.T) {
	for _, kind := range []string{"shared", "device", "remote"} {
		r := newRig(t, kind == "shared", kind == "remote")
		for _, size := range []int{500, 5000, 100 << 10} {
			from, to, via := r.buffer(size), r.buffer(size), make([]byte, size)
			r.warm(from)
			copy(from.data, pattern(size, 5))
			r.busy()
			r.ok(r.command(cl.COMMAND_READ_BUFFER).CarryOut(linear(from, false, false, 0, via)))
			r.ok(r.command(cl.COMMAND_WRITE_BUFFER).CarryOut(linear(to, true, false, 0, via)))
			r.w.finish()
			r.background.Wait()
			if !bytes.Equal(to.data, from.data) {
				t.Errorf("%s, %d bytes: what was there before came", kind, size)
			}
		}
	}
}

// Later runs work in its turn, whether or not somebody has the event.
func TestLater(t *testing.T) {
	r := newRig(t, true, false)
	e, ran := newFakeEvent(false), 0
	r.busy()
	for _, event := range []Event{e, nil} {
		r.ok(r.Later(r.q, event, nil, func() api.Status { ran++; return cl.SUCCESS }))
		if event == nil {
			break
		}
		if ran != 0 {
			t.Error("work ran before its turn")
		}
	}
	r.w.finish()
	r.background.Wait()
	if ran != 2 || e.Status() != 0 || !e.hosted.Load() {
		t.Errorf("work ran %d times, and its event has status %d", ran, e.Status())
	}
	r.w.die()
	status := r.Later(r.q, nil, nil, func() api.Status { ran++; return cl.SUCCESS })
	if status == cl.SUCCESS || ran != 2 {
		t.Errorf("work of a dead worker: status %d, ran %d times", status, ran)
	}
}

// TestAsyncWrites: a blocking write to another machine, or to a driver's own memory, returns at once; a command of
// another queue comes after it; and what would show that it is under way waits for it.
func TestAsyncWrites(t *testing.T) {
	for _, c := range []struct {
		name           string
		remote         bool
		size, commands int
	}{{"far", true, 1000, 1}, {"record", false, 1000, 1}, {"staging memory", false, piecesFrom - 1, 1},
		{"pieces", false, transfer.StagedDeviceBytes, transfer.StagedDeviceBytes / pieceBytes}} {
		t.Run(c.name, func(t *testing.T) { asyncWrites(t, c.remote, c.size, c.commands) })
	}
}

func asyncWrites(t *testing.T, remote bool, size, commands int) {
	r := newRig(t, false, remote)
	b := r.buffer(size)
	if !remote { // the staging pool
		r.ok(r.MoveNow(b, false, clwire.Shape{Size: 1}, Linear(lend(make([]byte, 1)), 1)))
	}
	write := func(seed byte) {
		r.ok(r.command(cl.COMMAND_WRITE_BUFFER).CarryOut(linear(b, true, true, 0, pattern(size, seed))))
	}
	write(1)
	if b.data[0] != 0 || r.w.left() != commands {
		t.Error("the write was waited for")
	}
	if wait, _, status := r.AsyncWrites.Before(r.q, nil); len(wait) != 0 || status != cl.SUCCESS {
		t.Error("its own queue waits for it")
	}
	for range 2 { // one fence is enough
		wait, _, status := r.AsyncWrites.Before(&fakeQueue{w: r.w}, []uint64{7})
		if r.ok(status); len(wait) != 2 || r.w.left() != commands+1 {
			t.Errorf("another queue waits for %d, and %d commands are under way", wait, r.w.left())
		}
	}
	r.AsyncWrites.UserEventMade()
	if r.w.left() != 0 || !bytes.Equal(b.data, pattern(size, 1)) {
		t.Error("a write is under way, and the program could see it")
	}
	write(2)
	if r.w.left() != 0 || r.AsyncWrites.UserEvents() != 1 {
		t.Error("a write was not waited for while a user event was open")
	}
	r.AsyncWrites.UserEventEnded()
	r.q.watched = true
	if write(3); r.w.left() != 0 {
		t.Error("a write was not waited for while an event shows how far the queue is")
	}
	r.q.watched = false
	write(4)
	r.AsyncWrites.MakeVisible(r.q, func() {})
	if r.w.left() != 0 {
		t.Error("a queue ends, and a write is under way")
	}
	write(5)
	r.w.die()
	if wait, _, status := r.AsyncWrites.Before(&fakeQueue{w: r.w}, nil); len(wait) != 0 || status != cl.SUCCESS {
		t.Errorf("a dead worker's write is waited for: %d", status)
	}
	r.AsyncWrites.MakeVisible(nil, func() {})
}

// TestAsyncWritesOfSeveralQueues: a queue comes after the writes of all others, not after its own.
func TestAsyncWritesOfSeveralQueues(t *testing.T) {
	r := newRig(t, false, true)
	others := []*fakeQueue{{w: r.w}, {w: r.w}}
	write := func(q Queue) {
		c := r.command(cl.COMMAND_WRITE_BUFFER)
		c.Queue = q
		r.ok(c.CarryOut(linear(r.buffer(100), true, true, 0, pattern(100, 1))))
	}
	want := func(when string, q Queue, waits int) {
		t.Helper()
		wait, _, status := r.AsyncWrites.Before(q, nil)
		if r.ok(status); len(wait) != waits {
			t.Errorf("%s: a queue waits for %d writes, want %d", when, len(wait), waits)
		}
	}
	want("none has written", r.q, 0)
	write(r.q)
	want("one has written: itself", r.q, 0)
	want("one has written", others[0], 1)
	write(r.q)
	want("a fence stands behind an earlier write", others[0], 1)
	write(others[0])
	want("two have written: one of them", r.q, 1)
	want("two have written: the other", others[0], 1)
	want("two have written", others[1], 2)
	r.AsyncWrites.MakeVisible(nil, func() {})
	want("none is left", others[1], 0)
}

// calledQueue says which functions called it.
type calledQueue struct {
	*fakeQueue
	callers []string
}

func (q *calledQueue) SubmitInline(buffer, offset uint64, data []byte, e Event, wait []uint64) api.Status {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		_, name, _ := strings.Cut(f.Function, "ways.")
		if q.callers = append(q.callers, name); !more || name == "(*Command).CarryOut" {
			break
		}
	}
	return q.fakeQueue.SubmitInline(buffer, offset, data, e, wait)
}

// TestSmallWriteGoesStraight: each call that is nested deeper than a processor keeps in mind costs 10 ns at its return,
// and a call of the program's has ten others around it.
func TestSmallWriteGoesStraight(t *testing.T) {
	r := newRig(t, false, true)
	for blocking, want := range map[bool]string{true: "inlineAsync", false: "inline"} {
		q := &calledQueue{fakeQueue: r.q}
		c := r.command(cl.COMMAND_WRITE_BUFFER)
		c.Queue = q
		r.ok(c.CarryOut(linear(r.buffer(4), true, blocking, 0, pattern(4, 1))))
		if got := strings.Join(q.callers, " "); got != "(*Command)."+want+" (*Command).CarryOut" {
			t.Errorf("blocking %v: a write passes through %s", blocking, got)
		}
	}
}

// TestCopyNowAllocatesNothing: a transfer in shared memory that waits for nothing is a copy and nothing else.
func TestCopyNowAllocatesNothing(t *testing.T) {
	r := newRig(t, true, false)
	b, mine := r.buffer(4096), make([]byte, 4096)
	if n := testing.AllocsPerRun(1000, func() {
		c := Command{Context: r.Context, Queue: r.q}
		tr := Transfer{Buffer: b, Blocking: true, Device: clwire.Shape{Size: 4096},
			Host: Linear(lend(mine), 4096)}
		r.ok(c.CarryOut(&tr))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestFencesStayUntilCommandsAreSent: the worker has a fence as long as a command that names it, of another thread, may
// not have been sent. Without it the command would end the session.
func TestFencesStayUntilCommandsAreSent(t *testing.T) {
	r := newRig(t, false, true)
	b := r.buffer(64)
	write := func() {
		r.ok(r.command(cl.COMMAND_WRITE_BUFFER).CarryOut(linear(b, true, true, 0, pattern(64, 1))))
	}
	write()
	_, named, status := r.AsyncWrites.Before(&fakeQueue{w: r.w}, nil)
	if r.ok(status); !named {
		t.Fatal("no fence is named")
	}
	fence := r.AsyncWrites.list[0].fence.(*fakeEvent)
	write()
	if n := fence.letGo.Load(); n != 0 {
		t.Errorf("the fence was let go %d times while a command that names it was not sent", n)
	}
	r.AsyncWrites.Sent()
	if n := fence.letGo.Load(); n != 1 {
		t.Errorf("the fence was let go %d times", n)
	}
}
