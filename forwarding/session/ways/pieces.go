package ways

import (
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/memory"
	"tendril/store/segment"
)

// A blocking transfer of so much goes in pieces where nobody can tell them from one command, so that the device copies
// one while this side copies another. Nothing comes between them.
const (
	piecesFrom = 512 << 10 // bytes
	pieceBytes = 256 << 10
)

// inPieces says whether a blocking transfer goes in pieces: times and a program's event are of one command.
func (c *Command) inPieces(t *Transfer) bool {
	return t.Host.Size >= piecesFrom && !t.isImage() && c.Event == nil && !c.Queue.State().OutOfOrder
}

// piece is a part of a read that was sent.
type piece struct {
	event Event
	await func() int32
}

// readPieces reads through a chunk of the staging pool. All pieces are sent, and asked for, before the first is waited
// for: that is one round trip.
func (c *Command) readPieces(t *Transfer, chunk int) api.Status {
	m := clwire.Transfer{Direction: clwire.FromBuffer, Buffer: t.Buffer.Number(), Offset: t.Device.Offset,
		Size: t.Host.Size, Segment: c.Staging.Segment.ID, SegmentOffset: c.Staging.Offset(chunk)}
	pieces, status := sendPieces(c.Queue, m, c.Wait)
	w, size := c.Queue.Worker(), t.Host.Size
	began := w.Began()
	for n, p := range pieces {
		at := uint64(n) * pieceBytes
		if s := api.Status(p.await()); s != cl.SUCCESS {
			status = min(status, min(api.Status(p.event.Status()), s))
		} else if status == cl.SUCCESS {
			copy(t.Host.Ptr.Bytes(at, min(pieceBytes, size-at)), c.Staging.Chunk(chunk)[at:])
		}
		p.event.LetGo()
	}
	w.Tripped(began, causeOfCommand(c.Kind), "")
	return status
}

// sendPieces sends whole in pieces, the first of which waits for events.
func sendPieces(of Queue, whole clwire.Transfer, wait []uint64) (pieces []piece, status api.Status) {
	w := of.Worker()
	of.Together(func(q Submitter) {
		for at := uint64(0); at < whole.Size && status == cl.SUCCESS; at, wait = at+pieceBytes, nil {
			m := pieceOf(&whole, at)
			e := of.NewEvent(cl.COMMAND_MARKER)
			if _, status = q.Submit(m, &m.Cmd, e, wait, nil); status == cl.SUCCESS {
				pieces = append(pieces, piece{e, w.AskEvent(e.Number())})
			}
		}
	})
	return pieces, status
}

// pieceOf is the piece of a transfer that begins at a place in it.
func pieceOf(whole *clwire.Transfer, at uint64) *clwire.Transfer {
	m := *whole
	m.Offset, m.SegmentOffset, m.Size = m.Offset+at, m.SegmentOffset+at, min(pieceBytes, m.Size-at)
	return &m
}

// writePieces writes from a place of staging memory that it fills piece by piece. done false: the program could see
// that nobody waits for the end, and nothing was sent.
func (c *Command) writePieces(t *Transfer, p *memory.Place) (done bool, status api.Status) {
	wait, host := c.Wait, t.Host.Ptr // not c and t, which the closures would keep
	whole := clwire.Transfer{Direction: clwire.ToBuffer, Buffer: t.Buffer.Number(), Offset: t.Device.Offset,
		Size: t.Host.Size, Segment: p.Segment.ID, SegmentOffset: p.Offset}
	take := func(at uint64) *clwire.Transfer {
		m := pieceOf(&whole, at)
		segment.Copy(p.Bytes(whole.Size)[at:at+m.Size], host.Bytes(at, m.Size))
		return m
	}
	m := take(0)
	var seq uint64
	done = c.asyncTogether((whole.Size+pieceBytes-1)/pieceBytes, func(q Submitter) {
		for at := uint64(0); ; m = take(at) {
			seq, status = q.Submit(m, &m.Cmd, nil, wait, nil)
			if at, wait = at+pieceBytes, nil; at >= whole.Size || status != cl.SUCCESS {
				return
			}
		}
	})
	if done {
		c.Slabs.FreeAfter(p, memory.Marks{{Queue: c.Queue, Seq: seq}})
	}
	return done, status
}
