package link

import (
	"sync/atomic"

	"tendril/forwarding/clwire"
)

// Compression is what the lanes of one worker, or of one link between workers, have in common: whether the peer takes
// packed chunks, and how much was saved. A lane packs what it sends while its connection is slower than the packing
// (see packer); it takes packed chunks wherever there is a Compression at all.
type Compression struct {
	greatest atomic.Uint32 // ways to pack that the peer takes; 0: none, yet
	counts   [4]atomic.Uint64
}

// Allow notes that the peer takes chunks packed in every way up to the greatest.
func (c *Compression) Allow(greatest clwire.Packing) {
	c.greatest.Store(uint32(min(greatest, clwire.GreatestPacking)))
}

// CompressionCounts are bytes of payload since the start, of all chunks, packed or not.
type CompressionCounts struct {
	Sent, SentWire   uint64 // as the program has them; as they went
	Taken, TakenWire uint64
}

// Packed says whether anything went in fewer bytes than it has.
func (c CompressionCounts) Packed() bool { return c.SentWire < c.Sent || c.TakenWire < c.Taken }

// Counts returns how much went so far. c may be nil.
func (c *Compression) Counts() CompressionCounts {
	if c == nil {
		return CompressionCounts{}
	}
	return CompressionCounts{c.counts[0].Load(), c.counts[1].Load(), c.counts[2].Load(), c.counts[3].Load()}
}

func (c *Compression) sent(h *clwire.LaneHeader) { c.count(0, h) }

func (c *Compression) taken(h *clwire.LaneHeader) { c.count(2, h) }

func (c *Compression) count(at int, h *clwire.LaneHeader) {
	if c != nil && !h.Skipped {
		c.counts[at].Add(uint64(h.Length))
		c.counts[at+1].Add(uint64(h.WireBytes()))
	}
}
