package frontdoor

import (
	"tendril/ipc"
	"tendril/ipc/wire"
)

// reclaim answers a client that was connected before.
func (c *connection) reclaim(m wire.ReclaimRequest) (ipc.Payload, error) {
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
	return &reply, nil
}
