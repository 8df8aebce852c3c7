package wire

// MaxScrubPlace bounds a place in a scrub.
const MaxScrubPlace = 512

// ScrubRequest asks for a step of a scrub: the first one, or from the place on that the step before gave. The reply is
// an object.ScrubReport as JSON.
//
//wire:payload Scrub
type ScrubRequest struct{ From string }
