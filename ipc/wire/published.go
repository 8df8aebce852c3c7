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
