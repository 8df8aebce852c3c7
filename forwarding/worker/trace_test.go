//go:build cgo

package worker

import (
	"os"
	"testing"

	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// tracedClient collects what the worker tells.
func tracedClient(t *testing.T, lanes bool) (*client, *[]clwire.Traced) {
	c := inProcess(t, lanes)
	told := &[]clwire.Traced{}
	c.other = func(h clwire.Header, p []byte) {
		var m clwire.TraceData
		if h.Type != clwire.TypeTraceData {
			t.Errorf("unexpected %v", h.Type)
			return
		}
		c.must(m.Decode(p))
		if m.Lost != 0 {
			t.Errorf("%d commands lost", m.Lost)
		}
		*told = append(*told, m.Commands...)
	}
	c.send(&clwire.TraceOn{})
	return c, told
}

// Every command is told once, with times in the order in which things happen, whether the program wanted its event or
// not.
func TestTraceTellsOfEveryCommand(t *testing.T) {
	for _, lanes := range []bool{false, true} {
		c, told := tracedClient(t, lanes)
		f := newFixture(c, 0)
		k := f.kernel("add")
		b, _ := f.buffer(4096)
		queue := f.newQueue(0)
		const launches = 200
		var last uint64
		for i := range launches {
			cmd := clwire.Cmd{Queue: queue}
			if i%3 == 0 {
				last = f.id()
				cmd.Event = last
			}
			f.send(run1(cmd, k, 64, argMem(0, b), argInt(1, 1)))
		}
		f.send(&clwire.WriteInline{Cmd: clwire.Cmd{Queue: queue}, Buffer: b, Data: []byte("1234")})
		f.send(&clwire.Marker{Cmd: clwire.Cmd{Queue: queue}})
		op := f.id()
		f.send(&clwire.Host{Cmd: clwire.Cmd{Queue: queue}, Op: op})
		f.until("the host's turn", func() bool { _, ok := f.ready[op]; return ok })
		f.send(&clwire.HostDone{Op: op})
		f.call(&clwire.Finish{Queue: queue})
		f.call(&clwire.TraceFlush{})
		if f.ends[last].HasProfile {
			t.Error("the program's events carry times that it did not ask for")
		}
		checkTold(t, *told, queue, launches)
	}
}

func checkTold(t *testing.T, told []clwire.Traced, queue uint64, launches int) {
	t.Helper()
	byNumber := map[uint32]clwire.Traced{}
	for _, c := range told {
		if c.Queue != queue {
			continue
		}
		if _, twice := byNumber[c.Seq]; twice {
			t.Errorf("command %d was told twice", c.Seq)
		}
		byNumber[c.Seq] = c
	}
	if len(byNumber) != launches+3 {
		t.Errorf("%d commands told, not %d", len(byNumber), launches+3)
	}
	for seq, c := range byNumber {
		want := clwire.TypeNDRange
		switch int(seq) - launches {
		case 1:
			want = clwire.TypeWriteInline
		case 2:
			want = clwire.TypeMarker
		case 3:
			want = clwire.TypeHost
		}
		if c.Command != want || c.Status != 0 {
			t.Errorf("command %d is a %v with status %d", seq, c.Command, c.Status)
		}
		if want == clwire.TypeNDRange || want == clwire.TypeWriteInline {
			d := c.Device
			if !c.Profiled || d[0] > d[1] || d[1] > d[2] || d[2] > d[3] || c.Taken > c.Begun || c.Begun > c.Given ||
				c.Given > c.Seen {
				t.Errorf("command %d: %+v", seq, c)
			}
		}
		if want == clwire.TypeHost && (c.Taken > c.Begun || c.Begun > c.Seen || c.Begun == 0) {
			t.Errorf("host operation: %+v", c)
		}
	}
}

// A command that never runs is told as well, so that the numbers of those behind it stay right.
func TestTraceTellsOfWhatNeverRan(t *testing.T) {
	c, told := tracedClient(t, false)
	f := newFixture(c, 0)
	k := f.kernel("empty")
	user := f.id()
	f.send(&clwire.UserEvent{ID: user})
	queue := f.newQueue(0)
	f.send(run1(clwire.Cmd{Queue: queue, Event: f.id(), Wait: []uint64{user}}, k, 1))
	f.send(run1(clwire.Cmd{Queue: queue, Event: f.id()}, k, 1))
	f.send(&clwire.SetUserEvent{ID: user, Status: -7})
	f.call(&clwire.Finish{Queue: queue})
	f.call(&clwire.TraceFlush{})
	status := map[uint32]int32{}
	for _, c := range *told {
		if c.Queue == queue {
			status[c.Seq] = c.Status
		}
	}
	if len(status) != 2 || status[1] != -14 || status[2] != 0 {
		t.Errorf("%v", status)
	}
}

// On one node both sides read one clock: the worker's answer lies between question and answer.
func TestClockSync(t *testing.T) {
	c := inProcess(t, false)
	clock := trace.NewClock()
	for range 3 {
		before := clock.Now()
		r := c.call(&clwire.ClockSync{})
		after := clock.Now()
		var m clwire.ClockReply
		c.must(m.Decode(r.Data))
		const slack = 1000 // ns: two Clocks differ by what reading them takes
		if m.Taken < before-slack || m.Answered < m.Taken || m.Answered > after+slack {
			t.Errorf("%d to %d, asked between %d and %d", m.Taken, m.Answered, before, after)
		}
	}
	c.send(&clwire.TraceOn{})
	if r := c.call(&clwire.ClockSync{}); r.Status != 0 {
		t.Errorf("status %d", r.Status)
	}
}

// On one node the worker appends to the client's buffer, under the client's process and the number it was given.
func TestTraceIntoASharedBuffer(t *testing.T) {
	c := inProcess(t, false)
	c.other = func(h clwire.Header, p []byte) { t.Errorf("unexpected %v", h.Type) }
	buffer, err := trace.Create(1 << 20)
	c.must(err)
	defer buffer.Close()
	c.must(c.link.SendFD(buffer))
	c.send(&clwire.TraceOn{Process: 4711, Worker: 3, Shared: true})
	f := newFixture(c, 0)
	k := f.kernel("empty")
	for range 5 {
		f.send(run1(clwire.Cmd{Queue: f.queue}, k, 1))
	}
	f.call(&clwire.Finish{Queue: f.queue})
	f.call(&clwire.TraceFlush{})
	got, err := trace.Read(buffer)
	c.must(err)
	if len(got.Records) != 10 {
		t.Fatalf("%d records", len(got.Records))
	}
	for i, r := range got.Records {
		want := trace.KindCommand
		if i%2 == 1 {
			want = trace.KindDevice
		}
		if r.Kind != want || r.PID != 4711 || r.Aux != 3 || want == trace.KindCommand && uint32(r.C) != uint32(i/2)+1 {
			t.Errorf("record %d: %+v", i, r)
		}
	}
}

// A flush is answered behind all that ended before it, also what the tracer was telling of by itself just then.
func TestFlushesMissNothing(t *testing.T) {
	c, told := tracedClient(t, false)
	f := newFixture(c, 0)
	k := f.kernel("empty")
	for i := range 300 {
		f.send(run1(clwire.Cmd{Queue: f.queue}, k, 1))
		f.call(&clwire.Finish{Queue: f.queue})
		f.call(&clwire.TraceFlush{})
		if len(*told) != i+1 {
			t.Fatalf("flush %d: told of %d commands", i, len(*told))
		}
	}
}

func TestABufferThatIsNone(t *testing.T) {
	c := inProcess(t, false)
	null, err := os.Open(os.DevNull)
	c.must(err)
	defer null.Close()
	c.must(c.link.SendFD(null))
	c.send(&clwire.TraceOn{Shared: true})
	c.until("the session's end", func() bool { return len(c.faults) > 0 || c.hung })
}
