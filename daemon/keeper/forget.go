package keeper

import (
	"errors"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/store"
)

// holds notes that a keeper of an OpenCL platform has memory, by the descriptor that names it: until Forget.
func (k *Keeper) holds(fd int) {
	var st unix.Stat_t
	if k.opts.OpenCL == nil || unix.Fstat(fd, &st) != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process != nil {
		k.pinned[clwire.HostMemory{Device: uint64(st.Dev), Inode: st.Ino}] = struct{}{}
	}
}

// Forget has the keeper let go of a segment that goes: what it has pinned of it would stay. It waits for nothing; fd
// stays the caller's.
func (k *Keeper) Forget(fd int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.pinned) == 0 {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return
	}
	key := clwire.HostMemory{Device: uint64(st.Dev), Inode: st.Ino}
	if _, is := k.pinned[key]; !is || k.closed {
		return
	}
	delete(k.pinned, key)
	if k.doomed = append(k.doomed, key); !k.forgets {
		k.forgets = true
		k.links.Go(k.forget)
	}
}

// forgetAtOnce bounds one request: a packet has room for as many.
const forgetAtOnce = 256

// forget has the process let go of what is doomed, until nothing is.
func (k *Keeper) forget() {
	for k.turns.take("", k.ended) {
		k.mu.Lock()
		p, m := k.process, k.letGo()
		if m == nil || p == nil { // what is gone has nothing
			k.doomed, k.freed, k.forgets = nil, nil, false
			k.mu.Unlock()
			k.endTurn()
			return
		}
		k.mu.Unlock()
		_ = k.tellOf(p, m) // it is logged
		k.endTurn()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgets = false
}

// letGo is the next request about what the process is to let go of; nil: there is nothing. mu is held.
func (k *Keeper) letGo() *clwire.KeeperRequest {
	if n := min(len(k.freed), forgetAtOnce); n > 0 {
		some := k.freed[:n]
		k.freed = k.freed[n:]
		return &clwire.KeeperRequest{Free: &clwire.KeeperFree{IDs: some}}
	}
	if n := min(len(k.doomed), forgetAtOnce); n > 0 {
		some := k.doomed[:n]
		k.doomed = k.doomed[n:]
		return &clwire.KeeperRequest{Forget: &clwire.KeeperForget{Memory: some}}
	}
	return nil
}

// tellOf sends a process such a request. An error says that the process has ended. The turn is held.
func (k *Keeper) tellOf(p *process, m *clwire.KeeperRequest) (lost error) {
	reply, fd, err := p.ask(m, k.opts.RequestTime, nil)
	closeFD(fd)
	if err == nil {
		err = k.faultOf(reply)
	} else {
		lost = k.lost(p, err) // its end lets go of everything
		err = lost
	}
	if err != nil && !errors.Is(err, store.ErrDevicesEnded) {
		k.opts.Log.WithError(err).Warn("memory that the keeper was to let go of")
	}
	return lost
}
