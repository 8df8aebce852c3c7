package trace

import (
	"cmp"
	"slices"
	"strings"
)

// stageNames are the parts of a command's life, in order.
var stageNames = [...]string{"wire", "worker", "queue", "device"}

// stages returns how long each part took in ns, −1 where it is not known: from the program's enqueue to the worker;
// there to the driver's having it; from there to its start; its run.
func (c *Command) stages() (ns [len(stageNames)]int64) {
	times := [...]int64{c.Sent, c.Taken, c.Given, c.Start, c.End}
	for i := range ns {
		ns[i] = -1
		if times[i] != 0 && times[i+1] != 0 {
			ns[i] = max(times[i+1]-times[i], 0) // clocks may be off by their bound
		}
	}
	return ns
}

// Summary says where the time went. Times are ns.
type Summary struct {
	Wall      int64           `json:"wall_ns"`
	Threads   []ThreadTime    `json:"threads"`
	Calls     []CallTime      `json:"calls"`
	Stages    []StageTime     `json:"stages"`
	Kernels   []KernelTime    `json:"kernels"`
	Transfers []TransferTime  `json:"transfers"`
	Trips     []TripTime      `json:"round_trips"`
	TripCount int             `json:"round_trips_total"` // the trace's own are not counted
	Wire      []WireBytes     `json:"wire"`
	Pushes    []PushBytes     `json:"pushes"`
	Workers   []WorkerSummary `json:"workers"`
	Notes     []string        `json:"done_without"`
	Lost      uint64          `json:"records_overwritten"`
	Torn      uint64          `json:"records_torn"`
	TextsLost uint64          `json:"names_lost"`
	Unmatched int             `json:"commands_with_one_half"`
	Dropped   int             `json:"events_dropped"` // by WritePerfetto; the caller sets it
}

// ThreadTime is where one thread spent its time, from its first call to its last.
type ThreadTime struct {
	Process string `json:"process"`
	Thread  string `json:"thread"`
	Span    int64  `json:"span_ns"`
	InCalls int64  `json:"in_calls_ns"`
	Waiting int64  `json:"waiting_ns"` // of InCalls
}

// CallTime sums up one function.
type CallTime struct {
	Name    string `json:"name"`
	Count   int    `json:"count"`
	Total   int64  `json:"total_ns"`
	Longest int64  `json:"longest_ns"`
	Waiting int64  `json:"waiting_ns"`
	Bytes   uint64 `json:"bytes,omitempty"`
}

// StageTime sums up one part of all commands' lives.
type StageTime struct {
	Name    string `json:"name"`
	Count   int    `json:"count"`
	Total   int64  `json:"total_ns"`
	Longest int64  `json:"longest_ns"`
}

// KernelTime sums up one kernel's launches.
type KernelTime struct {
	Name     string `json:"name"`
	Launches int    `json:"launches"`
	Device   int64  `json:"device_ns"`
	Longest  int64  `json:"longest_ns"`
	Queue    int64  `json:"queue_ns"`
}

// TransferTime sums up one way of moving bytes.
type TransferTime struct {
	Name           string  `json:"name"`
	Count          int     `json:"count"`
	Bytes          uint64  `json:"bytes"`
	Time           int64   `json:"ns"`
	BytesPerSecond float64 `json:"bytes_per_second"`
}

// TripTime sums up the round trips of one cause, call and detail.
type TripTime struct {
	Cause  string `json:"cause"`
	Detail string `json:"detail,omitempty"`
	Count  int    `json:"count"`
	Total  int64  `json:"ns"`
	Own    bool   `json:"of_the_trace,omitempty"`

	Call   string `json:"call,omitempty"`   // which call waited; "": the library did, on its own
	Behind string `json:"behind,omitempty"` // what was waited for in truth, see Trip
}

// WireBytes sums up one direction.
type WireBytes struct {
	Worker     uint32 `json:"worker"`
	Direction  string `json:"direction"`
	Records    int    `json:"records"`
	Chunks     int    `json:"chunks"`
	Bytes      uint64 `json:"bytes"`
	ChunkBytes uint64 `json:"chunk_bytes"` // of Bytes, with headers
	Moved      uint64 `json:"moved_bytes"` // of the program, by chunks: more than ChunkBytes where they were compressed
}

// PushBytes sums up what went from one worker to another without passing the program.
type PushBytes struct {
	From  uint32 `json:"from_worker"`
	To    uint32 `json:"to_worker"`
	Count int    `json:"count"`
	Bytes uint64 `json:"bytes"`
	Lost  int    `json:"lost"` // of Count: came by way of the program after all, as the link ended
}

// WorkerSummary says how far a worker's times can be trusted.
type WorkerSummary struct {
	Number uint32 `json:"number"`
	Name   string `json:"name"`
	Clock  string `json:"clock"`
}

// Summary sums a timeline up.
func (t *Timeline) Summary() *Summary {
	s := &Summary{
		Wall: t.End - t.Begin, Notes: t.Notes, Lost: t.Lost, Torn: t.Torn, TextsLost: t.TextsLost,
		Unmatched: t.Unmatched,
		Threads:   t.threadTimes(), Calls: t.callTimes(), Stages: t.stageTimes(), Kernels: t.kernelTimes(),
		Transfers: t.transferTimes(),
		Wire:      t.wireBytes(), Pushes: t.pushBytes(),
	}
	s.Trips, s.TripCount = t.tripTimes()
	for _, w := range t.Workers {
		s.Workers = append(s.Workers, WorkerSummary{w.Number, w.Name, w.bound()})
	}
	return s
}

func (t *Timeline) threadTimes() []ThreadTime {
	type state struct{ first, last, until, in, waiting int64 }
	states := map[uint64]*state{}
	for i := range t.Calls {
		c := &t.Calls[i]
		k := uint64(c.PID)<<32 | uint64(c.Thread)
		s := states[k]
		if s == nil {
			s = &state{first: c.Start}
			states[k] = s
		}
		s.last = max(s.last, c.End)
		s.waiting += c.Waited
		if c.End > s.until { // not inside another call
			s.in += c.End - max(c.Start, s.until)
			s.until = c.End
		}
	}
	var list []ThreadTime
	for _, k := range sortedKeys(states) {
		s := states[k]
		list = append(list, ThreadTime{t.Processes[uint32(k>>32)], t.Threads[k], s.last - s.first, s.in, s.waiting})
	}
	slices.SortStableFunc(list, func(a, b ThreadTime) int { return cmp.Compare(b.InCalls, a.InCalls) })
	return list
}

// tally keeps one entry a name.
func tally[T any](m map[string]*T, name string) *T {
	e := m[name]
	if e == nil {
		e = new(T)
		m[name] = e
	}
	return e
}

// ranked lists a tally, the largest first.
func ranked[T any](m map[string]*T, key func(*T) int64) []T {
	list := []T{}
	for _, name := range sortedKeys(m) {
		list = append(list, *m[name])
	}
	slices.SortStableFunc(list, func(a, b T) int { return cmp.Compare(key(&b), key(&a)) })
	return list
}

func (t *Timeline) callTimes() []CallTime {
	m := map[string]*CallTime{}
	for i := range t.Calls {
		c := &t.Calls[i]
		e := tally(m, c.Name)
		e.Name, e.Count = c.Name, e.Count+1
		e.Total += c.End - c.Start
		e.Longest = max(e.Longest, c.End-c.Start)
		e.Waiting += c.Waited
		e.Bytes += c.Bytes
	}
	return ranked(m, func(e *CallTime) int64 { return e.Total })
}

func (t *Timeline) stageTimes() []StageTime {
	list := make([]StageTime, len(stageNames))
	for i, name := range stageNames {
		list[i].Name = name
	}
	for i := range t.Commands {
		for j, ns := range t.Commands[i].stages() {
			if ns < 0 {
				continue
			}
			list[j].Count++
			list[j].Total += ns
			list[j].Longest = max(list[j].Longest, ns)
		}
	}
	return list
}

func (t *Timeline) kernelTimes() []KernelTime {
	m := map[string]*KernelTime{}
	for i := range t.Commands {
		c := &t.Commands[i]
		if c.Kernel == "" {
			continue
		}
		e := tally(m, c.Kernel)
		e.Name, e.Launches = c.Kernel, e.Launches+1
		if c.OnDevice {
			e.Device += c.End - c.Start
			e.Longest = max(e.Longest, c.End-c.Start)
			e.Queue += max(c.stages()[2], 0)
		}
	}
	return ranked(m, func(e *KernelTime) int64 { return e.Device })
}

// transferTimes takes a transfer's time from its command, or, where the caller copied by itself, from its call.
func (t *Timeline) transferTimes() []TransferTime {
	m := map[string]*TransferTime{}
	add := func(name string, bytes uint64, ns int64) {
		e := tally(m, name)
		e.Name, e.Count, e.Bytes, e.Time = name, e.Count+1, e.Bytes+bytes, e.Time+ns
	}
	commanded := map[int]bool{}
	for i := range t.Commands {
		c := &t.Commands[i]
		bytes := c.Bytes
		if c.Type == "Host" && c.Call >= 0 {
			bytes = t.Calls[c.Call].Bytes
		}
		if bytes == 0 || c.Kernel != "" || c.Type == "NDRange" {
			continue
		}
		if c.Call >= 0 {
			commanded[c.Call] = true
		}
		if c.End > 0 {
			add(t.transferName(c), bytes, c.End-c.Start)
		}
	}
	for i := range t.Calls {
		c := &t.Calls[i]
		if c.Bytes > 0 && !commanded[i] &&
			(strings.Contains(c.Name, "ReadBuffer") || strings.Contains(c.Name, "WriteBuffer")) {
			add(c.Name+", by the caller", c.Bytes, c.End-c.Start)
		}
	}
	list := ranked(m, func(e *TransferTime) int64 { return e.Time })
	for i := range list {
		if list[i].Time > 0 {
			list[i].BytesPerSecond = float64(list[i].Bytes) / float64(list[i].Time) * 1e9
		}
	}
	return list
}

func (t *Timeline) transferName(c *Command) string {
	call := "the library's own"
	if c.Call >= 0 {
		call = t.Calls[c.Call].Name
	}
	way := map[string]string{
		"Host": "by the caller, in its turn", "Transfer": "through pinned shared memory",
		"WriteInline": "in its record",
		"BulkRead":    "over the network", "BulkWrite": "over the network",
	}[c.Type]
	if way == "" {
		way = "on the device"
	}
	return call + ", " + way
}

func (t *Timeline) tripTimes() ([]TripTime, int) {
	m := map[string]*TripTime{}
	total := 0
	for i := range t.Trips {
		trip := &t.Trips[i]
		call := ""
		if trip.Call >= 0 {
			call = t.Calls[trip.Call].Name
		}
		e := tally(m, strings.Join([]string{trip.Cause.String(), trip.Detail, call, trip.Behind}, "\x00"))
		e.Call, e.Behind = call, trip.Behind
		e.Cause, e.Detail, e.Own = trip.Cause.String(), trip.Detail, trip.Cause.Own()
		e.Count++
		e.Total += trip.End - trip.Start
		if !e.Own {
			total++
		}
	}
	return ranked(m, func(e *TripTime) int64 { return e.Total }), total
}

func (t *Timeline) wireBytes() []WireBytes {
	m := map[wireKey]*WireBytes{}
	for i := range t.Wires {
		w := &t.Wires[i]
		k := wireKey{workerKey{w.PID, w.Worker}, w.FromWorker}
		if m[k] == nil {
			m[k] = &WireBytes{Worker: w.Worker, Direction: "to the worker"}
			if w.FromWorker {
				m[k].Direction = "from the worker"
			}
		}
		if w.Lane == 0 {
			m[k].Records++
		} else {
			m[k].Chunks++
			m[k].ChunkBytes += w.Bytes
			m[k].Moved += w.Moved
		}
		m[k].Bytes += w.Bytes
	}
	list := []WireBytes{}
	for _, e := range m {
		list = append(list, *e)
	}
	slices.SortFunc(list, func(a, b WireBytes) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), -cmp.Compare(a.Direction, b.Direction))
	})
	return list
}

func (t *Timeline) pushBytes() []PushBytes {
	m := map[[2]uint32]*PushBytes{}
	for i := range t.Pushes {
		p := &t.Pushes[i]
		k := [2]uint32{p.From, p.To}
		if m[k] == nil {
			m[k] = &PushBytes{From: p.From, To: p.To}
		}
		m[k].Count++
		m[k].Bytes += p.Bytes
		if p.Lost {
			m[k].Lost++
		}
	}
	list := []PushBytes{}
	for _, e := range m {
		list = append(list, *e)
	}
	slices.SortFunc(list,
		func(a, b PushBytes) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return list
}
