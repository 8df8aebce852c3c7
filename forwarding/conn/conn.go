package conn

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/forecast"
	"tendril/forwarding/link"
	"tendril/forwarding/numbered"
	"tendril/forwarding/trace"
)

// Options say to what a connection is made, and how. Control, Sink and NewID must be set.
type Options struct {
	Control    Control
	Platform   uint32 // in the snapshot of Control's node
	Name       string // of the platform, for the person at the terminal
	Sink       Sink
	NewID      func() uint64 // numbers requests and operations; unique in the session
	Program    string        // told to the worker
	Limits     clwire.TimeLimits
	Spin       time.Duration // how long a waiting caller polls before it sleeps
	Lanes      int           // bulk lanes to another machine; 0: by the number of cores
	Plaintext  bool          // lanes without TLS
	NoCompress bool
	Resumes    bool          // lost connections can be replaced: the daemon keeps the session
	Resume     time.Duration // for how long
	Silence    time.Duration // how long another machine may say nothing; 0: as the kernel has it
	Log        func(line string)
	Counters   *trace.Counters // of round trips
	Tracer     *Tracer         // nil: nobody traces
}

// Conn is the connection to one worker process: what is outstanding on it, and its end. All methods may be called
// concurrently, once Open has returned.
type Conn struct {
	opt          Options // immutable
	id           uint64  // the daemon's number; immutable once open
	link         link.Link
	bulk         *bulk    // nil: the worker is on this node
	resumer      *resumer // nil: the worker ends with its connections
	capabilities uint32
	course       forecast.Course // commands, and how long it takes until what is waited for

	dead    atomic.Bool   // set once, before what is outstanding is failed
	settled chan struct{} // closed when that has failed
	closed  atomic.Bool   // by this side: an end that is no fault

	mu    sync.Mutex // leaf
	calls numbered.Table[Call]
	gates map[uint64]*Gate

	grant          grant
	inlineInFlight atomic.Uint64 // bytes, see FitsInline

	segMu    sync.Mutex
	segments map[uint64]bool // sent to the worker

	// written orders what goroutines here copy, and what the program writes before it ends a user event, before what
	// the worker then says of it: through the shared rings and sockets it is ordered too, but neither Go's memory
	// model nor its race detector knows them.
	written atomic.Uint64

	reader      reader
	traceNumber uint32 // in a trace; immutable once open
}

// Errors of Open, and of waiting.
var (
	errVersion = errors.New("the worker speaks another protocol version; install one version of tendril for both")
	// ErrDead is what waiting for a dead worker gives.
	ErrDead = errors.New("the worker is gone")
)

// New makes a Conn that is not open.
func New(o Options) *Conn {
	return &Conn{
		opt: o, settled: make(chan struct{}), segments: map[uint64]bool{},
		gates: map[uint64]*Gate{},
	}
}

// ID is the daemon's number of the worker.
func (c *Conn) ID() uint64 { return c.id }

// Remote says that the worker is on another machine: no memory is shared with it.
func (c *Conn) Remote() bool { return c.bulk != nil }

// SharesAddresses says whether the worker makes shared virtual memory.
func (c *Conn) SharesAddresses() bool { return c.capabilities&clwire.CapSVM != 0 }

// Packs says that the worker, and the program, have nothing against compression.
func (c *Conn) Packs() bool { return c.capabilities&clwire.CapPacked != 0 && !c.opt.NoCompress }

// Dead says that the worker is gone for its client: whatever is sent to it fails.
func (c *Conn) Dead() bool { return c.dead.Load() }

// Away says that a connection to the worker was seen to be lost, and is being replaced: what comes by it stays at the
// worker meanwhile.
func (c *Conn) Away() bool { return c.resumer != nil && len(c.resumer.missing()) > 0 && !c.Dead() }

// Send sends a record. Its error only says where to go on: the Sink has heard of the worker's end.
func (c *Conn) Send(m clwire.Message, flags uint16, request uint64) error {
	if c.dead.Load() {
		return ErrDead
	}
	c.foretell(m)
	if err := c.link.Send(m, flags, request); err != nil {
		if !errors.Is(err, link.ErrTooLong) {
			c.die(err)
		}
		return err
	}
	return nil
}

// foretell has a command count for how long the next wait takes.
func (c *Conn) foretell(m clwire.Message) {
	switch m := m.(type) {
	case *clwire.NDRange:
		c.course.Launch(m.Kernel, m.Global)
	case *clwire.WriteInline:
		c.course.Command(uint16(clwire.TypeWriteInline))
	case interface {
		clwire.Message
		Head() *clwire.Cmd
	}:
		c.course.Command(uint16(m.Type()))
	}
}

// SendOneWay is Send for records whose failure shows elsewhere: releases, flushes.
func (c *Conn) SendOneWay(m clwire.Message) {
	_ = c.Send(m, 0, 0) // a dead worker has forgotten the object anyway
}

// SendLazy is SendOneWay for what is in no hurry at all, the release of an event that has ended: across a network it
// goes with whatever is sent next. Sent by itself, for each report of a chain's ends, it woke a thread here to send
// it and the worker's reader for nothing.
func (c *Conn) SendLazy(m clwire.Message) {
	_ = c.Send(m, clwire.FlagMore, 0)
}

// Kick sends what the link may have kept back.
func (c *Conn) Kick() { c.link.Kick() }

// MemoryWritten is called between a copy into or out of memory that the worker looks at and the record that says so.
func (c *Conn) MemoryWritten() { c.written.Add(1) }

// die gives the worker up: everything outstanding fails, and the Sink is told. Only the first call has an effect. It
// takes leaf locks only.
func (c *Conn) die(cause error) {
	if c.dead.Swap(true) {
		return
	}
	c.link.Shutdown()
	if c.bulk != nil {
		c.bulk.end()
	}
	if c.resumer != nil {
		c.resumer.noteLoss() // it ends
	}
	c.mu.Lock()
	calls, gates := c.calls, c.gates
	c.calls, c.gates = numbered.Table[Call]{}, map[uint64]*Gate{}
	c.mu.Unlock()
	for _, call := range calls.All() {
		call.fail()
	}
	for _, gate := range gates {
		gate.open(cl.OUT_OF_RESOURCES)
	}
	c.opt.Sink.Lost(cause, c.closed.Load())
	close(c.settled)
	c.reader.wakeAll()
}

// AwaitSettled waits, where the worker is dead, until its calls and events have failed: so no call of the program's
// fails before they have. It is for the program's threads, never for what die calls.
func (c *Conn) AwaitSettled() {
	if c.dead.Load() {
		<-c.settled
	}
}

// exitPatience bounds how long Exit waits: a daemon that cannot be reached answers only when its connection is given
// up.
var exitPatience = 30 * time.Second // tests have more

// exitQuestions is how often Exit asks a daemon that says each time, after a second, that the worker is still there: on
// a busy machine the end of a process with many threads takes longer than that of its socket.
const exitQuestions = 8

// Exit asks the daemon how the worker ended: "" when it does not know, or does not say in time or before hurry is
// closed. over: with the whole session, by the daemon.
func (c *Conn) Exit(hurry <-chan struct{}) (how string, over bool) {
	type fate struct {
		how  string
		over bool
	}
	answer := make(chan fate, 1)
	go func() {
		for range exitQuestions {
			alive, how, err := c.opt.Control.WorkerFate(c.id)
			if err == nil && alive {
				continue
			}
			ended := (*SessionEndedError)(nil)
			switch {
			case errors.As(err, &ended):
				answer <- fate{ended.Why, true}
			case err != nil:
				answer <- fate{}
			default:
				answer <- fate{how: how}
			}
			return
		}
		answer <- fate{}
	}()
	select {
	case f := <-answer:
		return f.how, f.over
	case <-hurry:
	case <-time.After(exitPatience):
	}
	return "", false
}

// End ends the worker from this side: whoever waits, or sends, fails. The memory of the connection stays until Close.
func (c *Conn) End() {
	c.closed.Store(true)
	c.die(ErrDead)
}

// Close is End, and joins the goroutines of the connection. Nobody may be waiting or sending.
func (c *Conn) Close() {
	c.End()
	c.resumer.close()
	if c.bulk != nil {
		c.bulk.close()
	}
	c.reader.stop()
	c.opt.Control.CloseWorker(c.id)
}

func (c *Conn) log(format string, args ...any) { c.opt.Log(fmt.Sprintf("tendril: "+format, args...)) }
