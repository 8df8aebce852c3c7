package ways

import (
	"sync"
	"sync/atomic"

	"tendril/forwarding/api"
	"tendril/forwarding/session/memory"
	"tendril/forwarding/session/mirror"
	"tendril/forwarding/session/transfer"
)

// Session is what the transfers of a session share.
type Session struct {
	Slabs      *memory.Slabs
	NewID      func() uint64
	Background *sync.WaitGroup // counts goroutines that outlive the call that started them
	Reads      transfer.ReadHazards

	stagedBytes atomic.Int64 // of staged reads under way
}

// StagedBytes is how many bytes of staged reads are under way.
func (s *Session) StagedBytes() int64 { return s.stagedBytes.Load() }

// Context is what the transfers of a context share. Its exported fields are set before the first transfer.
type Context struct {
	*Session
	InPlace   bool // every device computes on shared segments
	Remote    bool // the worker is on another machine
	Mirrors   *mirror.List
	MoveQueue func() (Queue, api.Status) // the context's own queue, for moves of this side's

	Staging     memory.Staging
	Views       memory.Views // of maps: what the devices' driver has pinned
	AsyncWrites AsyncWrites
}

// Staged says that bytes pass through shared memory on their way to a device: neither does it compute there nor is it
// on another machine.
func (c *Context) Staged() bool { return !c.InPlace && !c.Remote }
