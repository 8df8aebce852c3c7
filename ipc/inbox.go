package ipc

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

const (
	smallInbox = 8 << 10  // where an inbox begins: most connections never see more
	largeInbox = 64 << 10 // what a busy one grows to; beyond only for one large frame
)

// inbox takes in bytes and descriptors and gives out frames. The kernel hands descriptors over with or before the
// first byte of the frame that announces them, so a queue pairs them.
type inbox struct {
	buf        []byte
	start, end int // buf[start:end] is received and not given out
	fds        []int

	skip int // bytes of a refused frame that are yet to come

	// nil, or asked before more bytes are taken for a large frame; its error comes back
	admit func(h Header, more int) error
	free  func(n int) // and told when they are given back
	extra int         // bytes that admit allowed and free was not told of
}

// Refused is an error of admit's that is about the frame alone: the rest of that is passed over, and the next Receive
// goes on behind it.
type Refused struct {
	Request uint64
	error
}

// Refuse makes a Refused of the request with that number.
func Refuse(request uint64, why error) *Refused { return &Refused{request, why} }

// Unwrap gives the reason.
func (r *Refused) Unwrap() error { return r.error }

// passOver drops what is there of a refused frame.
func (in *inbox) passOver() {
	n := min(in.skip, in.end-in.start)
	in.start += n
	in.skip -= n
}

// next gives the next whole frame, if one is there.
func (in *inbox) next() (f Frame, ok bool, err error) {
	in.passOver()
	have := in.end - in.start
	if have < HeaderBytes {
		return Frame{}, false, nil
	}
	h, err := parseHeader(in.buf[in.start:])
	f.Header = h
	if err == nil && have < HeaderBytes+int(h.Length) {
		if err = in.ask(h); err != nil && errors.As(err, new(*Refused)) {
			in.skip = HeaderBytes + int(h.Length)
			in.passOver()
		}
		return f, false, err
	} else if err != nil {
		return f, false, err
	}
	if n := h.descriptors(); n > len(in.fds) {
		return f, false, fmt.Errorf("%w: a frame announced %d descriptors and brought %d", object.ErrProtocol,
			n, len(in.fds))
	} else if n > 0 {
		f.NumFDs = copy(f.FDs[:n], in.fds)
		in.fds = append(in.fds[:0], in.fds[n:]...)
	}
	from := in.start + HeaderBytes
	in.start = from + int(h.Length)
	f.Payload = in.buf[from:in.start:in.start]
	return f, true, nil
}

// ask asks for the memory of a large frame that has begun to come.
func (in *inbox) ask(h Header) error {
	more := HeaderBytes + int(h.Length) - in.extra
	if in.admit == nil || more <= 0 || HeaderBytes+int(h.Length) <= largeInbox {
		return nil
	}
	err := in.admit(h, more)
	if err == nil {
		in.extra += more
	}
	return err
}

// large reports whether a frame has begun to come for whose memory next asks.
func (in *inbox) large() bool {
	in.passOver()
	if in.end-in.start < HeaderBytes {
		return false
	}
	h, err := parseHeader(in.buf[in.start:])
	return err == nil && HeaderBytes+int(h.Length) > largeInbox
}

// whole reports whether next has a frame to give (or a fault to report).
func (in *inbox) whole() bool {
	in.passOver()
	have := in.end - in.start
	if have < HeaderBytes {
		return false
	}
	h, err := parseHeader(in.buf[in.start:])
	return err != nil || have >= HeaderBytes+int(h.Length)
}

// room gives where to receive into, enough for the frame that is under way. Call it only when next gave none.
func (in *inbox) room() []byte {
	need := smallInbox
	if in.end-in.start >= HeaderBytes {
		if h, err := parseHeader(in.buf[in.start:]); err == nil {
			need = max(need, HeaderBytes+int(h.Length))
		}
	}
	waiting := in.buf[in.start:in.end]
	switch {
	case len(waiting) == len(in.buf) && len(in.buf) < largeInbox:
		need = max(need, 2*len(in.buf)) // it came full: there may be more behind
	case len(waiting) == 0 && len(in.buf) > largeInbox:
		in.buf = nil // after a large frame
		if in.extra > 0 {
			in.free(in.extra)
			in.extra = 0
		}
	}
	if need > len(in.buf) {
		in.buf = make([]byte, need)
	}
	in.start, in.end = 0, copy(in.buf, waiting)
	return in.buf[in.end:]
}

// strip gives the buffer of an inbox that has nothing in it, and no memory for a large frame; nil: it keeps what it
// has.
func (in *inbox) strip() []byte {
	if in.start != in.end || in.extra > 0 {
		return nil
	}
	b := in.buf
	in.buf, in.start, in.end = nil, 0, 0
	return b
}

// received takes note of n bytes in room's slice and of descriptors that came with them.
func (in *inbox) received(n int, fds []int) error {
	in.end += n
	in.fds = append(in.fds, fds...)
	if len(in.fds) > 2*MaxFDs {
		return fmt.Errorf("%w: %d descriptors that no frame announced", object.ErrProtocol, len(in.fds))
	}
	return nil
}

// closeFDs closes the descriptors that no frame claimed.
func (in *inbox) closeFDs() {
	for _, fd := range in.fds {
		unix.Close(fd)
	}
	in.fds = nil
}
