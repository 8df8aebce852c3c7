package trace

import (
	"cmp"
	"slices"
	"time"
)

// Call is one OpenCL call of a program.
type Call struct {
	PID, Thread uint32
	Name        string
	Start, End  int64 // ns
	Object      uint64
	Bytes       uint64
	Waited      int64 // ns of it spent in round trips
	Trips       int
}

// Command is one enqueued command, both halves. Times are ns of the program's clock; 0: unknown.
type Command struct {
	PID, Worker  uint32
	Queue        uint64
	Seq          uint32
	Type         string // of the record
	Kernel       string
	Bytes        uint64
	Call         int // index of the call that sent it, −1: none is known
	Sent         int64
	Taken        int64 // off the stream, by the worker
	Begun, Given int64 // clEnqueue… of the driver; of a host operation: its turn came, 0
	Start, End   int64 // on the device; of a host operation: its turn, its end
	Status       int32
	OnDevice     bool // Start and End are the device's

	handle uint64 // of the queue, in the program
}

// Wire is one record or chunk that crossed.
type Wire struct {
	PID, Worker uint32
	FromWorker  bool
	Lane        int // 0: the control stream
	Type        string
	Start, Took int64
	Bytes       uint64
	Moved       uint64 // of a chunk: bytes of the program that it brought, more than Bytes where they were compressed
}

// Push is a range of a buffer that went from a worker to another.
type Push struct {
	PID, From, To uint32
	Start, End    int64 // asked for, and heard of: the program hears of what nobody waits for a few milliseconds later
	Bytes         uint64
	Status        int32
	Lost          bool // the link ended first: the bytes came by way of the program
}

// Trip is one wait for an answer.
type Trip struct {
	PID, Thread, Worker uint32
	Cause               Cause
	Detail              string
	Start, End          int64
	Call                int // index of the call that waited, −1: the library did, on its own

	// Behind says what the worker had to end before it could answer: a build that another call asked for, and its
	// options. "": nothing that is known.
	Behind string
}

// Worker is a worker process as a trace names it.
type Worker struct {
	PID, Number  uint32
	Name         string
	ClockBound   int64 // ns by which its times may be wrong; 0: the same clock
	ClockKnown   bool  // false: its clock was never compared, its times are left out
	DeviceBounds map[uint16]int64
}

// Timeline is a capture in order, on the programs' clock (they share one).
type Timeline struct {
	Begin, End int64
	Calls      []Call
	Commands   []Command
	Wires      []Wire
	Pushes     []Push
	Trips      []Trip
	Workers    []*Worker
	Notes      []string
	Processes  map[uint32]string
	Threads    map[uint64]string // process<<32 | thread
	Queues     map[QueueKey]string

	Lost, Torn, TextsLost uint64
	Unmatched             int // halves of commands without the other
}

// QueueKey names a queue among several processes'.
type QueueKey struct {
	PID   uint32
	Queue uint64
}

type workerKey struct{ pid, number uint32 }

type commandKey struct {
	QueueKey
	seq uint32
}

// builder makes a timeline of a capture.
type builder struct {
	*Timeline
	c        *Capture
	typeName func(uint16) string
	workers  map[workerKey]*Worker
	clocks   map[workerKey]offsets
	devices  map[deviceKey]offsets
	commands map[commandKey]int
}

type deviceKey struct {
	workerKey
	device uint16
}

// NewTimeline puts a capture on one clock and joins what belongs together. typeName names record types of the session
// protocol. last > 0: only what happened in the last so long.
func NewTimeline(c *Capture, typeName func(uint16) string, last time.Duration) *Timeline {
	b := &builder{
		Timeline: &Timeline{
			Processes: map[uint32]string{}, Threads: map[uint64]string{}, Queues: map[QueueKey]string{},
			Lost: c.Lost, Torn: c.Torn, TextsLost: c.TextsLost,
		},
		c: c, typeName: typeName, workers: map[workerKey]*Worker{}, clocks: map[workerKey]offsets{},
		devices: map[deviceKey]offsets{}, commands: map[commandKey]int{},
	}
	b.names()
	b.compareClocks()
	b.compareDevices()
	for i := range c.Records {
		b.take(i)
	}
	b.extent()
	if last > 0 {
		b.cut(b.End - int64(last))
	}
	b.order()
	b.join()
	return b.Timeline
}

func (b *builder) names() {
	for _, t := range b.c.Texts {
		switch t.Kind {
		case TextProcess:
			b.Processes[t.PID] = t.Text
		case TextThread:
			b.Threads[uint64(t.PID)<<32|t.ID] = t.Text
		case TextQueue:
			b.Queues[QueueKey{t.PID, t.ID}] = t.Text
		case TextWorker:
			b.worker(workerKey{t.PID, uint32(t.ID)}).Name = t.Text
		}
	}
}

func (b *builder) worker(k workerKey) *Worker {
	w := b.workers[k]
	if w == nil {
		w = &Worker{PID: k.pid, Number: k.number, Name: "worker", DeviceBounds: map[uint16]int64{}}
		b.workers[k] = w
		b.Workers = append(b.Workers, w)
	}
	return w
}

func (b *builder) text(n uint64) string { return b.c.Texts[uint32(n)].Text }

func (b *builder) compareClocks() {
	readings, same := map[workerKey][]point{}, map[workerKey]bool{}
	for _, t := range b.c.Texts {
		if t.Kind == TextClock {
			same[workerKey{t.PID, uint32(t.ID)}] = true
		}
	}
	for i := range b.c.Records {
		r := &b.c.Records[i]
		k := workerKey{r.PID, r.Aux}
		if r.Kind != KindClock {
			continue
		}
		same[k] = same[k] || r.Flags&FlagSameClock != 0
		if p, ok := clockReading(r); ok {
			readings[k] = append(readings[k], p)
		}
	}
	for k := range b.workers {
		o := offsetsOf(readings[k])
		if same[k] {
			o = offsets{known: true}
		}
		b.clocks[k] = o
		b.workers[k].ClockBound, b.workers[k].ClockKnown = o.bound, o.known
	}
}

// pair returns the two records of a command's worker half, the first at i.
func (b *builder) pair(i int) (command, device *Record) {
	if i+1 >= len(b.c.Records) {
		return nil, nil
	}
	command, device = &b.c.Records[i], &b.c.Records[i+1]
	if command.Kind != KindCommand || device.Kind != KindDevice || command.PID != device.PID ||
		command.Aux != device.Aux {
		return nil, nil
	}
	return command, device
}

func (b *builder) compareDevices() {
	readings := map[deviceKey][]point{}
	for i := range b.c.Records {
		command, device := b.pair(i)
		if command == nil {
			continue
		}
		if p, ok := deviceReading(command, device); ok {
			k := deviceKey{workerKey{device.PID, device.Aux}, device.Code}
			readings[k] = append(readings[k], p)
		}
	}
	for k, list := range readings {
		o := offsetsOf(list)
		b.devices[k] = o
		b.worker(k.workerKey).DeviceBounds[k.device] = o.bound
	}
}

func (b *builder) take(i int) {
	r := &b.c.Records[i]
	switch r.Kind {
	case KindCall:
		if sane(r.Time, r.X) && r.X >= r.Time {
			b.Calls = append(b.Calls, Call{PID: r.PID, Thread: r.Thread, Name: b.text(uint64(r.Aux)), Start: r.Time,
				End: r.X, Object: r.A, Bytes: r.B})
		}
	case KindTrip:
		if sane(r.Time, r.X) && r.X >= r.Time {
			b.Trips = append(b.Trips, Trip{PID: r.PID, Thread: r.Thread, Worker: r.Aux, Cause: Cause(r.Code),
				Detail: b.text(r.A), Start: r.Time, End: r.X, Call: -1})
		}
	case KindWire:
		if sane(r.Time, r.X) {
			b.Wires = append(b.Wires,
				Wire{PID: r.PID, Worker: r.Aux, FromWorker: r.Flags&FlagFromWorker != 0, Lane: int(uint16(r.A)),
					Type: b.wireType(r), Start: r.Time, Took: r.X, Bytes: r.B & (1<<48 - 1), Moved: uint64(r.Thread)})
		}
	case KindPush:
		if sane(r.Time, r.X) && r.X >= r.Time {
			b.Pushes = append(b.Pushes,
				Push{PID: r.PID, From: r.Thread, To: r.Aux, Start: r.Time, End: r.X, Bytes: r.B & (1<<48 - 1),
					Status: int32(uint32(r.C)), Lost: r.Flags&FlagLost != 0})
		}
	case KindSent:
		b.sent(r)
	case KindCommand:
		b.workerHalf(i)
	case KindNote:
		if s := b.text(r.A); s != "" && !slices.Contains(b.Notes, s) {
			b.Notes = append(b.Notes, s)
		}
	}
}

func (b *builder) wireType(r *Record) string {
	if r.A != 0 {
		return "chunk"
	}
	return b.typeName(r.Code)
}

// command finds or makes the command that both halves name.
func (b *builder) command(pid, worker uint32, queue uint64, seq uint32, code uint16) *Command {
	k := commandKey{QueueKey{pid, queue}, seq}
	typ := b.typeName(code)
	if i, ok := b.commands[k]; ok && b.Commands[i].Type == typ {
		return &b.Commands[i]
	}
	b.commands[k] = len(b.Commands)
	b.Commands = append(b.Commands, Command{PID: pid, Worker: worker, Queue: queue, Seq: seq, Type: typ, Call: -1})
	return &b.Commands[len(b.Commands)-1]
}

func (b *builder) sent(r *Record) {
	if !sane(r.Time) {
		return
	}
	c := b.command(r.PID, r.Aux, r.B, uint32(r.X), r.Code)
	c.Sent, c.Bytes, c.Kernel = r.Time, r.C&(1<<48-1), b.text(uint64(r.Thread))
	c.handle = r.A
}

// workerHalf puts the worker's times on our clock.
func (b *builder) workerHalf(i int) {
	command, device := b.pair(i)
	if command == nil {
		return
	}
	key := workerKey{command.PID, command.Aux}
	clock := b.clocks[key]
	taken, begun, given, seen := command.Time, command.X, int64(command.A), int64(device.C)
	if !clock.known || !sane(taken, begun, given, seen) || taken == 0 {
		return
	}
	c := b.command(command.PID, command.Aux, command.B, uint32(command.C), command.Code)
	c.Status = int32(command.C >> 32)
	c.Taken = clock.ours(taken)
	if begun != 0 {
		c.Begun = clock.ours(begun)
	}
	if given != 0 {
		c.Given = clock.ours(given)
	}
	start, end := device.A, device.B
	o := b.devices[deviceKey{key, device.Code}]
	switch {
	case device.Flags&FlagProfiled != 0 && o.known && sane(int64(start), int64(end)) && end >= start:
		c.Start, c.End, c.OnDevice = clock.ours(o.ours(int64(start))), clock.ours(o.ours(int64(end))), true
	case given == 0 && begun != 0 && seen >= begun: // a host operation
		c.Start, c.End = clock.ours(begun), clock.ours(seen)
	}
}

// extent finds the first and the last time.
func (b *builder) extent() {
	first := true
	see := func(start, end int64) {
		if first || start < b.Begin {
			b.Begin = start
		}
		if first || end > b.End {
			b.End = end
		}
		first = false
	}
	for i := range b.Calls {
		see(b.Calls[i].Start, b.Calls[i].End)
	}
	for i := range b.Trips {
		see(b.Trips[i].Start, b.Trips[i].End)
	}
	for i := range b.Wires {
		see(b.Wires[i].Start, b.Wires[i].Start+b.Wires[i].Took)
	}
	for i := range b.Pushes {
		see(b.Pushes[i].Start, b.Pushes[i].End)
	}
	for i := range b.Commands {
		if c := &b.Commands[i]; c.begin() != 0 {
			see(c.begin(), max(c.Sent, c.Taken, c.Given, c.End))
		}
	}
}

// begin is the first known time of a command.
func (c *Command) begin() int64 {
	for _, t := range [...]int64{c.Sent, c.Taken, c.Begun, c.Start} {
		if t != 0 {
			return t
		}
	}
	return 0
}

// cut drops what had ended before a time.
func (b *builder) cut(before int64) {
	b.Calls = slices.DeleteFunc(b.Calls, func(c Call) bool { return c.End < before })
	b.Trips = slices.DeleteFunc(b.Trips, func(t Trip) bool { return t.End < before })
	b.Wires = slices.DeleteFunc(b.Wires, func(w Wire) bool { return w.Start+w.Took < before })
	b.Pushes = slices.DeleteFunc(b.Pushes, func(p Push) bool { return p.End < before })
	b.Commands = slices.DeleteFunc(b.Commands, func(c Command) bool { return max(c.begin(), c.End) < before })
	b.Begin = max(b.Begin, before)
}

func (b *builder) order() {
	slices.SortStableFunc(b.Calls, func(x, y Call) int {
		return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(y.End, x.End)) // what encloses comes first
	})
	slices.SortStableFunc(b.Trips, func(x, y Trip) int { return cmp.Compare(x.Start, y.Start) })
	slices.SortStableFunc(b.Wires, func(x, y Wire) int { return cmp.Compare(x.Start, y.Start) })
	slices.SortStableFunc(b.Pushes, func(x, y Push) int { return cmp.Compare(x.Start, y.Start) })
	slices.SortStableFunc(b.Commands, func(x, y Command) int { return cmp.Compare(x.begin(), y.begin()) })
	slices.SortFunc(b.Workers, func(x, y *Worker) int {
		if x.PID != y.PID {
			return int(x.PID) - int(y.PID)
		}
		return int(x.Number) - int(y.Number)
	})
}
