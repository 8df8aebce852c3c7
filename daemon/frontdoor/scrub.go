package frontdoor

import (
	"encoding/json"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// scrub does a step of a scrub: over everybody's objects for root and the daemon's own user, over the tenant's for
// others.
func (c *connection) scrub(m wire.ScrubRequest) (ipc.Payload, error) {
	if m.From == "" {
		c.scrubbed = object.ScrubPass{Began: time.Now().UTC()}
	}
	step, err := c.store.Scrub(c.ctx, c.peer.Admin, m.From)
	if err != nil {
		return nil, err
	}
	c.scrubbed.Add(step)
	if whole := step.Next == "" && !c.scrubbed.Began.IsZero(); whole && c.peer.Admin {
		c.scrubbed.Ended = time.Now().UTC()
		c.store.NoteScrub(c.scrubbed)
	}
	b, err := json.Marshal(step)
	return long(b), err
}
