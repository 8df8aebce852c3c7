package link

import (
	"fmt"
	"slices"
	"sync"

	"tendril/forwarding/clwire"
)

// laneLog is what a lane sent and the peer has not acknowledged: where each chunk stands in all that was ever sent, and
// who has its bytes.
type laneLog struct {
	mu     sync.Mutex // leaf
	chunks []logged   // in the order of their places
	acked  uint64     // bytes that the peer has
	sent   uint64     // bytes ever sent
	kept   int        // bytes of packed chunks among chunks
}

// logged is one chunk.
type logged struct {
	at     uint64 // place of its header's first byte
	header clwire.LaneHeader
	from   Source // nil: it has no payload, or packed is it
	packed []byte // a packed chunk is kept: its bytes may pack to others later
}

func (x *logged) payload() uint64 {
	return uint64(x.header.WireBytes())
}

func (x *logged) end() uint64 { return x.at + clwire.LaneHeaderBytes + x.payload() }

// add notes a chunk; packed is the log's from then on, if it is not nil.
func (g *laneLog) add(h clwire.LaneHeader, from Source, packed []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.chunks) >= maxLog {
		return fmt.Errorf("%w: it acknowledges none of %d chunks", ErrBacklog, len(g.chunks))
	}
	x := logged{at: g.sent, header: h, from: from, packed: packed}
	if packed != nil {
		x.from = nil
		g.kept += len(packed)
	}
	g.chunks = append(g.chunks, x)
	g.sent = x.end()
	return nil
}

// keeps returns how many bytes of packed chunks are kept.
func (g *laneLog) keeps() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kept
}

// check says whether a peer can have received so much, as its greeting says.
func (g *laneLog) check(received uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.checkLocked(received)
}

func (g *laneLog) checkLocked(received uint64) error {
	if received < g.acked || received > g.sent {
		return fmt.Errorf("%w: the peer has received %d bytes of a lane, of %d to %d", ErrCorrupt, received,
			g.acked, g.sent)
	}
	return nil
}

// trim forgets what the peer has.
func (g *laneLog) trim(received uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if received <= g.acked {
		return nil // sent again, behind a greeting that said more
	}
	if err := g.checkLocked(received); err != nil {
		return err
	}
	g.acked = received
	n := 0
	for n < len(g.chunks) && g.chunks[n].end() <= received {
		g.kept -= len(g.chunks[n].packed)
		n++
	}
	left := copy(g.chunks, g.chunks[n:])
	clear(g.chunks[left:]) // their sources may go
	g.chunks = g.chunks[:left]
	return nil
}

// since returns the chunks that end behind a place.
func (g *laneLog) since(received uint64) []logged {
	g.mu.Lock()
	defer g.mu.Unlock()
	i, _ := slices.BinarySearchFunc(g.chunks, received, func(x logged, at uint64) int {
		if x.end() <= at {
			return -1
		}
		return 1
	})
	return slices.Clone(g.chunks[i:])
}

// nothing is sent in the place of bytes that nobody needs any more.
var nothing [16 << 10]byte

// sendAgain sends a chunk without its first skip bytes.
func (x *logged) sendAgain(c *laneConn, skip uint64) error {
	var header [clwire.LaneHeaderBytes]byte
	x.header.Put(header[:])
	head := header[min(skip, uint64(len(header))):]
	skip -= min(skip, uint64(len(header)))
	if x.payload() == 0 {
		return c.send(head, nil)
	}
	if x.packed != nil {
		return c.send(head, x.packed[skip:])
	}
	return x.from.Again(x.header, func(payload []byte) error {
		if payload != nil {
			return c.send(head, payload[skip:])
		}
		err := c.send(head, nil)
		for left := x.payload() - skip; left > 0 && err == nil; {
			n := min(left, uint64(len(nothing)))
			err = c.send(nil, nothing[:n])
			left -= n
		}
		return err
	})
}
