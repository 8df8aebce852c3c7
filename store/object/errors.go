package object

import (
	"errors"
	"fmt"
)

// Code is the number an error travels under (ipc/PROTOCOL.md, "Error codes"). 0 is no error.
type Code uint16

// Sentinel is an error with a number. Wrap it with %w, the value that was wrong and what to do about it.
type Sentinel struct {
	code Code
	text string
	of   *Sentinel // the wider one that it is a case of; nil: none
}

// Error gives the sentinel's short text.
func (s *Sentinel) Error() string { return s.text }

// Code gives the sentinel's number.
func (s *Sentinel) Code() Code { return s.code }

// Unwrap gives the wider sentinel that this one is a case of; nil: there is none.
func (s *Sentinel) Unwrap() error {
	if s.of == nil {
		return nil
	}
	return s.of
}

// The sentinel errors of the whole store. Their numbers never change.
var (
	ErrProtocol    = &Sentinel{code: 1, text: "protocol violation"}
	ErrInvalid     = &Sentinel{code: 2, text: "invalid argument"}
	ErrNotFound    = &Sentinel{code: 3, text: "not found"}
	ErrExists      = &Sentinel{code: 4, text: "already exists"}
	ErrNotSealed   = &Sentinel{code: 5, text: "not sealed yet"}
	ErrSealed      = &Sentinel{code: 6, text: "already sealed"}
	ErrFull        = &Sentinel{code: 7, text: "store is full"}
	ErrQuota       = &Sentinel{code: 8, text: "tenant's quota is used up"}
	ErrPermission  = &Sentinel{code: 9, text: "permission denied"}
	ErrUnsupported = &Sentinel{code: 10, text: "not supported"}
	ErrTimeout     = &Sentinel{code: 11, text: "timed out"}
	ErrBusy        = &Sentinel{code: 12, text: "busy"}
	ErrVersion     = &Sentinel{code: 13, text: "no common protocol version"}
	ErrInternal    = &Sentinel{code: 14, text: "internal error"}
	ErrNoDevice    = &Sentinel{code: 15, text: "no such device, driver or worker"}
	// ErrLimit is a number that is used up, of objects, segments or streams: waiting for memory does not help. It is an
	// ErrQuota, too.
	ErrLimit   = &Sentinel{code: 16, text: "a limit is reached", of: ErrQuota}
	ErrStorage = &Sentinel{code: 64, text: "the object's bytes cannot be used"}
	ErrEnded   = &Sentinel{code: 80, text: "the stream has ended"}
	ErrAborted = &Sentinel{code: 81, text: "aborted"}
)

// sentinels is indexed by code; numbers that are not given are nil. Read only.
var sentinels = [...]*Sentinel{
	nil, ErrProtocol, ErrInvalid, ErrNotFound, ErrExists, ErrNotSealed, ErrSealed, ErrFull, ErrQuota,
	ErrPermission, ErrUnsupported, ErrTimeout, ErrBusy, ErrVersion, ErrInternal, ErrNoDevice, ErrLimit,
	64: ErrStorage, 80: ErrEnded, 81: ErrAborted,
}

// CodeOf gives the number of the sentinel that err wraps; ErrInternal's where it wraps none; 0 for nil.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	var s *Sentinel
	if errors.As(err, &s) {
		return s.code
	}
	return ErrInternal.code
}

// IsShort reports whether err is for want of memory, which comes back when others let go of it: waiting may help.
func IsShort(err error) bool {
	return (errors.Is(err, ErrFull) || errors.Is(err, ErrQuota)) && !errors.Is(err, ErrLimit)
}

// RemoteError is an error that another process answered. errors.Is finds its sentinel.
type RemoteError struct {
	sentinel *Sentinel
	text     string
}

// Error gives the text that the other process sent.
func (e *RemoteError) Error() string { return e.text }

// Unwrap gives the sentinel.
func (e *RemoteError) Unwrap() error { return e.sentinel }

// FromCode rebuilds the error that another process sent as a number and a text. A number from a newer
// version that this one does not know becomes ErrInternal. Code 0 is nil.
func FromCode(code Code, text string) error {
	if code == 0 {
		return nil
	}
	sentinel, known := ErrInternal, int(code) < len(sentinels) && sentinels[code] != nil
	if known {
		sentinel = sentinels[code]
	}
	if text == "" {
		text = sentinel.text
	}
	if !known {
		text = fmt.Sprintf("%s (unknown error code %d)", text, code)
	}
	return &RemoteError{sentinel: sentinel, text: text}
}
