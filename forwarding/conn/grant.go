package conn

import (
	"errors"
	"sync"

	"tendril/store/object"
)

// GrantBytes is how much of a device's own memory is asked for ahead: so a program that makes many small buffers asks
// the daemon once for hundreds. What a program has given back is returned from twice that on.
const GrantBytes = 64 << 20

// unlimited is what a daemon that does not count allows.
const unlimited = 1 << 62

// grant is what a worker's buffers take of its devices' own memory, and what the daemon has allowed.
type grant struct {
	mu             sync.Mutex // held while the daemon is asked; otherwise a leaf
	taken, allowed uint64     // bytes
}

// ReserveDevice takes n bytes of the devices' memory, asking the daemon where what it allowed is short.
func (c *Conn) ReserveDevice(n uint64) error {
	g := &c.grant
	g.mu.Lock()
	defer g.mu.Unlock()
	if need := g.taken + n; need > g.allowed {
		ahead := (need + GrantBytes - 1) / GrantBytes * GrantBytes
		err := c.opt.Control.ReserveDevice(c.id, ahead, false)
		if errors.Is(err, object.ErrQuota) && ahead > need {
			ahead = need
			err = c.opt.Control.ReserveDevice(c.id, need, false)
		}
		switch {
		case errors.Is(err, object.ErrUnsupported):
			ahead = unlimited
		case err != nil:
			return err
		}
		g.allowed = ahead
	}
	g.taken += n
	return nil
}

// ReturnDevice is the reverse.
func (c *Conn) ReturnDevice(n uint64) {
	g := &c.grant
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken -= min(n, g.taken)
	if keep := (g.taken + GrantBytes) / GrantBytes * GrantBytes; g.allowed != unlimited &&
		g.allowed > keep+GrantBytes && !c.dead.Load() {
		g.allowed = keep
		_ = c.opt.Control.ReserveDevice(c.id, keep, true) // less cannot fail
	}
}
