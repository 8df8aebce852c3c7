package session

import (
	"errors"
	"fmt"
	"sync"

	"tendril/store/object"
)

// grantBytes is how much of a device's own memory is asked for ahead: so a program that makes many small buffers asks the daemon once for
// hundreds. What a program has given back is returned from twice that on.
const grantBytes = 64 << 20

// grant is what a worker's buffers take of its devices' own memory, and what the daemon has allowed.
type grant struct {
	mu             sync.Mutex // held while the daemon is asked; otherwise a leaf
	taken, allowed uint64     // bytes
}

// reserve takes n bytes of the devices' memory, asking the daemon where what it allowed is short.
func (w *worker) reserve(n uint64) error {
	g := &w.grant
	g.mu.Lock()
	defer g.mu.Unlock()
	if need := g.taken + n; need > g.allowed {
		ahead := (need + grantBytes - 1) / grantBytes * grantBytes
		err := w.platform.control.ReserveDevice(w.id, ahead, false)
		if errors.Is(err, object.ErrQuota) && ahead > need {
			ahead = need
			err = w.platform.control.ReserveDevice(w.id, need, false)
		}
		switch {
		case errors.Is(err, object.ErrUnsupported): // a daemon that does not count
			ahead = maxHostBytes
		case err != nil:
			return err
		}
		g.allowed = ahead
	}
	g.taken += n
	return nil
}

// giveBack is the reverse.
func (w *worker) giveBack(n uint64) {
	g := &w.grant
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken -= min(n, g.taken)
	if keep := (g.taken + grantBytes) / grantBytes * grantBytes; g.allowed != maxHostBytes && g.allowed > keep+grantBytes && !w.dead.Load() {
		g.allowed = keep
		_ = w.platform.control.ReserveDevice(w.id, keep, true) // less cannot fail
	}
}

// reserve debits n bytes of the driver's memory from what the daemon lets this program have. It starts the worker.
func (c *Context) reserve(n uint64) Status {
	w, status := c.worker()
	if status != Success {
		return status
	}
	err := w.reserve(n)
	if err == nil {
		return Success
	}
	text := fmt.Sprintf("tendril: no device memory for %d bytes: %v", n, err)
	if !errors.Is(err, object.ErrQuota) {
		c.d.cfg.Log(text)
	}
	c.notify(text)
	return MemObjectAllocationFailure
}
