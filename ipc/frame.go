// Package ipc carries the frames of the local protocol (PROTOCOL.md) over a unix stream socket, with the descriptors
// that travel beside them, and says who is at the other end. It knows no message; ipc/wire does.
//
// It trusts the kernel for the peer's identity. It does not trust the peer: a length is checked before anything is
// allocated for it, received descriptors are close-on-exec and closed when no frame claims them, and no peer can make
// it hold more than MaxPayload and a few descriptors.
//
// A Dialed is for one reader and one writer at a time, which its user arranges; so is an Accepted. No locks here.
package ipc

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// Limits of the protocol.
const (
	HeaderBytes = 16
	MaxPayload  = 1 << 20 // bytes of one frame's payload
	MaxFDs      = 2       // descriptors of one frame
)

// Flags of a frame.
const (
	FlagFD   uint16 = 1 // one descriptor travels with the frame
	FlagFD2  uint16 = 2 // two descriptors
	FlagMore uint16 = 4 // the reply goes on in another frame
	FlagLazy uint16 = 8 // a request's: its reply may wait until something else is sent to the requester
)

// Header begins each frame.
type Header struct {
	Length  uint32 // bytes of payload
	Type    wire.Type
	Flags   uint16
	Request uint64 // 0: no reply wanted
}

// AppendHeader appends a header with room for the length, and gives where it stands for FinishFrame.
func AppendHeader(b []byte, t wire.Type, flags uint16, request uint64) (out []byte, at int) {
	at = len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(t))
	b = binary.LittleEndian.AppendUint16(b, flags)
	return binary.LittleEndian.AppendUint64(b, request), at
}

// FinishFrame writes the length of the payload that was appended after AppendHeader's header at at.
func FinishFrame(b []byte, at int) {
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-HeaderBytes))
}

// SetLength is FinishFrame for a payload that is sent behind b and not appended to it.
func SetLength(b []byte, at, payload int) { binary.LittleEndian.PutUint32(b[at:], uint32(payload)) }

// Payload is what a frame is filled with; the messages of ipc/wire are.
type Payload interface{ Append([]byte) []byte }

// AppendFrame appends a whole frame. A nil payload is an empty one.
func AppendFrame(b []byte, t wire.Type, flags uint16, request uint64, p Payload) []byte {
	b, at := AppendHeader(b, t, flags, request)
	if p != nil {
		b = p.Append(b)
	}
	FinishFrame(b, at)
	return b
}

// parseHeader reads and checks a header.
func parseHeader(b []byte) (Header, error) {
	h := Header{
		Length:  binary.LittleEndian.Uint32(b),
		Type:    wire.Type(binary.LittleEndian.Uint16(b[4:])),
		Flags:   binary.LittleEndian.Uint16(b[6:]),
		Request: binary.LittleEndian.Uint64(b[8:]),
	}
	switch {
	case h.Length > MaxPayload:
		return h, fmt.Errorf("%w: a payload of %d bytes, at most %d", object.ErrProtocol, h.Length, MaxPayload)
	case h.Flags&^(FlagFD|FlagFD2|FlagMore|FlagLazy) != 0 || h.Flags&FlagFD != 0 && h.Flags&FlagFD2 != 0:
		return h, fmt.Errorf("%w: frame flags 0x%x", object.ErrProtocol, h.Flags)
	}
	return h, nil
}

// descriptors gives how many descriptors travel with the frame.
func (h Header) descriptors() int { return int(h.Flags & (FlagFD | FlagFD2)) } // the flags' values are the counts

// Frame is one received frame. Payload aliases the receive buffer and is valid until the next receive. The receiver
// owns FDs[:NumFDs].
type Frame struct {
	Header
	Payload []byte
	FDs     [MaxFDs]int
	NumFDs  int
}

// CloseFDs closes the frame's descriptors that were not taken (set to −1).
func (f *Frame) CloseFDs() {
	for i := range f.NumFDs {
		if f.FDs[i] >= 0 {
			unix.Close(f.FDs[i])
			f.FDs[i] = -1
		}
	}
}
