package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// The trace event format of Chrome, which ui.perfetto.dev reads (Trace Event Format, Google, 2016): X a slice, s and f
// an arrow's ends, i an instant, C a counter, M a name. Times are µs.

// event is one entry, without its time.
type event struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat,omitempty"`
	Ph   string         `json:"ph"`
	PID  uint64         `json:"pid"`
	TID  uint64         `json:"tid"`
	TS   micros         `json:"ts"`
	Dur  *micros        `json:"dur,omitempty"`
	ID   int            `json:"id,omitempty"`
	BP   string         `json:"bp,omitempty"`
	S    string         `json:"s,omitempty"`
	Args map[string]any `json:"args,omitempty"`
}

// micros prints ns as µs with three digits behind the point.
type micros int64

// MarshalJSON implements json.Marshaler.
func (m micros) MarshalJSON() ([]byte, error) {
	if m < 0 { // of a buffer that holds nonsense
		m = 0
	}
	return fmt.Appendf(nil, "%d.%03d", int64(m)/1000, int64(m)%1000), nil
}

// item is an encoded event. What is dropped for want of room goes by age, so that an arrow goes with its first end.
type item struct {
	age, at int64
	json    []byte
}

// Tracks that are no threads of the program: a process each for the workers and for the wire to them, beyond the
// numbers that Linux gives (at most 1<<22).
const (
	workerPID = 1 << 24
	wirePID   = 2 << 24
	firstTID  = 1 << 24
)

// perfetto gathers what is written.
type perfetto struct {
	t     *Timeline
	items []item
	names []event
	err   error
	lanes map[setKey]*trackSet
	tids  uint64               // given to tracks
	pids  map[workerKey]uint64 // of the workers
	bytes map[wireKey]uint64
	sets  map[QueueKey]uint64 // number of each queue
}

type wireKey struct {
	workerKey
	from bool
}

// WritePerfetto writes a timeline as JSON of at most maxBytes (0: any size) and returns how many events were dropped
// for that, the oldest first.
func (t *Timeline) WritePerfetto(w io.Writer, maxBytes int) (dropped int, err error) {
	p := &perfetto{t: t, lanes: map[setKey]*trackSet{}, tids: firstTID, sets: map[QueueKey]uint64{},
		pids: map[workerKey]uint64{}, bytes: map[wireKey]uint64{}}
	p.processes()
	for i := range t.Calls {
		p.call(&t.Calls[i])
	}
	for i := range t.Trips {
		p.trip(&t.Trips[i])
	}
	for i := range t.Wires {
		p.wire(&t.Wires[i])
	}
	for i := range t.Pushes {
		p.push(&t.Pushes[i])
	}
	for i := range t.Commands {
		p.command(i, &t.Commands[i])
	}
	p.depths()
	if p.err != nil {
		return 0, p.err
	}
	return p.write(w, maxBytes)
}

func (p *perfetto) since(t int64) micros { return micros(max(t-p.t.Begin, 0)) }

// add encodes an event that lives from start to end (arrows, instants: the same); age is when what it belongs to began.
func (p *perfetto) add(age, start, end int64, e event) {
	e.TS = p.since(start)
	if e.Ph == "X" {
		d := p.since(end) - e.TS
		e.Dur = &d
	}
	b, err := json.Marshal(&e)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("encode a trace event: %w", err)
	}
	p.items = append(p.items, item{age, max(start, p.t.Begin), b})
}

func (p *perfetto) name(what string, pid, tid uint64, value any) {
	key := "name"
	if what == "process_sort_index" || what == "thread_sort_index" {
		key = "sort_index"
	}
	p.names = append(p.names, event{Name: what, Ph: "M", PID: pid, TID: tid, Args: map[string]any{key: value}})
}

func (p *perfetto) processes() {
	for _, pid := range sortedKeys(p.t.Processes) {
		p.name("process_name", uint64(pid), 0, p.t.Processes[pid])
		p.name("process_sort_index", uint64(pid), 0, 0)
	}
	for _, k := range sortedKeys(p.t.Threads) {
		p.name("thread_name", k>>32, uint64(uint32(k)), p.t.Threads[k])
	}
	for i, w := range p.t.Workers {
		k := workerKey{w.PID, w.Number}
		p.pids[k] = workerPID + uint64(i)
		p.name("process_name", p.pids[k], 0, fmt.Sprintf("worker %d: %s (%s)", w.Number, w.Name, w.bound()))
		p.name("process_sort_index", p.pids[k], 0, 2)
		p.name("process_name", wirePID+uint64(i), 0, fmt.Sprintf("wire to worker %d", w.Number))
		p.name("process_sort_index", wirePID+uint64(i), 0, 1)
	}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// bound says how far a worker's times may be off.
func (w *Worker) bound() string {
	if !w.ClockKnown {
		return "its clock was never compared: no times"
	}
	s := "the program's clock"
	if w.ClockBound > 0 {
		s = fmt.Sprintf("clock ±%.1f µs", float64(w.ClockBound)/1e3)
	}
	worst := int64(0)
	for _, b := range w.DeviceBounds {
		worst = max(worst, b)
	}
	if len(w.DeviceBounds) > 0 {
		s += fmt.Sprintf(", device ±%.1f µs", float64(w.ClockBound+worst)/1e3)
	}
	return s
}

func (p *perfetto) call(c *Call) {
	args := map[string]any{}
	if c.Bytes > 0 {
		args["bytes"] = c.Bytes
	}
	if c.Trips > 0 {
		args["round trips"] = c.Trips
		args["waited µs"] = micros(c.Waited)
	}
	p.add(c.Start, c.Start, c.End,
		event{Name: c.Name, Cat: "call", Ph: "X", PID: uint64(c.PID), TID: uint64(c.Thread), Args: args})
}

func (p *perfetto) trip(t *Trip) {
	args := map[string]any{"worker": t.Worker}
	if t.Detail != "" {
		args["detail"] = t.Detail
	}
	if t.Behind != "" {
		args["behind"] = t.Behind
	}
	e := event{Name: "wait: " + t.Cause.String(), Cat: "wait", Ph: "X", PID: uint64(t.PID),
		TID: uint64(t.Thread), Args: args}
	if t.Call < 0 {
		// A goroutine has no thread of its own: several may have ended their waits on one.
		if e.TID = p.lane(e.PID, 0, "the library's own waits", t.Start, t.End); e.TID == 0 {
			return
		}
	}
	p.add(t.Start, t.Start, t.End, e)
}

func (p *perfetto) wire(w *Wire) {
	k := workerKey{w.PID, w.Worker}
	pid, ok := p.pids[k]
	if !ok {
		return
	}
	pid += wirePID - workerPID
	e := event{Name: w.Type, Cat: "wire", PID: pid, Args: map[string]any{"bytes": w.Bytes}}
	if w.Moved > 0 {
		e.Args["bytes of the program"] = w.Moved
	}
	direction, set := "to the worker", uint64(2*w.Lane)
	if w.FromWorker {
		direction, set = "from the worker", set+1
	}
	if w.Lane == 0 {
		e.Ph, e.S = "i", "t"
		e.TID = p.lane(pid, set, "records "+direction, w.Start, w.Start)
		p.add(w.Start, w.Start, w.Start, e)
	} else if e.TID = p.lane(pid, set, fmt.Sprintf("lane %d %s", w.Lane, direction), w.Start,
		w.Start+w.Took); e.TID != 0 {
		e.Ph = "X"
		p.add(w.Start, w.Start, w.Start+w.Took, e)
	}
	sum := wireKey{k, w.FromWorker}
	p.bytes[sum] += w.Bytes
	p.add(w.Start, w.Start, w.Start,
		event{Name: "bytes " + direction, Cat: "wire", Ph: "C", PID: pid, Args: map[string]any{"bytes": p.bytes[sum]}})
}

// pushSet is the set of pushes to a worker, behind those of its lanes.
const pushSet = 1 << 20

// push draws what came to a worker from another one, with the worker that it came to.
func (p *perfetto) push(x *Push) {
	pid, ok := p.pids[workerKey{x.PID, x.To}]
	if !ok {
		return
	}
	pid += wirePID - workerPID
	e := event{Name: fmt.Sprintf("push from worker %d", x.From), Cat: "push", Ph: "X", PID: pid,
		Args: map[string]any{"bytes": x.Bytes, "from worker": x.From, "to worker": x.To}}
	if x.Status != 0 {
		e.Args["status"] = x.Status
	}
	if x.Lost {
		e.Args["way"] = "through the program: the link ended first"
	}
	if e.TID = p.lane(pid, pushSet, "pushes to the worker", x.Start, x.End); e.TID != 0 {
		p.add(x.Start, x.Start, x.End, e)
	}
}

// trackSet is a track that splits where its slices overlap.
type trackSet struct {
	ends []int64  // of the last slice of each
	tids []uint64 // of each
}

type setKey struct{ pid, set uint64 }

const maxTracks = 256 // that one set splits into

// lane finds a track of a set for a slice: the first that is free by then; 0: all are busy.
func (p *perfetto) lane(pid, set uint64, name string, start, end int64) uint64 {
	key := setKey{pid, set}
	s := p.lanes[key]
	if s == nil {
		s = &trackSet{}
		p.lanes[key] = s
	}
	for i, busy := range s.ends {
		if busy <= start {
			s.ends[i] = end
			return s.tids[i]
		}
	}
	if len(s.ends) >= maxTracks {
		return 0
	}
	p.tids++
	s.ends, s.tids = append(s.ends, end), append(s.tids, p.tids)
	if len(s.ends) > 1 {
		name = fmt.Sprintf("%s (%d)", name, len(s.ends))
	}
	p.name("thread_name", pid, p.tids, name)
	p.name("thread_sort_index", pid, p.tids, set*maxTracks+uint64(len(s.ends)))
	return p.tids
}

// title is what a command is called.
func (c *Command) title() string {
	if c.Kernel != "" {
		return c.Kernel
	}
	return c.Type
}

// command draws the worker's half, and the arrow to it from the call.
func (p *perfetto) command(i int, c *Command) {
	pid, ok := p.pids[workerKey{c.PID, c.Worker}]
	if !ok || c.Taken == 0 {
		return
	}
	age := c.begin()
	if c.Call >= 0 {
		age = p.t.Calls[c.Call].Start
	}
	queue, set := p.queueName(c), 2*p.queueSet(c)
	draw := func(set uint64, track, cat string, start, end int64) (tid uint64) {
		if tid = p.lane(pid, set, track, start, end); tid != 0 {
			p.add(age, start, end,
				event{Name: c.title(), Cat: cat, Ph: "X", PID: pid, TID: tid, Args: p.commandArgs(c)})
		}
		return tid
	}
	var tid uint64
	var at int64
	if c.Given > 0 && c.Begun >= p.t.Begin {
		tid, at = draw(set, queue+": given to the driver", "driver", c.Begun, c.Given), c.Begun
	}
	if c.End > 0 && c.Start >= p.t.Begin {
		tid, at = draw(set+1, queue, "device", c.Start, c.End), c.Start
	}
	if tid != 0 && c.Call >= 0 && c.Sent >= p.t.Begin {
		p.arrow(i+1, c, age, at, pid, tid)
	}
}

// arrow leads from the call that sent a command to where it ran.
func (p *perfetto) arrow(id int, c *Command, age, at int64, pid, tid uint64) {
	call := &p.t.Calls[c.Call]
	e := event{Name: "command", Cat: "command", Ph: "s", ID: id, PID: uint64(call.PID), TID: uint64(call.Thread)}
	p.add(age, c.Sent, c.Sent, e)
	e.Ph, e.BP, e.PID, e.TID = "f", "e", pid, tid
	p.add(age, at, at, e)
}

func (p *perfetto) queueName(c *Command) string {
	name := p.t.Queues[QueueKey{c.PID, c.Queue}]
	return fmt.Sprintf("queue %d on %s", c.Queue, name)
}

// queueSet numbers a worker's queues as they come, from 1.
func (p *perfetto) queueSet(c *Command) uint64 {
	key := QueueKey{c.PID, c.Queue}
	if p.sets[key] == 0 {
		p.sets[key] = uint64(len(p.sets) + 1)
	}
	return p.sets[key]
}

func (p *perfetto) commandArgs(c *Command) map[string]any {
	args := map[string]any{"record": c.Type, "number": c.Seq}
	if c.Bytes > 0 {
		args["bytes"] = c.Bytes
	}
	if c.Status != 0 {
		args["status"] = c.Status
	}
	stages := c.stages()
	for i, name := range stageNames {
		if stages[i] >= 0 {
			args[name+" µs"] = micros(stages[i])
		}
	}
	return args
}

// depths counts the commands that were sent and have not ended, for each queue.
func (p *perfetto) depths() {
	type step struct {
		at    int64
		by    int
		queue QueueKey
		pid   uint64
	}
	var steps []step
	for i := range p.t.Commands {
		c := &p.t.Commands[i]
		pid, ok := p.pids[workerKey{c.PID, c.Worker}]
		if !ok || c.Sent == 0 || c.End == 0 {
			continue
		}
		key := QueueKey{c.PID, c.Queue}
		steps = append(steps, step{c.Sent, 1, key, pid}, step{max(c.End, c.Sent), -1, key, pid})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	depth := map[QueueKey]int{}
	for _, s := range steps {
		depth[s.queue] += s.by
		p.add(s.at, s.at, s.at,
			event{Name: fmt.Sprintf("commands in queue %d", s.queue.Queue), Cat: "queue", Ph: "C", PID: s.pid,
				Args: map[string]any{"commands": depth[s.queue]}})
	}
}

// header is what the file begins with.
func (p *perfetto) header(dropped int) ([]byte, error) {
	clocks := []string{}
	for _, w := range p.t.Workers {
		clocks = append(clocks, fmt.Sprintf("worker %d: %s", w.Number, w.bound()))
	}
	other, err := json.Marshal(map[string]any{
		"made by": "tendril trace", "clocks": clocks, "notes": p.t.Notes, "records overwritten": p.t.Lost,
		"records torn":   p.t.Torn,
		"events dropped": dropped, "ns of CLOCK_MONOTONIC at 0": p.t.Begin,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the trace's header: %w", err)
	}
	b := fmt.Appendf(nil, "{\"displayTimeUnit\":\"ns\",\"otherData\":%s,\"traceEvents\":[\n", other)
	for i := range p.names {
		line, err := json.Marshal(&p.names[i])
		if err != nil {
			return nil, fmt.Errorf("encode a trace's names: %w", err)
		}
		b = append(append(b, line...), ",\n"...)
	}
	return bytes.TrimSuffix(b, []byte(",\n")), nil
}

const ending = "\n]}\n"

func (p *perfetto) write(w io.Writer, maxBytes int) (int, error) {
	slices.SortStableFunc(p.items, func(a, b item) int { return cmp.Compare(b.age, a.age) })
	head, err := p.header(0)
	if err != nil {
		return 0, err
	}
	size, keep := len(head)+len(ending)+64, len(p.items)
	for i := range p.items {
		if size += len(p.items[i].json) + 2; maxBytes > 0 && size > maxBytes {
			keep = i
			break
		}
	}
	for keep > 0 && keep < len(p.items) && p.items[keep-1].age == p.items[keep].age {
		keep-- // what belongs together goes together
	}
	dropped := len(p.items) - keep
	if head, err = p.header(dropped); err != nil {
		return 0, err
	}
	kept := p.items[:keep]
	slices.SortStableFunc(kept, func(a, b item) int { return cmp.Compare(a.at, b.at) })
	out := bufio.NewWriterSize(w, 1<<16)
	out.Write(head) // its error comes from Flush
	for i := range kept {
		if i > 0 || len(p.names) > 0 {
			out.WriteString(",\n")
		}
		out.Write(kept[i].json)
	}
	out.WriteString(ending)
	return dropped, out.Flush()
}
