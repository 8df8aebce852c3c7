package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"tendril/forwarding/trace/tracetest"
)

const (
	ndRange  = 10 // the tests' record types
	bulk     = 11
	hostType = 12
)

func typeName(code uint16) string {
	return map[uint16]string{ndRange: "NDRange", bulk: "BulkWrite", hostType: "Host"}[code]
}

// story writes a program's trace by hand: one thread, one worker whose clock is ahead, one device whose clock is ahead
// of that.
type story struct {
	*Writer
	t             testing.TB
	ahead, device int64 // ns
	worker        uint32
}

func newStory(t testing.TB, ahead, device int64) (*story, *os.File) {
	t.Helper()
	f, path := newBuffer(t, 1<<20)
	s := &story{Writer: newWriter(t, path), t: t, ahead: ahead, device: device, worker: 3}
	s.Text(TextProcess, 0, "program")
	s.Text(TextThread, 1, "main")
	s.Text(TextWorker, uint64(s.worker), "PoCL")
	s.Text(TextQueue, 9, "pthread")
	return s, f
}

// compare notes a comparison of the clocks that took `out` ns there and `back` ns back.
func (s *story) compare(at, out, back int64) {
	taken := at + out + s.ahead
	s.Append(&Record{Kind: KindClock, Time: at, X: at + out + 100 + back, Aux: s.worker, A: uint64(taken),
		B: uint64(taken + 100)})
}

func (s *story) call(name string, start, end int64, object, bytes uint64) {
	s.Append(&Record{Kind: KindCall, Time: start, X: end, Thread: 1, Aux: s.Text(TextFunction, 0, name),
		A: object, B: bytes})
}

// launch notes a kernel whose enqueue took 1 µs from at on, which ran from start to end.
func (s *story) launch(seq uint32, kernel string, at, start, end int64) {
	s.call("clEnqueueNDRangeKernel", at, at+1000, 77, 0)
	s.Append(&Record{Kind: KindSent, Time: at + 500, X: int64(seq), Code: ndRange, Aux: s.worker, A: 77, B: 9,
		Thread: s.Text(TextKernel, 0, kernel)})
	half := WorkerHalf{
		Worker: s.worker, Queue: 9, Seq: seq, Type: ndRange, Profiled: true,
		Taken: at + 2000 + s.ahead, Begun: at + 2100 + s.ahead, Given: at + 2300 + s.ahead, Seen: end + 50 + s.ahead,
		Times: [4]int64{at + 2200 + s.ahead + s.device, at + 2250 + s.ahead + s.device, start + s.ahead + s.device,
			end + s.ahead + s.device},
	}
	half.AppendTo(s.Writer)
}

func (s *story) line(f *os.File, last time.Duration) *Timeline {
	return NewTimeline(read(s.t, f), typeName, last)
}

// checked writes a timeline and reads it back as a viewer does.
func checked(t testing.TB, line *Timeline, most int) (*tracetest.Checked, int, int) {
	t.Helper()
	var out bytes.Buffer
	dropped, err := line.WritePerfetto(&out, most)
	if err != nil {
		t.Fatal(err)
	}
	size := out.Len()
	c, err := tracetest.Check(&out)
	if err != nil {
		t.Fatal(err)
	}
	return c, dropped, size
}

func within(a, b, bound int64) bool { return max(a-b, b-a) <= bound }

// Times of another machine's worker come onto the program's clock, wrong by no more than is said.
func TestOneClock(t *testing.T) {
	for _, c := range []struct{ out, back int64 }{{20e3, 20e3}, {90e3, 10e3}, {5e3, 300e3}} {
		s, f := newStory(t, 7e12, -3e12)
		s.compare(1e9, 400e3, 2e6) // a bad one
		s.compare(1e9+1e6, c.out, c.back)
		s.launch(1, "k", 2e9, 2e9+5e3, 2e9+9e3)
		line := s.line(f, 0)
		w := line.Workers[0]
		if half := (c.out + c.back + 1) / 2; !w.ClockKnown || !within(w.ClockBound, half, 1) {
			t.Errorf("%+v: bound %d, half of the round trip is %d", c, w.ClockBound, half)
		}
		k := line.Commands[0]
		if !within(k.Taken, 2e9+2e3, w.ClockBound) {
			t.Errorf("taken %d ns off, ±%d said", k.Taken-(2e9+2e3), w.ClockBound)
		}
		if bound := w.ClockBound + w.DeviceBounds[0]; !k.OnDevice || !within(k.Start, 2e9+5e3, bound) ||
			k.End-k.Start != 4e3 {
			t.Errorf("started %d ns off, ±%d said; ran %d", k.Start-(2e9+5e3), bound, k.End-k.Start)
		}
	}
}

// A clock that drifts is followed.
func TestDriftingClock(t *testing.T) {
	s, f := newStory(t, 0, 0)
	const ppm = 200
	for sec := int64(1); sec <= 20; sec++ {
		s.ahead = 5e9 + sec*1e9*ppm/1e6
		s.compare(sec*1e9, 10e3, 10e3)
	}
	s.ahead = 5e9 + 105e8*ppm/1e6 // 10.5 s
	s.launch(1, "k", 105e8, 105e8+4e3, 105e8+6e3)
	line := s.line(f, 0)
	if k := line.Commands[0]; !within(k.Taken, 105e8+2e3, line.Workers[0].ClockBound) {
		t.Errorf("%d ns off, ±%d said", k.Taken-(105e8+2e3), line.Workers[0].ClockBound)
	}
}

// On one node there is one clock; without any comparison there are no times of the worker's.
func TestClockOfTheSameNodeAndOfNobody(t *testing.T) {
	s, f := newStory(t, 0, 0)
	s.launch(1, "k", 2e9, 2e9+5e3, 2e9+9e3)
	if line := s.line(f, 0); line.Workers[0].ClockKnown || line.Commands[0].Taken != 0 || line.Unmatched != 1 {
		t.Errorf("%+v, %+v", line.Workers[0], line.Commands[0])
	}
	s.Text(TextClock, uint64(s.worker), "same")
	if line := s.line(f, 0); !line.Workers[0].ClockKnown || line.Workers[0].ClockBound != 0 ||
		line.Commands[0].Taken != 2e9+2e3 || line.Unmatched != 0 {
		t.Errorf("%+v, %+v", line.Workers[0], line.Commands[0])
	}
}

// Commands, waits and calls find each other, and the summary adds them up.
func TestSummaryOfAStory(t *testing.T) {
	s, f := newStory(t, 0, 0)
	s.Text(TextClock, uint64(s.worker), "same")
	s.launch(1, "left", 1e6, 1e6+5e3, 1e6+9e3)
	s.launch(2, "right", 1e6+2e3, 1e6+9e3, 1e6+10e3)
	s.call("clFinish", 1e6+4e3, 1e6+12e3, 77, 0)
	s.Append(&Record{Kind: KindTrip, Time: 1e6 + 5e3, X: 1e6 + 11e3, Code: uint16(CauseFinish), Thread: 1,
		Aux: s.worker, B: 1})
	s.Append(&Record{Kind: KindTrip, Time: 3e6, X: 3e6 + 1e3, Code: uint16(CauseClock), Thread: 1, Aux: s.worker, B: 1})
	s.call("clEnqueueReadBuffer", 2e6, 2e6+4e3, 77, 4096)
	s.Note(s.worker, "without wings")
	line := s.line(f, 0)
	sum := line.Summary()
	if len(sum.Threads) != 1 || sum.Threads[0].Thread != "main" || sum.Threads[0].Waiting != 6e3 ||
		sum.Threads[0].InCalls != 14e3 {
		t.Errorf("threads: %+v", sum.Threads)
	}
	if sum.Calls[0].Name != "clFinish" || sum.Calls[0].Total != 8e3 || sum.Calls[0].Waiting != 6e3 {
		t.Errorf("calls: %+v", sum.Calls)
	}
	if len(sum.Kernels) != 2 || sum.Kernels[0].Name != "left" || sum.Kernels[0].Device != 4e3 ||
		sum.Kernels[1].Device != 1e3 {
		t.Errorf("kernels: %+v", sum.Kernels)
	}
	if sum.TripCount != 1 || len(sum.Trips) != 2 {
		t.Errorf("trips: %d of %+v", sum.TripCount, sum.Trips)
	}
	if want := (TransferTime{"clEnqueueReadBuffer, by the caller", 1, 4096, 4e3, 1.024e9}); len(sum.Transfers) != 1 ||
		sum.Transfers[0] != want {
		t.Errorf("transfers: %+v", sum.Transfers)
	}
	if len(sum.Notes) != 1 || sum.Notes[0] != "without wings" || sum.Unmatched != 0 {
		t.Errorf("%q, %d alone", sum.Notes, sum.Unmatched)
	}
	if call := line.Commands[1].Call; call < 0 || line.Calls[call].Start != 1e6+2e3 {
		t.Errorf("the second launch belongs to call %d", call)
	}
	c, dropped, _ := checked(t, line, 0)
	if c.Arrows != 2 || c.Names["left"] != 2 || c.Names["wait: clFinish"] != 1 || c.Categories["call"] != 4 ||
		dropped != 0 {
		t.Errorf("%+v, %d dropped", c, dropped)
	}
}

// A question that waited for a build of another thread says so; one that came later, or of another worker, does not.
// Each trip has the call that waited.
func TestTripsBehindABuild(t *testing.T) {
	s, f := newStory(t, 0, 0)
	trip := func(cause Cause, thread, worker uint32, start, end int64, detail string) {
		r := Record{Kind: KindTrip, Time: start, X: end, Code: uint16(cause), Thread: thread, Aux: worker, B: 1}
		if detail != "" {
			r.A = uint64(s.Writer.Text(TextDetail, 0, detail))
		}
		s.Append(&r)
	}
	trip(CauseBuild, 9, s.worker, 1e6, 9e6, "-DN=1")
	s.call("clGetProgramInfo", 2e6, 10e6, 77, 0)
	trip(CauseQuery, 1, s.worker, 3e6, 9e6+10, "sizes")
	trip(CauseQuery, 1, s.worker, 9e6+20, 9e6+900, "sizes")
	trip(CauseQuery, 1, s.worker+1, 4e6, 5e6, "sizes")
	sum := s.line(f, 0).Summary()
	behind := map[string]int{}
	for _, x := range sum.Trips {
		if x.Cause == CauseQuery.String() {
			behind[x.Behind] += x.Count
			if x.Call != "clGetProgramInfo" || x.Detail != "sizes" {
				t.Errorf("%+v", x)
			}
		} else if x.Call != "" || x.Behind != "" {
			t.Errorf("%+v", x)
		}
	}
	if behind["a build (-DN=1)"] != 1 || behind[""] != 2 || len(behind) != 2 {
		t.Errorf("%v", behind)
	}
}

// --last keeps the end, --max-size the newest that has room; what stays is a whole trace.
func TestWhatIsOldGoes(t *testing.T) {
	s, f := newStory(t, 0, 0)
	s.Text(TextClock, uint64(s.worker), "same")
	const n = 400
	for i := range int64(n) {
		s.launch(uint32(i+1), "k", 1e9+i*1e7, 1e9+i*1e7+5e3, 1e9+i*1e7+9e3)
	}
	line := s.line(f, time.Second)
	if len(line.Calls) < 100 || len(line.Calls) > 102 || len(line.Commands) < 100 || len(line.Commands) > 102 {
		t.Errorf("the last second of 4 holds %d calls and %d commands of %d", len(line.Calls), len(line.Commands), n)
	}
	checked(t, line, 0)
	all := s.line(f, 0)
	for _, most := range []int{5_000, 20_000, 100_000} {
		c, dropped, size := checked(t, all, most)
		if dropped == 0 || size > most || c.Names["k"] == 0 {
			t.Errorf("at most %d bytes: %d, %d dropped, %+v", most, size, dropped, c)
		}
	}
}

// The check finds what a viewer would show wrong.
func TestCheckFindsFaults(t *testing.T) {
	for name, events := range map[string]string{
		"no JSON":             `{`,
		"time runs backwards": `{"ph":"X","ts":5,"dur":1,"name":"a"},{"ph":"X","ts":4,"dur":1,"name":"b"}`,
		"slices overlap":      `{"ph":"X","ts":1,"dur":5,"name":"a"},{"ph":"X","ts":2,"dur":6,"name":"b"}`,
		"negative slice":      `{"ph":"X","ts":1,"dur":-5,"name":"a"}`,
		"arrow of one end":    `{"ph":"X","ts":1,"dur":5,"name":"a"},{"ph":"s","ts":1,"id":1}`,
		"arrow into nothing":  `{"ph":"X","ts":1,"dur":5,"name":"a"},{"ph":"s","ts":1,"id":1},{"ph":"f","ts":9,"id":1}`,
		"negative counter":    `{"ph":"C","ts":1,"name":"c","args":{"n":-1}}`,
		"unknown event":       `{"ph":"Q","ts":1}`,
	} {
		if _, err := tracetest.Check(bytes.NewReader(fmt.Appendf(nil, `{"traceEvents":[%s]}`, events))); err == nil {
			t.Errorf("%s: not found", name)
		}
	}
	good := `{"traceEvents":[{"ph":"M","name":"process_name"},{"ph":"X","ts":1,"dur":5,"name":"a"},{"ph":"s","ts":1,"id":1},{"ph":"X","ts":2,"dur":4,"name":"b"},{"ph":"f","ts":2,"id":1},{"ph":"C","ts":3,"args":{"n":0}}]}`
	c, err := tracetest.Check(bytes.NewReader([]byte(good)))
	if err != nil || c.Slices != 2 || c.Arrows != 1 || c.Counters != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

// hostile makes a buffer that says it is one, with anything in it.
func hostile(head, textsUsed uint64, texts, slots []byte) []byte {
	b := make([]byte, bufferBytes(minSlots))
	for i, v := range [...]uint64{magic, version, minSlots, TextBytes} {
		le.PutUint64(b[8*i:], v)
	}
	le.PutUint64(b[headAt:], head)
	le.PutUint64(b[textTailAt:], textsUsed)
	copy(b[headerBytes:SlotsAt], texts)
	copy(b[SlotsAt:], slots)
	return b
}

// parse is Read for a copy of a buffer. b is aligned to 8.
func parse(b []byte) (*Capture, error) {
	if len(b) < headerBytes {
		return nil, fmt.Errorf("%w: %d bytes", ErrBuffer, len(b))
	}
	slots, err := checkHeader(b)
	if err != nil {
		return nil, err
	}
	return capture(b, slots), nil
}

// digest does all that `tendril trace` does with a buffer. What a program wrote there may be nonsense.
func digest(t testing.TB, b []byte) {
	t.Helper()
	c, err := parse(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, last := range []time.Duration{0, time.Second} {
		line := NewTimeline(c, typeName, last)
		var out bytes.Buffer
		if _, err := line.WritePerfetto(&out, 1<<20); err != nil {
			t.Fatal(err)
		}
		if !json.Valid(out.Bytes()) || out.Len() > 1<<20 {
			t.Fatalf("%d bytes that are no JSON or too many", out.Len())
		}
		if err := json.NewEncoder(io.Discard).Encode(line.Summary()); err != nil {
			t.Fatal(err)
		}
	}
}

// Pushes are drawn with the worker that they came to, and summed up; one that ends before it begins is none.
func TestPushes(t *testing.T) {
	s, f := newStory(t, 1e9, 1e9)
	s.compare(1e9, 1e4, 1e4)
	s.Append(&Record{Kind: KindPush, Time: 2e9, X: 2e9 + 5e3, Aux: s.worker, Thread: 7, B: 4096})
	s.Append(&Record{Kind: KindPush, Flags: FlagLost, Time: 2e9 + 1e3, X: 2e9 + 9e3, Aux: s.worker, Thread: 7, B: 100,
		C: 1<<32 - 5})
	s.Append(&Record{Kind: KindPush, Time: 2e9, X: 1e9, Aux: s.worker, Thread: 7, B: 1})
	tl := s.line(f, 0)
	if len(tl.Pushes) != 2 || tl.Pushes[1] != (Push{PID: tl.Pushes[0].PID, From: 7, To: s.worker, Start: 2e9 + 1e3,
		End: 2e9 + 9e3, Bytes: 100, Status: -5, Lost: true}) {
		t.Errorf("%+v", tl.Pushes)
	}
	if got := tl.Summary().Pushes; len(got) != 1 ||
		got[0] != (PushBytes{From: 7, To: s.worker, Count: 2, Bytes: 4196, Lost: 1}) {
		t.Errorf("%+v", got)
	}
	var out bytes.Buffer
	if _, err := tl.WritePerfetto(&out, 0); err != nil {
		t.Fatal(err)
	}
	c, err := tracetest.Check(&out)
	if err != nil || c.Names["push from worker 7"] != 2 || c.Categories["push"] != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

// A program may write anything into its buffer; seeds are real ones with words changed.
func TestHostileBuffers(t *testing.T) {
	s, f := newStory(t, 1e9, 1e9)
	s.compare(1e9, 1e4, 1e4)
	for i := range int64(20) {
		s.launch(uint32(i+1), "k", 1e9+i*1e4, 1e9+i*1e4+5e3, 1e9+i*1e4+9e3)
	}
	s.Append(&Record{Kind: KindWire, Flags: FlagFromWorker, Time: 1e9, X: 100, Aux: s.worker, A: 2, B: 1 << 60})
	s.Append(&Record{Kind: KindPush, Time: 1e9, X: 1e9 + 100, Aux: s.worker, Thread: 2, B: 1 << 60})
	whole := make([]byte, bufferBytes(s.Slots()))
	if _, err := f.ReadAt(whole, 0); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	words := []uint64{0, 1, 1 << 31, 1 << 32, 1<<63 - 1, 1 << 63, 1<<64 - 1, 1e9, TextBytes, 1<<64 - 8}
	for range 150 {
		b := append([]byte(nil), whole...)
		for range 1 + random.IntN(30) {
			at := SlotsAt + 8*random.IntN(80*slotWords)
			switch random.IntN(8) {
			case 0:
				at = headerBytes + 8*random.IntN(40)
			case 1:
				at = [...]int{headAt, textTailAt, textLostAt}[random.IntN(3)]
			}
			le.PutUint64(b[at:], words[random.IntN(len(words))]+uint64(random.IntN(3)))
		}
		digest(t, b)
	}
}

func FuzzBuffer(f *testing.F) {
	slot := func(n uint64, r Record) []byte {
		w := r.words()
		w[0] = n + 1
		var b []byte
		for _, v := range w {
			b = le.AppendUint64(b, v)
		}
		return b
	}
	text := append(append(le.AppendUint32(le.AppendUint32(nil, 2), uint32(TextWorker)), make([]byte, 16)...),
		"w       "...)
	f.Add(uint64(0), uint64(0), []byte{}, []byte{})
	for k := KindCall; k <= KindPush; k++ {
		f.Add(uint64(2), uint64(len(text)), text, append(slot(0, Record{Kind: k, Time: 5, X: 9, A: 1, B: 2,
			Code: ndRange}), slot(1, Record{Kind: k + 1, Time: 6, X: 1 << 62})...))
	}
	f.Fuzz(func(t *testing.T, head, used uint64, texts, slots []byte) {
		digest(t, hostile(head, used, texts, slots))
	})
}
