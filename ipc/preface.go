package ipc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// PrefaceBytes is the length of what begins each connection over TCP, and each data connection over the unix socket.
const PrefaceBytes = 48

// TicketBytes is the length of a ticket.
const TicketBytes = 32

// Kinds of connections.
const (
	KindControl uint8 = 0 // TLS with the daemon, then frames
	KindTicket  uint8 = 1 // goes on with the worker that the ticket names
	KindRaft    uint8 = 2 // TLS between two daemons of a cluster, then raft's messages

	KindTransfer uint8 = 3 // TLS between two nodes, then cluster/transfer's messages
)

// PrefaceVersion is the only version of what follows a preface so far.
const PrefaceVersion = 1

const (
	prefaceMagic     = "TENDRIL1"
	prefaceWordBytes = 8
	prefaceOrder     = 0x0102
)

// Preface is sent in the clear before anything else (PROTOCOL.md).
type Preface struct {
	Lowest, Highest uint16 // versions that the client speaks
	Kind            uint8
	Ticket          [TicketBytes]byte // zero but for KindTicket
}

// NewPreface makes a preface of this version.
func NewPreface(kind uint8, ticket [TicketBytes]byte) Preface {
	return Preface{PrefaceVersion, PrefaceVersion, kind, ticket}
}

// Append appends the 48 bytes.
func (p Preface) Append(b []byte) []byte {
	b = append(b, prefaceMagic...)
	b = binary.LittleEndian.AppendUint16(b, p.Lowest)
	b = binary.LittleEndian.AppendUint16(b, p.Highest)
	b = append(b, p.Kind, prefaceWordBytes)
	b = binary.LittleEndian.AppendUint16(b, prefaceOrder)
	return append(b, p.Ticket[:]...)
}

// ParsePreface reads and checks a preface. Errors: ErrProtocol; ErrVersion where there is no common one.
func ParsePreface(b *[PrefaceBytes]byte) (p Preface, err error) {
	fault := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{object.ErrProtocol}, args...)...)
	}
	p = Preface{Lowest: binary.LittleEndian.Uint16(b[8:]), Highest: binary.LittleEndian.Uint16(b[10:]), Kind: b[12]}
	copy(p.Ticket[:], b[16:])
	switch order := binary.LittleEndian.Uint16(b[14:]); {
	case string(b[:8]) != prefaceMagic:
		return p, fault("a connection that begins with %q: is it a Tendril client?", b[:8])
	case order != prefaceOrder || b[13] != prefaceWordBytes:
		return p, fault("byte order mark 0x%x and words of %d bytes, want 0x%x and %d", order, b[13], prefaceOrder,
			prefaceWordBytes)
	case p.Lowest > PrefaceVersion || p.Highest < PrefaceVersion:
		return p, fmt.Errorf("%w: the client speaks versions %d to %d, this daemon %d: use the same release",
			object.ErrVersion, p.Lowest, p.Highest, PrefaceVersion)
	case p.Kind > KindTransfer:
		return p, fault("a connection of kind %d", p.Kind)
	case (p.Kind != KindTicket) != (p.Ticket == [TicketBytes]byte{}):
		return p, fault("a connection of kind %d with a ticket of the wrong form", p.Kind)
	}
	return p, nil
}

// BeginsWithFrame takes in some of what a connection over the unix socket begins with, without waiting. known is false
// where nothing came yet; frame where the peer begins with a frame, and not with what Preface reads.
func (a *Accepted) BeginsWithFrame() (frame, known bool, err error) {
	if a.in.end == a.in.start {
		a.room = a.in.room()[:PrefaceBytes]
		a.got, a.gotErr = recvNow(a.fd, a.room)
		if errors.Is(a.gotErr, unix.EAGAIN) || errors.Is(a.gotErr, unix.EINTR) {
			return false, false, nil
		}
		if err := a.took(); err != nil {
			return false, false, err
		}
	}
	have := a.in.buf[a.in.start:a.in.end]
	n := min(len(have), len(prefaceMagic))
	return string(have[:n]) != prefaceMagic[:n], true, nil
}

// Preface reads what a data connection over the unix socket begins with; ok is false where the peer begins with a frame
// instead. It comes before the first Receive and takes nothing behind the preface from the socket.
func (a *Accepted) Preface() (p Preface, ok bool, err error) {
	for {
		have := a.in.buf[a.in.start:a.in.end]
		if n := min(len(have), len(prefaceMagic)); n > 0 && string(have[:n]) != prefaceMagic[:n] {
			return p, false, nil
		}
		if len(have) == PrefaceBytes {
			p, err = ParsePreface((*[PrefaceBytes]byte)(have))
			a.in.start, a.in.end = 0, 0
			return p, true, err
		}
		if err := a.fillAtMost(PrefaceBytes - len(have)); err != nil {
			return p, false, err
		}
	}
}

// HandOn leaves the connection to another process: give passes the descriptor on, which is closed here afterwards and,
// unlike by Shutdown, not ended for whoever has it now. Where give fails the connection stays. No Receive or Send may
// be under way, and none may follow.
func (a *Accepted) HandOn(give func(fd int) error) error {
	a.stopLingering()
	a.leavePark() // blocking or not is the socket's, not the descriptor's: nothing may change it later
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return net.ErrClosed
	}
	if err := give(a.fd); err != nil {
		return err
	}
	return a.letGo()
}
