package wire

import "tendril/store/object"

// MaxPolicy bounds a placement policy in bytes.
const MaxPolicy = 300

// PlaceRequest asks where a published object's next replica would go, and from where it would be got. The reply is
// JSON.
//
//wire:payload Place
type PlaceRequest struct {
	ID     object.ID // zero = by name
	Name   string
	Policy string // "" = spread; pack; near NODE
}

// ReplicateRequest says how many nodes are to have a published object, or which. The reply is JSON. It does not wait
// for a transfer: asked again, it goes on, and says how far it is.
//
//wire:payload Replicate
type ReplicateRequest struct {
	ID     object.ID // zero = by name
	Name   string
	Wanted uint16 // replicas; 0 = as many as before
	To     string // a node that is to have one; "" = whichever is best
	From   string // Move: the node that is to have none then; "" = this one, or the one that has the oldest
	Move   bool
}
