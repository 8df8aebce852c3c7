package conn

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
)

// newTracer makes a tracer and gives its file.
func newTracer(t *testing.T) (*Tracer, *os.File) {
	t.Helper()
	f, err := trace.Create(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	w, err := trace.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return NewTracer(w), f
}

// kinds are how many records of each kind a trace has.
func kinds(t *testing.T, f *os.File) (n map[trace.Kind]int, texts []string) {
	t.Helper()
	c, err := trace.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	n = map[trace.Kind]int{}
	for i := range c.Records {
		n[c.Records[i].Kind]++
	}
	for _, text := range c.Texts {
		texts = append(texts, text.Text)
	}
	return n, texts
}

// A trace has the worker's name, its trips and records, what the worker tells of its commands, and the comparison of
// the clocks. Its end asks for what is not yet told.
func TestTrace(t *testing.T) {
	tracer, file := newTracer(t)
	r := open(t, func(_ *rig, o *Options) { o.Tracer, o.Limits = tracer, clwire.TimeLimits{} })
	w := r.w()
	w.expect(clwire.TypeTraceOn)
	if r.c.TraceNumber() != 1 || w.files.Load() != 1 {
		t.Errorf("worker %d of the trace, with %d buffers", r.c.TraceNumber(), w.files.Load())
	}
	answer := r.ask(&clwire.Query{})
	w.send(&clwire.TraceData{Lost: 2,
		Commands: []clwire.Traced{{Queue: 3, Seq: 1, Command: clwire.TypeNDRange, Taken: 1, Seen: 2}}})
	w.reply(w.expect(clwire.TypeQuery).Request, success, nil)
	<-answer
	fetched := make(chan struct{})
	go func() { tracer.Fetch(); close(fetched) }()
	w.reply(w.expect(clwire.TypeTraceFlush).Request, success, nil)
	<-fetched
	tracer.Close()
	n, texts := kinds(t, file)
	if n[trace.KindTrip] < 3 || n[trace.KindWire] < 6 || n[trace.KindClock] != 1 {
		t.Errorf("the trace has %v", n)
	}
	for _, want := range []string{"the fake", "same"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no %q in %q", want, texts)
		}
	}
}

// Chunks by the lanes are in the trace, and another machine's clock is compared more often.
func TestTraceOfAnotherMachine(t *testing.T) {
	tracer, file := newTracer(t)
	r, f := openFar(t, false, false, func(_ *fakeFar, o *Options) { o.Tracer = tracer })
	r.w().expect(clwire.TypeTraceOn)
	o, m := &BulkOp{}, &memory{bytes: make([]byte, 1000)}
	r.bulk(o, m)
	r.w().send(&clwire.HostReady{Op: o.ID})
	if err := f.lane(1).Send(clwire.LaneHeader{Op: o.ID, Length: 1000}, pattern(1000, 1), nil); err != nil {
		t.Fatal(err)
	}
	r.is(o, m, success)
	c, err := trace.Read(file) // at once: a program that has its bytes may end
	if err != nil {
		t.Fatal(err)
	}
	if n := len(slices.DeleteFunc(c.Records, func(r trace.Record) bool {
		return r.Kind != trace.KindWire || r.A == 0 || r.Thread != 1000
	})); n != 1 {
		t.Errorf("the read ended, and its trace has %d chunks of it", n)
	}
	n, texts := kinds(t, file)
	if n[trace.KindClock] < firstRounds || !slices.Contains(texts, "the fake, another machine") { // more after a second
		t.Errorf("the trace has %v and %q", n, texts)
	}
	tracer.Close()
	f.cut(0)
	r.lost()
	if len(tracer.alive()) != 0 {
		t.Error("a dead worker is asked for its trace")
	}
}

// Without a trace nothing is traced, and everything may be called.
func TestNoTracer(t *testing.T) {
	tracer := NewTracer(nil)
	if tracer != nil || tracer.Began() != 0 {
		t.Error("somebody traces")
	}
	tracer.Trip(0, trace.CauseOther, 0, "x")
	tracer.Fetch()
	tracer.Close()
	r := open(t)
	r.w().send(&clwire.TraceData{})
	r.quiet()
}

func TestCausesOfRequests(t *testing.T) {
	for _, c := range []struct {
		m    clwire.Message
		want trace.Cause
	}{
		{&clwire.Hello{}, trace.CauseHello}, {&clwire.BuildProgram{}, trace.CauseBuild},
		{&clwire.SetArg{}, trace.CauseArgument},
		{&clwire.Query{}, trace.CauseQuery}, {&clwire.ImageFormats{}, trace.CauseQuery},
		{&clwire.CreateImage{}, trace.CauseCreate},
		{&clwire.CompileProgram{}, trace.CauseBuild}, {&clwire.Files{}, trace.CauseFiles},
		{&clwire.Finish{}, trace.CauseFinish},
		{&clwire.ClockSync{}, trace.CauseClock}, {&clwire.TraceFlush{}, trace.CauseFlush},
		{&clwire.Release{}, trace.CauseOther},
	} {
		if got, _ := causeOf(c.m); got != c.want {
			t.Errorf("%v is waited for because of %v", c.m.Type(), got)
		}
	}
}
