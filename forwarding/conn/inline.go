package conn

import "tendril/forwarding/clwire"

// A transfer's bytes travel on the control stream, in the command's record or behind it, or by the lanes. A lane wakes
// two threads at each end: a frame of 64 KiB written, worked on by a GPU and read back took 500 µs, natively 35.
const (
	alwaysInline = 32 << 10  // bytes that fit any control stream, a ring's too
	mostInFlight = 256 << 10 // bytes of larger transfers that may be under way: commands wait behind them
)

// FitsInline says whether size bytes may travel on the control stream. A large transfer that may is counted as under
// way until the worker says something.
func (c *Conn) FitsInline(size uint64) bool {
	switch {
	case size <= alwaysInline:
		return true
	case size > clwire.InlineBytes || c.bulk == nil:
		return false
	case c.bulk.compression.Counts().Packed(): // a slow link, whose lanes carry fewer bytes
		return false
	}
	return c.inlineInFlight.Add(size) <= mostInFlight
}
