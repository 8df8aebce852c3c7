package keeper

import (
	"encoding/hex"
	"fmt"

	"tendril/forwarding/clwire"
	"tendril/store"
	"tendril/store/object"
)

// LendIPC copies memory of a GPU into memory of the keeper's own, of real bytes, for programs that open a handle of 64
// bytes (cuIpcOpenMemHandle) and no descriptor. The handle is good until FreeIPC, or until the keeper ends, as it may
// at any time: n names the memory for HasIPC and FreeIPC. Errors: as Allocate's, with what is free in place of real.
func (k *Keeper) LendIPC(who store.Asker, from store.Place, bytes uint64) (n uint64, handle [object.IPCHandleBytes]byte,
	real uint64, err error) {
	k.use()
	k.mu.Lock()
	k.last++
	n = k.last
	k.mu.Unlock()
	m := &clwire.KeeperRequest{Lend: &clwire.KeeperLend{ID: n, From: wire(from, 0), Bytes: bytes}}
	reply, fd, err := k.ask(who, m, from.FD)
	closeFD(fd)
	if reply != nil {
		real = reply.Bytes
	}
	if err != nil {
		return 0, handle, real, err
	}
	raw, wrong := hex.DecodeString(reply.Handle)
	if wrong != nil || len(raw) != len(handle) || real < bytes {
		k.FreeIPC(n)
		return 0, handle, 0, fmt.Errorf("%w: the keeper lent %d bytes instead of %d, with a handle of %d bytes",
			object.ErrNoDevice, real, bytes, len(raw))
	}
	copy(handle[:], raw)
	return n, handle, real, nil
}

// HasIPC says whether what LendIPC lent is there: the keeper that has it lives.
func (k *Keeper) HasIPC(n uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.lent[n]
	return p != nil && !p.over()
}

// EndedIPC gives what LendIPC lent and what ended with its keeper since this was last asked.
func (k *Keeper) EndedIPC() (numbers []uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.process; len(k.lent) > 0 && (p == nil || p.over()) {
		k.forgotten() // the next request would, too
	}
	numbers, k.died = k.died, nil
	return numbers
}

// FreeIPC gives it back. It waits for nothing: the keeper does it before it does anything else that is asked for later.
func (k *Keeper) FreeIPC(n uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lent[n] == nil || k.closed {
		return
	}
	delete(k.lent, n)
	if k.freed = append(k.freed, n); !k.forgets {
		k.forgets = true
		k.links.Go(k.forget)
	}
}

// hasLent notes what a process has lent. The turn is held.
func (k *Keeper) hasLent(p *process, m *clwire.KeeperRequest, reply *clwire.KeeperReply) {
	if m.Lend == nil || reply.Error != "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lent[m.Lend.ID] = p
}

// takeBack has a process free what was given back. An error says that it has ended. The turn is held.
func (k *Keeper) takeBack(p *process) error {
	for {
		k.mu.Lock()
		var m *clwire.KeeperRequest
		if len(k.freed) > 0 {
			m = k.letGo()
		}
		k.mu.Unlock()
		if m == nil {
			return nil
		}
		if err := k.tellOf(p, m); err != nil {
			return err
		}
	}
}

// LendIPC is Keeper.LendIPC for memory of the CUDA driver's. ErrUnsupported: it is another driver's.
func (d *Devices) LendIPC(who store.Asker, from store.Place, bytes uint64) (n uint64,
	handle [object.IPCHandleBytes]byte, real uint64, err error) {
	k, gone := d.of(from)
	switch {
	case gone != nil:
		return 0, handle, 0, gone
	case k != d.cuda:
		return 0, handle, 0, fmt.Errorf("%w: memory of OpenCL device %s has no CUDA handle", object.ErrUnsupported,
			from.Device)
	}
	return k.LendIPC(who, from, bytes)
}

// HasIPC is Keeper.HasIPC.
func (d *Devices) HasIPC(n uint64) bool { return d.cuda.HasIPC(n) }

// EndedIPC is Keeper.EndedIPC.
func (d *Devices) EndedIPC() []uint64 { return d.cuda.EndedIPC() }

// FreeIPC is Keeper.FreeIPC.
func (d *Devices) FreeIPC(n uint64) { d.cuda.FreeIPC(n) }
