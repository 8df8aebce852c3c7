package graphs

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/transfer"
)

// fakeBuffer counts its references.
type fakeBuffer struct {
	id   uint64
	refs int
}

func (b *fakeBuffer) Number() uint64 { return b.id }
func (b *fakeBuffer) LetGo()         { b.refs-- }

func (b *fakeBuffer) Retain() bool {
	if b.refs > 0 {
		b.refs++
	}
	return b.refs > 0
}

type fakeLaunch struct {
	kernel  uint64
	changed bool
	gone    int
}

func (l *fakeLaunch) Record() clwire.Message { return &clwire.NDRange{Kernel: l.kernel, Dims: 1} }
func (l *fakeLaunch) LetGo()                 { l.gone++ }

type fakeEvent struct{ pending bool }

func (e *fakeEvent) Pending() bool { return e.pending }

// fakeReplay writes down what it is asked for. It fails at step fail, and its buffers get fresh memory when a command
// uses them while fresh is not 0.
type fakeReplay struct {
	steps []string
	fail  string
	fresh uint64
	event *fakeEvent
	sent  []byte
}

func (r *fakeReplay) step(format string, args ...any) api.Status {
	name := fmt.Sprintf(format, args...)
	r.steps = append(r.steps, name)
	if name == r.fail {
		return cl.OUT_OF_RESOURCES
	}
	return cl.SUCCESS
}

func (r *fakeReplay) Open() api.Status         { return r.step("open") }
func (r *fakeReplay) Run(count int) api.Status { return r.step("run %d", count) }

func (r *fakeReplay) Uses(b Buffer, writes bool) api.Status {
	f := b.(*fakeBuffer)
	status := r.step("use %d %v", f.id, writes)
	if writes {
		f.id += r.fresh
	}
	return status
}

func (r *fakeReplay) Launch(l Launch) (bool, api.Status) {
	f := l.(*fakeLaunch)
	changed := f.changed
	f.changed = false
	return changed, r.step("launch %d", f.kernel)
}

func (r *fakeReplay) Commands(data []byte) api.Status {
	r.sent = data
	return r.step("commands")
}

func (r *fakeReplay) Close(status api.Status) (Event, api.Status) {
	r.steps = append(r.steps, fmt.Sprintf("close %d", status))
	if status != cl.SUCCESS {
		return nil, status
	}
	r.event = &fakeEvent{}
	return r.event, status
}

func wants(t *testing.T, what string, got, want api.Status) {
	t.Helper()
	if got != want {
		t.Errorf("%s: status %d, want %d", what, got, want)
	}
}

func made(t *testing.T, given ...uint64) *Graph[string] {
	t.Helper()
	g, status := New(7, "queue", given)
	wants(t, "New", status, cl.SUCCESS)
	return g
}

// record records a command, and gives its sync point.
func record(t *testing.T, g *Graph[string], call func() api.Status) uint32 {
	t.Helper()
	point, status := g.Record(api.SyncPoints{}, call)
	wants(t, "Record", status, cl.SUCCESS)
	return point
}

func adds(g *Graph[string], m clwire.Message, uses ...Use) func() api.Status {
	return func() api.Status { return g.Add(m, uses) }
}

func (r *fakeReplay) of(t *testing.T, g *Graph[string], status api.Status, steps ...string) {
	t.Helper()
	r.steps = nil
	wants(t, "Enqueue", g.Enqueue(r), status)
	if !slices.Equal(r.steps, steps) {
		t.Errorf("the replay did %q\nwant %q", r.steps, steps)
	}
}

// TestCommandsTravelOnce: commands are sent at the first replay, and again only when one of their records has changed:
// a buffer with fresh memory has another number, a launch says so. A failed replay leaves nothing half sent.
func TestCommandsTravelOnce(t *testing.T) {
	g := made(t)
	from, to := &fakeBuffer{id: 11, refs: 1}, &fakeBuffer{id: 12, refs: 1}
	l := &fakeLaunch{kernel: 20}
	record(t, g, adds(g, &clwire.Copy{Src: 11, Dst: 12, Size: 4}, Use{Buffer: from}, Use{Buffer: to, Writes: true}))
	if point := record(t, g, func() api.Status { return g.AddLaunch(l) }); point != 1 {
		t.Errorf("the second command has sync point %d", point)
	}
	record(t, g, nil) // a barrier is no command
	wants(t, "Finalize", g.Finalize(), cl.SUCCESS)
	uses := []string{"open", "use 11 false", "use 12 true", "launch 20"}
	r := &fakeReplay{}
	for _, fail := range []string{"commands", "launch 20", "use 12 true", "open"} {
		n := slices.Index(append(slices.Clone(uses), "commands"), fail) + 1
		r.fail = fail
		r.of(t, g, cl.OUT_OF_RESOURCES,
			append(append(slices.Clone(uses), "commands")[:n], fmt.Sprintf("close %d", cl.OUT_OF_RESOURCES))...)
	}
	r.fail = ""
	again := append(slices.Clone(uses), "run 2", "close 0")
	whole := append(slices.Clone(uses), "commands", "run 2", "close 0")
	r.of(t, g, cl.SUCCESS, whole...)
	r.of(t, g, cl.SUCCESS, again...)
	l.changed = true
	r.of(t, g, cl.SUCCESS, whole...)
	r.fresh = 100
	r.of(t, g, cl.SUCCESS, whole...)
	want := clwire.AppendRecorded(nil, &clwire.Copy{Src: 11, Dst: 112, Size: 4})
	want = clwire.AppendRecorded(want, l.Record())
	if !bytes.Equal(r.sent, want) {
		t.Errorf("with fresh memory it sent %x\nwant %x", r.sent, want)
	}
	// What failed after the numbers had changed is still sent with the next one.
	r.fail = "launch 20"
	r.of(t, g, cl.OUT_OF_RESOURCES, "open", "use 11 false", "use 112 true", "launch 20", "close -5")
	r.fail, r.fresh = "", 0
	r.of(t, g, cl.SUCCESS, "open", "use 11 false", "use 212 true", "launch 20", "commands", "run 2", "close 0")
}

// TestEachRecordIsRenumbered: whatever record names a buffer names it by its new number.
func TestEachRecordIsRenumbered(t *testing.T) {
	for _, m := range []clwire.Message{
		&clwire.Copy{Src: 1, Dst: 1}, &clwire.CopyRect{Src: 1, Dst: 1}, &clwire.Fill{Buffer: 1, Pattern: []byte{5}},
		&clwire.CopyImage{Src: 1, Dst: 1}, &clwire.CopyImageBuffer{Image: 1, Buffer: 1}, &clwire.FillImage{Image: 1},
	} {
		g, b := made(t), &fakeBuffer{id: 1, refs: 1}
		record(t, g, adds(g, m, Use{Buffer: b, Writes: true}))
		g.Finalize()
		r := &fakeReplay{}
		r.of(t, g, cl.SUCCESS, "open", "use 1 true", "commands", "run 1", "close 0")
		old := r.sent
		b.id = 0x5544332211
		r.of(t, g, cl.SUCCESS, "open", "use 366216421905 true", "commands", "run 1", "close 0")
		number := []byte{0x11, 0x22, 0x33, 0x44, 0x55, 0, 0, 0}
		wanted := bytes.Count(old, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		if n := bytes.Count(r.sent, number); n != wanted || n == 0 {
			t.Errorf("%T names the buffer %d times by its new number, want %d: %x", m, n, wanted, r.sent)
		}
	}
}

// TestStates has the states of the extension, and what each refuses.
func TestStates(t *testing.T) {
	for _, simultaneous := range []uint64{0, cl.COMMAND_BUFFER_SIMULTANEOUS_USE_KHR} {
		g := made(t, cl.COMMAND_BUFFER_FLAGS_KHR, simultaneous, 0)
		r := &fakeReplay{}
		r.of(t, g, cl.INVALID_OPERATION)
		if s := g.State(); s != cl.COMMAND_BUFFER_STATE_RECORDING_KHR {
			t.Errorf("state %d at first", s)
		}
		wants(t, "Finalize", g.Finalize(), cl.SUCCESS)
		wants(t, "Finalize, again", g.Finalize(), cl.INVALID_OPERATION)
		_, status := g.Record(api.SyncPoints{}, nil)
		wants(t, "Record, when final", status, cl.INVALID_OPERATION)
		if s := g.State(); s != cl.COMMAND_BUFFER_STATE_EXECUTABLE_KHR {
			t.Errorf("state %d when final", s)
		}
		r.of(t, g, cl.SUCCESS, "open", "commands", "run 0", "close 0")
		r.event.pending = true
		if s := g.State(); s != cl.COMMAND_BUFFER_STATE_PENDING_KHR {
			t.Errorf("state %d during a replay", s)
		}
		if simultaneous == 0 {
			r.of(t, g, cl.INVALID_OPERATION)
		} else {
			r.of(t, g, cl.SUCCESS, "open", "run 0", "close 0")
		}
	}
}

func TestProperties(t *testing.T) {
	const flags = cl.COMMAND_BUFFER_FLAGS_KHR
	for _, bad := range [][]uint64{{1, 1, 0}, {flags, 2, 0}, {flags, 0, flags, 0, 0}} {
		_, status := New(1, "", bad)
		wants(t, fmt.Sprint(bad), status, cl.INVALID_VALUE)
	}
	for _, good := range [][]uint64{nil, {0}, {flags, 0, 0}, {flags, 1, 0}} {
		if g := made(t, good...); !slices.Equal(g.Given(), good) || g.Refs.Count() != 1 {
			t.Errorf("made with %v, it says %v, and has %d references", good, g.Given(), g.Refs.Count())
		}
	}
}

// TestSyncPoints: a command waits for points that were given out, on no other queue, and is not mutable. A command that
// was refused has none.
func TestSyncPoints(t *testing.T) {
	g := made(t)
	point := record(t, g, nil)
	for want, s := range map[api.Status]api.SyncPoints{
		cl.INVALID_COMMAND_QUEUE:            {Queue: 1},
		cl.INVALID_VALUE:                    {Mutable: true},
		cl.INVALID_SYNC_POINT_WAIT_LIST_KHR: {N: 1},
	} {
		_, status := g.Record(s, nil)
		wants(t, fmt.Sprintf("%+v", s), status, want)
	}
	for _, list := range [][]uint32{{point + 1}, {point, 99}} {
		_, status := g.Record(api.SyncPoints{N: uint32(len(list)), List: list}, nil)
		wants(t, fmt.Sprint(list), status, cl.INVALID_SYNC_POINT_WAIT_LIST_KHR)
	}
	_, status := g.Record(api.SyncPoints{}, func() api.Status { return cl.INVALID_KERNEL })
	wants(t, "a refused call", status, cl.INVALID_KERNEL)
	if next, status := g.Record(api.SyncPoints{N: 1, List: []uint32{point}}, nil); status != cl.SUCCESS ||
		next != point+1 {
		t.Errorf("the next sync point is %d (status %d), want %d", next, status, point+1)
	}
}

// TestReferences: a Graph keeps what its commands name, and lets go of it once. A buffer that was released while it was
// recorded is refused, and so is what does not fit; neither leaves a reference behind.
func TestReferences(t *testing.T) {
	g, known := made(t), 0
	live, released, l := &fakeBuffer{id: 1, refs: 1}, &fakeBuffer{id: 2}, &fakeLaunch{}
	both := []Use{{Buffer: live}, {Buffer: released}}
	_, status := g.Record(api.SyncPoints{}, adds(g, &clwire.Copy{Src: 1, Dst: 2}, both...))
	wants(t, "a released buffer", status, cl.INVALID_MEM_OBJECT)
	large := &clwire.Fill{Buffer: 1, Pattern: make([]byte, transfer.RecordBytes)}
	_, status = g.Record(api.SyncPoints{}, adds(g, large, Use{Buffer: live}))
	wants(t, "a record that is too large", status, cl.OUT_OF_RESOURCES)
	if live.refs != 1 || released.refs != 0 {
		t.Errorf("refused commands hold references: %d and %d", live.refs, released.refs)
	}
	record(t, g, adds(g, &clwire.Copy{Src: 1, Dst: 1}, Use{Buffer: live}, Use{Buffer: live, Writes: true}))
	record(t, g, func() api.Status { return g.AddLaunch(l) })
	if live.refs != 3 {
		t.Errorf("%d references to a buffer that a command names twice", live.refs)
	}
	g.Finalize()
	g.Forget(func() { known++ })
	g.Forget(func() { known++ })
	if live.refs != 1 || l.gone != 1 || known != 0 {
		t.Errorf("forgotten: %d references, the launch was let go %d times, the worker told %d times",
			live.refs, l.gone, known)
	}
}

// TestWorkerHearsOfTheEnd: if the commands were sent, the worker hears that they are not needed.
func TestWorkerHearsOfTheEnd(t *testing.T) {
	g, known := made(t), 0
	g.Finalize()
	(&fakeReplay{}).of(t, g, cl.SUCCESS, "open", "commands", "run 0", "close 0")
	g.Forget(func() { known++ })
	if known != 1 {
		t.Errorf("the worker was told %d times", known)
	}
}

// TestPatternIsTheGraphs: the program may change a fill's pattern after the call.
func TestPatternIsTheGraphs(t *testing.T) {
	g, pattern := made(t), []byte{1, 2, 3, 4}
	record(t, g, adds(g, &clwire.Fill{Buffer: 1, Size: 4, Pattern: pattern}, Use{Buffer: &fakeBuffer{id: 1, refs: 1}}))
	clear(pattern)
	g.Finalize()
	r := &fakeReplay{}
	r.of(t, g, cl.SUCCESS, "open", "use 1 false", "commands", "run 1", "close 0")
	if !bytes.Contains(r.sent, []byte{1, 2, 3, 4}) {
		t.Errorf("the worker got %x", r.sent)
	}
}

// TestManyCommands: there is a bound on how many one command buffer has.
func TestManyCommands(t *testing.T) {
	g := made(t)
	for range clwire.MaxGraphCommands {
		record(t, g, func() api.Status { return g.AddLaunch(&fakeLaunch{}) })
	}
	_, status := g.Record(api.SyncPoints{}, func() api.Status { return g.AddLaunch(&fakeLaunch{}) })
	wants(t, "one more", status, cl.OUT_OF_RESOURCES)
}
