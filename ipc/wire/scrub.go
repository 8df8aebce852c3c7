package wire

// MaxScrubPlace bounds a place in a scrub.
const MaxScrubPlace = 512

// ScrubRequest asks for a step of a scrub: the first one, or from the place on that the step before gave. The reply is an
// object.ScrubReport as JSON.
type ScrubRequest struct{ From string }

// AppendTo appends the payload.
func (m *ScrubRequest) AppendTo(b []byte) []byte { return appendStr16(b, m.From) }

// Decode reads the payload.
func (m *ScrubRequest) Decode(b []byte) error {
	c := read(b)
	*m = ScrubRequest{From: c.str16()}
	return c.done()
}
