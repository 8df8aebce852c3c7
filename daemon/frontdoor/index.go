package frontdoor

import (
	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/index"
)

// openIndex hands out a connection's slots and the first level of its tenant's table.
func (c *connection) openIndex(f *ipc.Frame, _ none) error {
	if err := c.srv.takeIndex(c); err != nil {
		return err
	}
	slots, level, err := c.store.OpenIndex()
	if err != nil {
		return err
	}
	defer unix.Close(slots)
	defer unix.Close(level)
	return c.replyLater(func() {
		c.scratch.fds = [2]int{slots, level}
		c.sendWith(f, &wire.OpenIndexReply{SlotsBytes: index.SlotsBytes, LevelBytes: index.LevelBytes(0)}, ipc.FlagFD2,
			c.scratch.fds[:2])
	})
}

// indexLevel hands out a further level of the table.
func (c *connection) indexLevel(f *ipc.Frame, m wire.IndexLevelRequest) error {
	fd, err := c.store.IndexLevel(int(m.Level))
	if err != nil {
		return err
	}
	c.replyFD(f, &wire.Number{N: index.LevelBytes(int(m.Level))}, fd)
	return nil
}
