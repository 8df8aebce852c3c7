package wire

import (
	"tendril/store/object"
)

// SealFilledRequest is Seal that waits until nobody else fills the object.
//
//wire:payload SealFilled
type SealFilledRequest struct {
	SealRequest
	Despite bool   // seal it although somebody ended in the middle of filling it
	WaitMS  uint32 // WaitForEver: without end
}

// ComposeRequest makes a composite.
//
//wire:payload Compose
type ComposeRequest struct {
	Class   object.Class
	Name    string
	Meta    []byte
	TTLMS   uint64 // class ttl: ms from now on
	Labels  map[string]string
	Members []object.Member `wire:"max=object.MaxMembers"`
}
