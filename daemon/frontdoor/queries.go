package frontdoor

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"tendril/ipc"
	"tendril/ipc/wire"
)

// principals are who a peer is where others share with it: its user, its group, and the groups that the kernel lists for
// its process, which is watched by its pidfd and so the one that connected.
// From another machine a peer is its tenant's user, where that is a single one.
func principals(p Peer) []string {
	if p.Remote != "" {
		return slices.DeleteFunc([]string{p.Tenant}, func(t string) bool { return !strings.HasPrefix(t, "uid:") })
	}
	list := []string{fmt.Sprintf("uid:%d", p.UID), fmt.Sprintf("gid:%d", p.GID)}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil {
		return list // hidden: its own group has to do
	}
	for line := range strings.Lines(string(status)) {
		if groups, ok := strings.CutPrefix(line, "Groups:"); ok {
			for _, g := range strings.Fields(groups) {
				if _, err := strconv.ParseUint(g, 10, 32); err == nil {
					list = append(list, "gid:"+g)
				}
			}
		}
	}
	return list
}

func (c *connection) grant(f *ipc.Frame) error {
	var m wire.GrantRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	if err := c.store.Grant(m.ID, m.Name, m.To, m.Revoke); err != nil {
		return err
	}
	c.reply(f, nil)
	return nil
}

func (c *connection) rename(f *ipc.Frame) error {
	var m wire.RenameRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	if err := c.store.Rename(m.From, m.To, m.Replace); err != nil {
		return err
	}
	c.reply(f, nil)
	return nil
}

func (c *connection) listWhere(f *ipc.Frame) error {
	var m wire.ListWhereRequest
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	return c.replyList(f, c.objects(queryOf(m)))
}

func (c *connection) top(f *ipc.Frame) error {
	var m wire.Number
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	return c.replyList(f, c.largest(int(min(m.N, maxTop))))
}

func (c *connection) checksum(f *ipc.Frame) error {
	var m wire.NameMessage
	if err := m.Decode(f.Payload); err != nil {
		return err
	}
	r, err := c.store.Open(m.ID, m.Name)
	if err != nil {
		return err
	}
	defer r.Close()
	sum, err := r.Checksum(c.ctx)
	if err != nil {
		return err
	}
	return c.replyLater(func() { c.reply(f, &wire.Number{N: sum}) })
}

// later runs a request that waits in a goroutine of its own, which the connection's end joins. bytes are charged meanwhile: what it
// holds. mu is held.
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
		c.out = errorFrame(c.out, f.Request, err)
	} else {
		c.reply(f, p)
	}
	c.flush() // a failure is met by serve
}
