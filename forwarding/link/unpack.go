package link

import (
	"fmt"

	"github.com/klauspost/compress/s2"

	"tendril/forwarding/clwire"
)

// unpacker has what a lane's reader took of a packed chunk. Its scratch memory is there from the first packed chunk on:
// three times a chunk.
type unpacker struct {
	now   clwire.LaneHeader // Packing Plain: nothing is pending
	begun bool              // the chunk was taken off the lane
	left  []byte            // of a chunk that is read in parts
	wire  []byte            // the chunk as it came
	plain []byte
	words []byte
}

func (u *unpacker) pending() bool { return u.now.Packing != clwire.Plain }

// expect makes what Lane.Read returns come from a packed chunk.
func (u *unpacker) expect(h clwire.LaneHeader) {
	u.now, u.begun, u.left = h, false, nil
}

// readPacked is Read of a packed chunk's payload, in one part or several.
func (l *Lane) readPacked(p []byte) error {
	u := &l.unpacker
	length := int(u.now.Length)
	if !u.begun {
		u.begun = true
		u.wire = scratch(u.wire)
		if err := l.readWire(u.wire[:u.now.Packed]); err != nil {
			return err
		}
		if len(p) == length {
			defer u.expect(clwire.LaneHeader{})
			return u.unpack(p)
		}
		u.plain = scratch(u.plain)
		u.left = u.plain[:length]
		if err := u.unpack(u.left); err != nil {
			return err
		}
	}
	if len(p) > len(u.left) {
		return fmt.Errorf("%w: %d bytes wanted of a chunk that has %d more", ErrCorrupt, len(p), len(u.left))
	}
	u.left = u.left[copy(p, u.left):]
	if len(u.left) == 0 {
		u.expect(clwire.LaneHeader{})
	}
	return nil
}

// discardPacked is Discard of a packed chunk that was not begun.
func (l *Lane) discardPacked() error {
	u := &l.unpacker
	n := u.now.Packed
	u.expect(clwire.LaneHeader{})
	u.wire = scratch(u.wire)
	return l.readWire(u.wire[:n])
}

func scratch(b []byte) []byte {
	if b == nil {
		b = make([]byte, clwire.MaxChunk)
	}
	return b
}

// unpack fills p, which has the chunk's length, from wire. Whatever the bytes claim, no more is written.
func (u *unpacker) unpack(p []byte) error {
	wire, to := u.wire[:u.now.Packed], p[:len(p):len(p)]
	if u.now.Packing == clwire.PackedWords {
		u.words = scratch(u.words)
		to = u.words[:len(p):len(p)]
	}
	if n, err := s2.DecodedLen(wire); err != nil || n != len(p) {
		return fmt.Errorf("%w: a packed chunk of %d bytes claims to be %d (%v)", ErrCorrupt, len(p), n, err)
	}
	plain, err := s2.Decode(to, wire)
	if err != nil || len(plain) != len(p) || &plain[0] != &to[0] {
		return fmt.Errorf("%w: a packed chunk of %d bytes came as %d: %v", ErrCorrupt, len(p), len(plain), err)
	}
	if u.now.Packing == clwire.PackedWords {
		join(p, plain)
	}
	return nil
}
