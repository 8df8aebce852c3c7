package frontdoor

import (
	"tendril/ipc"
	"tendril/ipc/wire"
)

func (c *connection) grant(m wire.GrantRequest) error {
	return c.store.Grant(m.ID, m.Name, m.To, m.Revoke)
}

func (c *connection) rename(m wire.RenameRequest) error {
	return c.store.Rename(m.From, m.To, m.Replace)
}

func (c *connection) checksum(m wire.NameMessage) (ipc.Payload, error) {
	r, err := c.openAny(m.ID, m.Name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	sum, err := r.Checksum(c.ctx, c.nextTurn)
	return &wire.Number{N: sum}, c.unlessEnding(err)
}
