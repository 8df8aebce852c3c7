// Package graphs keeps what command buffers (cl_khr_command_buffer 0.9.0) have recorded: each command as a record with
// an empty head, the buffers that it names, and whether the worker has the commands as they are.
//
// It trusts who records: a command comes here checked as one that is enqueued. A Graph's lock is held during the call
// that records a command, and during a replay. Buffers, launches and Replays are called with it held, so their locks
// come after it, and they may not come back to the Graph.
package graphs

import (
	"bytes"
	"slices"
	"sync"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/transfer"
)

// Buffer is a cl_mem that a command names.
type Buffer interface {
	Number() uint64 // by which the worker knows it now
	Retain() bool   // takes a reference; false: there is none left
	LetGo()         // gives it back
}

// Use is a buffer that a command names.
type Use struct {
	Buffer Buffer
	Writes bool
	number uint64 // by which the record names it
}

// Launch is a recorded launch of a kernel, with the arguments of the time of recording.
type Launch interface {
	Record() clwire.Message // as it is now, with an empty head
	LetGo()                 // gives back what it refers to
}

// command is one command: a copy or a fill with its buffers, or a launch.
type command struct {
	m      clwire.Message // nil: a launch
	uses   []Use
	launch Launch
}

// Graph is a cl_command_buffer_khr. Q is the queue that it was made for.
type Graph[Q any] struct {
	Refs  handle.Refs
	ID    uint64 // by which the worker knows it; immutable, as what follows
	Queue Q
	given []uint64 // properties, 0-terminated; nil: none

	simultaneous bool

	mu       sync.Mutex
	final    bool
	commands []command
	points   uint32 // sync points given out
	sent     bool   // the worker has the commands as they are
	bytes    int    // of what it has, or will have
	last     Event  // of the newest replay; nil: none
}

// New is clCreateCommandBufferKHR but for the queue. It has one reference.
func New[Q any](id uint64, q Q, given []uint64) (*Graph[Q], api.Status) {
	g := &Graph[Q]{ID: id, Queue: q, given: given}
	seen := false
	for i := 0; i+1 < len(given) && given[i] != 0; i += 2 {
		if given[i] != cl.COMMAND_BUFFER_FLAGS_KHR || seen || given[i+1]&^cl.COMMAND_BUFFER_SIMULTANEOUS_USE_KHR != 0 {
			return nil, cl.INVALID_VALUE
		}
		seen, g.simultaneous = true, given[i+1] != 0
	}
	g.Refs.Set(1)
	return g, cl.SUCCESS
}

// Given is the properties that it was made with, 0-terminated, or nil.
func (g *Graph[Q]) Given() []uint64 { return g.given }

// Finalize is clFinalizeCommandBufferKHR.
func (g *Graph[Q]) Finalize() api.Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.final {
		return cl.INVALID_OPERATION
	}
	g.final = true
	return cl.SUCCESS
}

// State is CL_COMMAND_BUFFER_STATE_KHR.
func (g *Graph[Q]) State() uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stateLocked()
}

func (g *Graph[Q]) stateLocked() uint32 {
	switch {
	case !g.final:
		return cl.COMMAND_BUFFER_STATE_RECORDING_KHR
	case g.last != nil && g.last.Pending():
		return cl.COMMAND_BUFFER_STATE_PENDING_KHR
	}
	return cl.COMMAND_BUFFER_STATE_EXECUTABLE_KHR
}

// Record has call record one command by Add or AddLaunch, and gives out its sync point. A nil call is a barrier. Sync
// points need no more than to be ones: a replay keeps the order of recording.
func (g *Graph[Q]) Record(s api.SyncPoints, call func() api.Status) (point uint32, status api.Status) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case s.Queue != 0:
		return 0, cl.INVALID_COMMAND_QUEUE
	case g.final:
		return 0, cl.INVALID_OPERATION
	case s.Mutable:
		return 0, cl.INVALID_VALUE
	case (s.N == 0) != (s.List == nil), slices.ContainsFunc(s.List, func(p uint32) bool { return p >= g.points }):
		return 0, cl.INVALID_SYNC_POINT_WAIT_LIST_KHR
	}
	if call != nil {
		if status := call(); status != cl.SUCCESS {
			return 0, status
		}
	}
	g.points++
	return g.points - 1, cl.SUCCESS
}

// roomLocked books the bytes of one more command.
func (g *Graph[Q]) roomLocked(m clwire.Message) api.Status {
	n := len(clwire.AppendRecorded(nil, m))
	if n > transfer.RecordBytes || g.bytes+n > clwire.MaxGraphBytes || len(g.commands) == clwire.MaxGraphCommands {
		return cl.OUT_OF_RESOURCES
	}
	g.bytes += n
	return cl.SUCCESS
}

// Add records a copy or a fill, within Record's call. The Graph keeps a reference to each buffer.
func (g *Graph[Q]) Add(m clwire.Message, uses []Use) api.Status {
	for i := range uses {
		uses[i].number = uses[i].Buffer.Number()
		if !uses[i].Buffer.Retain() {
			letGo(uses[:i])
			return cl.INVALID_MEM_OBJECT // released since it was looked at
		}
	}
	if status := g.roomLocked(m); status != cl.SUCCESS {
		letGo(uses)
		return status
	}
	if fill, ok := m.(*clwire.Fill); ok {
		fill.Pattern = bytes.Clone(fill.Pattern) // it is the program's
	}
	g.commands = append(g.commands, command{m: m, uses: uses})
	return cl.SUCCESS
}

func letGo(uses []Use) {
	for _, u := range uses {
		u.Buffer.LetGo()
	}
}

// AddLaunch records a launch, within Record's call. The launch is the Graph's if the status is cl.SUCCESS.
func (g *Graph[Q]) AddLaunch(l Launch) api.Status {
	status := g.roomLocked(l.Record())
	if status == cl.SUCCESS {
		g.commands = append(g.commands, command{launch: l})
	}
	return status
}

// record is the command as it travels, with an empty head.
func (c *command) record() clwire.Message {
	if c.launch != nil {
		return c.launch.Record()
	}
	return c.m
}

// Forget lets the objects of the recorded commands go. What was enqueued goes on: the worker holds what its commands
// use. Before that it calls known if the worker may know of the Graph.
func (g *Graph[Q]) Forget(known func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sent || g.last != nil {
		known()
	}
	for _, c := range g.commands {
		letGo(c.uses)
		if c.launch != nil {
			c.launch.LetGo()
		}
	}
	g.commands = nil
}
