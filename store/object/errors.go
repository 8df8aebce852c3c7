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
}

// Error gives the sentinel's short text.
func (s *Sentinel) Error() string { return s.text }

// Code gives the sentinel's number.
func (s *Sentinel) Code() Code { return s.code }

// The sentinel errors of the whole store. Their numbers never change.
var (
	ErrProtocol    = &Sentinel{1, "protocol violation"}
	ErrInvalid     = &Sentinel{2, "invalid argument"}
	ErrNotFound    = &Sentinel{3, "not found"}
	ErrExists      = &Sentinel{4, "already exists"}
	ErrNotSealed   = &Sentinel{5, "not sealed yet"}
	ErrSealed      = &Sentinel{6, "already sealed"}
	ErrFull        = &Sentinel{7, "store is full"}
	ErrQuota       = &Sentinel{8, "tenant's quota is used up"}
	ErrPermission  = &Sentinel{9, "permission denied"}
	ErrUnsupported = &Sentinel{10, "not supported"}
	ErrTimeout     = &Sentinel{11, "timed out"}
	ErrBusy        = &Sentinel{12, "busy"}
	ErrVersion     = &Sentinel{13, "no common protocol version"}
	ErrInternal    = &Sentinel{14, "internal error"}
	ErrNoDevice    = &Sentinel{15, "no such device, driver or worker"}
	ErrStorage     = &Sentinel{64, "the object's bytes cannot be used"}
	ErrEnded       = &Sentinel{80, "the stream has ended"}
	ErrAborted     = &Sentinel{81, "aborted"}
)

// sentinels is indexed by code; numbers that are not given are nil. Read only.
var sentinels = [...]*Sentinel{
	nil, ErrProtocol, ErrInvalid, ErrNotFound, ErrExists, ErrNotSealed, ErrSealed, ErrFull, ErrQuota,
	ErrPermission, ErrUnsupported, ErrTimeout, ErrBusy, ErrVersion, ErrInternal, ErrNoDevice,
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
	sentinel := ErrInternal
	if int(code) < len(sentinels) && sentinels[code] != nil {
		sentinel = sentinels[code]
	} else {
		text = fmt.Sprintf("%s (unknown error code %d)", text, code)
	}
	if text == "" {
		text = sentinel.text
	}
	return &RemoteError{sentinel: sentinel, text: text}
}
