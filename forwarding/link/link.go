package link

import (
	"os"
	"time"

	"tendril/forwarding/clwire"
)

// Link is the control stream as a session and a worker use it: a Conn on one
// node, a Stream across a network.
//
// Send, SendFD, Kick, Empty, Hung and Shutdown may run concurrently with
// everything; the rest belongs to one goroutine at a time.
type Link interface {
	// Send publishes one record; it is encoded when Send returns. It may travel
	// a little later, unless its flags hold FlagUrgent: see Kick.
	Send(m clwire.Message, flags uint16, request uint64) error
	// Kick sends what was published and still waits for company.
	Kick()
	// Next, Done, Empty, Arm, Awake and Block: see Conn.
	Next() (h clwire.Header, payload []byte, ok bool, err error)
	Done()
	Empty() bool
	Arm(state uint32) bool
	Awake()
	Block(wake int, timeout time.Duration) error
	// Flush reports whether something could not be sent yet and needs another call.
	Flush() (waits bool, err error)
	Hung() bool
	// SetTap makes f hear of every record that Send publishes; n is the payload's bytes. It is called once, before
	// the first Send; f must not use the link.
	SetTap(f func(t clwire.Type, n int))
	Shutdown()
	Close() error
	// SendFD and TakeFD pass descriptors; a Stream has none and returns ErrNoFD.
	SendFD(f *os.File) error
	TakeFD() (*os.File, error)
}

var (
	_ Link = (*Conn)(nil)
	_ Link = (*Stream)(nil)
)

// Kick does nothing: what is in a ring has arrived.
func (c *Conn) Kick() {}
