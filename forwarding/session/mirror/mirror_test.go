package mirror

import (
	"slices"
	"testing"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// fake is a buffer and memory under it that count what is moved.
type fake struct {
	pushes, fetches int
	refuse          api.Status
}

func (f *fake) Push() api.Status  { f.pushes++; return f.refuse }
func (f *fake) Fetch() api.Status { f.fetches++; return f.refuse }

// command is one that a test ends.
type command struct{ over, held, awaited bool }

func (c *command) Over() bool { return c.over }
func (c *command) Hold()      { c.held = true }
func (c *command) Await()     { c.awaited, c.over = true, true }

// rig is a mirror under test.
type rig struct {
	*Mirror
	t      *testing.T
	memory fake
	later  []func() api.Status // pushes that wait for their turn
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	r.Mirror = New(&r.memory)
	return r
}

func (r *rig) use(writes bool) *command {
	r.t.Helper()
	c := &command{}
	status := r.Use(c, writes, func(push func() api.Status) api.Status {
		r.later = append(r.later, push)
		return cl.SUCCESS
	})
	if status != cl.SUCCESS || !c.held {
		r.t.Fatalf("use: %d, held %v", status, c.held)
	}
	return c
}

func (r *rig) expect(pushes, later, fetches int) {
	r.t.Helper()
	if r.memory.pushes != pushes || len(r.later) != later || r.memory.fetches != fetches {
		r.t.Errorf("%d pushes, %d in their turn, %d fetches, want %d, %d, %d", r.memory.pushes, len(r.later),
			r.memory.fetches, pushes, later, fetches)
	}
}

// TestPushes: the program's memory is pushed where it may be newer, at once if nothing uses the buffer, else in turn.
func TestPushes(t *testing.T) {
	r := newRig(t)
	first := r.use(false)
	r.expect(1, 0, 0)
	r.use(false) // the program has not been told of an end since
	r.expect(1, 0, 0)
	r.Written()
	second := r.use(false)
	r.expect(1, 1, 0)
	if r.later[0](); r.memory.pushes != 2 {
		t.Error("the push in its turn is none")
	}
	first.over, second.over = true, true
	if r.Quiet() {
		t.Error("a command of three still uses the buffer")
	}
	if r.WaitQuiet(); !r.Quiet() {
		t.Error("every command was waited for")
	}
	r.Sync() // from here on the program may have written
	r.use(false)
	r.expect(3, 1, 0)
}

// TestFetches: what commands wrote is fetched once they are over, or when a map asks for it.
func TestFetches(t *testing.T) {
	r := newRig(t)
	c := r.use(true)
	r.Sync()
	r.expect(1, 0, 0)
	if status := r.Fetch(); status != cl.SUCCESS {
		t.Error(status)
	}
	r.expect(1, 0, 1)
	c.over = true
	r.Sync()
	r.expect(1, 0, 2)
	r.Sync()
	r.expect(1, 0, 2)
}

// TestEnd: the memory is the program's again after the last results; what comes later writes nothing there.
func TestEnd(t *testing.T) {
	r := newRig(t)
	c := r.use(true)
	if r.End() {
		t.Error("a command that writes has not ended")
	}
	if c.over = true; !r.End() {
		t.Error("every command has ended")
	}
	r.expect(1, 0, 1)
	reading := newRig(t)
	if reading.use(false); !reading.End() {
		t.Error("a command that reads keeps the program's memory")
	}
	closed := newRig(t)
	c = closed.use(true)
	closed.Close()
	c.over = true
	closed.Sync()
	closed.Fetch()
	closed.expect(1, 0, 0)
}

// TestRefusedPush: a command whose push fails uses nothing, and the next one pushes again.
func TestRefusedPush(t *testing.T) {
	r := newRig(t)
	r.memory.refuse = cl.OUT_OF_RESOURCES
	c := &command{}
	if status := r.Use(c, true, nil); status != cl.OUT_OF_RESOURCES || c.held || !r.Quiet() {
		t.Errorf("%d, held %v", status, c.held)
	}
	r.memory.refuse = cl.SUCCESS
	r.use(false)
	r.expect(2, 0, 0)
}

// TestList: every mirror of a context is brought up to date, and none that left it.
func TestList(t *testing.T) {
	var l List
	if l.Sync(); !l.Empty() {
		t.Error("a new list has mirrors")
	}
	rigs := []*rig{newRig(t), newRig(t), newRig(t)}
	for _, r := range rigs {
		l.Add(r.Mirror)
		r.use(true).over = true
	}
	l.Drop(rigs[1].Mirror)
	l.Sync()
	for i, fetches := range []int{1, 0, 1} {
		rigs[i].expect(1, 0, fetches)
	}
	for _, r := range slices.Backward(rigs) {
		l.Drop(r.Mirror)
	}
	if !l.Empty() {
		t.Error("mirrors that were dropped are there")
	}
}
