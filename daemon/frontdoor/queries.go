package frontdoor

import (
	"fmt"
	"slices"
	"strings"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
)

// principals are who a peer is where others share with it: its user, its group, and the groups that its process had
// when it connected. From another machine a peer is its tenant's user, where that is a single one.
func (c *connection) principals() []string {
	p := c.peer
	local, is := c.link.(*ipc.Accepted)
	if !is {
		return slices.DeleteFunc([]string{p.Tenant}, func(t string) bool { return !strings.HasPrefix(t, "uid:") })
	}
	list := []string{fmt.Sprintf("uid:%d", p.UID), fmt.Sprintf("gid:%d", p.GID)}
	groups, _ := local.PeerGroups() // where the kernel does not say (before 4.13), its own group has to do
	for _, g := range groups {
		list = append(list, fmt.Sprintf("gid:%d", g))
	}
	return list
}

func (c *connection) grant(m wire.GrantRequest) error {
	return c.store.Grant(m.ID, m.Name, m.To, m.Revoke)
}

func (c *connection) rename(m wire.RenameRequest) error {
	return c.store.Rename(m.From, m.To, m.Replace)
}

func (c *connection) listWhere(m wire.ListWhereRequest) (listing, error) {
	return c.objects(queryOf(m)), nil
}

func (c *connection) top(m wire.Number) (listing, error) {
	return c.largest(int(min(m.N, maxTop))), nil
}

func (c *connection) checksum(m wire.NameMessage) (ipc.Payload, error) {
	r, err := brought(c, m.ID, func() (*store.Reading, error) { return c.store.Open(m.ID, m.Name) })
	if err != nil {
		return nil, err
	}
	defer r.Close()
	sum, err := r.Checksum(c.ctx, c.nextTurn)
	return &wire.Number{N: sum}, err
}

// later runs a request that waits in a goroutine of its own, which the connection's end joins. bytes are charged
// meanwhile: what it holds. mu is held.
func (c *connection) later(bytes uint64, run func()) error {
	if err := c.beginWaiting(bytes); err != nil {
		return err
	}
	go func() {
		defer c.doneWaiting(bytes)
		defer c.survive()
		run()
	}()
	return nil
}

// answer ends a request that ran by itself (later): with p, or with why there is none. mu is held.
func (c *connection) answer(f *ipc.Frame, p ipc.Payload, err error) {
	if err != nil {
		c.out = errorFrame(c.out, c.version, f.Request, err)
	} else {
		c.reply(f, p)
	}
	c.flush() // a failure is met by serve
}
