package frontdoor

import (
	"tendril/ipc"
	"tendril/ipc/wire"
)

// reclaim answers a client that was connected before.
func (c *connection) reclaim(f *ipc.Frame) error {
	var m wire.ReclaimRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	reply := wire.ReclaimReply{Verdicts: make([]wire.Verdict, len(m.Claims))}
	for i, claim := range m.Claims {
		again, here := c.store.Reclaim(claim.ID, claim.Segment)
		switch {
		case here:
			reply.Verdicts[i] = wire.Held
		case again:
			reply.Verdicts[i] = wire.Moved
		}
	}
	c.reply(f, &reply)
	return nil
}
