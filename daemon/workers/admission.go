package workers

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// A driver takes memory of each GPU that a process has a context on, beside what the program asks for: NVIDIA's 527
// MiB (an H200, driver 580). So a session is charged Options.SessionBytes on every GPU of its platform, for its
// program may use each, from the choice of its worker until that has ended. One that does not fit beside the others,
// and beside the objects that the store has there in use, waits for Options.Wait for another one's end, or for objects
// to leave. Of the sessions that a GPU has room for, an eighth is for tenants that have none there. What other
// programs of this machine have on the GPU is not known here; there the driver itself refuses.
//
// A GPU that several platforms show is one (samegpu.go), and a session on each of them a process with a context of its
// own: it is charged for each.
//
// A GPU in compute mode exclusive allows one process. Where all GPUs of a platform are such, it has as many sessions as
// GPUs; where some are not, the driver refuses contexts by itself.

// ownMemory gives a GPU's memory in bytes; 0: the device has none of its own, or does not say.
func ownMemory(d clwire.DeviceSnapshot) uint64 {
	kind, bytes := d.Info[cl.DEVICE_TYPE], d.Info[cl.DEVICE_GLOBAL_MEM_SIZE]
	if len(kind) != 8 || len(bytes) != 8 || d.InPlace || binary.LittleEndian.Uint64(kind)&cl.DEVICE_TYPE_GPU == 0 {
		return 0
	}
	return binary.LittleEndian.Uint64(bytes)
}

// gpu is one GPU with memory of its own that a session on a platform has a context on.
type gpu struct {
	uuid  string
	bytes uint64
	mode  clwire.ComputeMode
}

// gpusOf gives them, each once: a worker is one process with one context on each, however often its platform shows one.
func gpusOf(pl *Platform) (list []gpu) {
	seen := map[string]bool{}
	for _, d := range pl.Snapshot.Devices {
		if bytes := ownMemory(d); bytes > 0 && !seen[d.UUID] {
			seen[d.UUID] = true
			list = append(list, gpu{d.UUID, bytes, d.Mode})
		}
	}
	return list
}

// fits says why a platform's GPUs have no room for one more session; nil: they have. The caller is in p.admitting.
func (p *Pool) fits(tenant string, pl *Platform) error {
	exclusive, gpus, busiest := 0, 0, 0
	for _, g := range gpusOf(pl) {
		gpus++
		if g.mode == clwire.ComputeExclusive {
			exclusive++
		}
		sessions, own := p.sessionsOn(g.uuid, tenant)
		busiest = max(busiest, sessions)
		if err := p.fitsOn(tenant, g.uuid, g.bytes, sessions, own); err != nil {
			return err
		}
	}
	if gpus > 0 && exclusive == gpus && busiest >= gpus {
		return fmt.Errorf("%w: %s: %s in compute mode exclusive, each for one process, and %s there already "+
			"(nvidia-smi --compute-mode 0 allows more)", object.ErrBusy, pl.Name, object.Counted(gpus, "GPU"),
			object.Counted(busiest, "session"))
	}
	return nil
}

// sessionsOn counts the sessions on a GPU, and a tenant's own of them.
func (p *Pool) sessionsOn(uuid, tenant string) (all, own int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.admitted[uuid] {
		all += n
	}
	return all, p.admitted[uuid][tenant]
}

// fitsOn is fits for one GPU of so many bytes, which has so many sessions, own of them the tenant's. Objects that
// nobody uses make way.
func (p *Pool) fitsOn(tenant, uuid string, bytes uint64, sessions, own int) error {
	each := p.opts.SessionBytes
	if each == 0 {
		return nil
	}
	if most := bytes / each; own > 0 && most >= 8 && uint64(sessions) >= most-most/8 {
		return fmt.Errorf("%w: GPU %s has room for %s of %s (--session-device) and has %d, %d of them tenant %s's; "+
			"the last %d are for tenants that have none: end a program that uses it, or try again later", object.ErrBusy, uuid,
			object.Counted(most, "session"),
			humanize.IBytes(each), sessions, own, tenant, most/8)
	}
	need, objects := uint64(sessions+1)*each, uint64(0)
	if need <= bytes && p.opts.Objects != nil {
		objects = p.opts.Objects(tenant, uuid, bytes-need)
	}
	if need <= bytes && objects <= bytes-need {
		return nil
	}
	return fmt.Errorf("%w: GPU %s has %s: %s there, of %s each (--session-device), and objects of %s leave no "+
		"room for another: end a program that uses it, or try again later", object.ErrBusy, uuid, humanize.IBytes(bytes),
		object.Counted(sessions, "session"), humanize.IBytes(each), humanize.IBytes(objects))
}

// over says why nobody waits for a session's worker any more; nil: somebody does.
func (p *Pool) over(ctx context.Context) error {
	switch {
	case p.ctx.Err() != nil:
		return errClosed
	case ctx.Err() != nil:
		return fmt.Errorf("%w: nobody waits for the worker any more: %w", object.ErrNoDevice, ctx.Err())
	}
	return nil
}

// admitNow charges a session on its platform's GPUs if it fits. left is closed when there may be more room after that.
func (p *Pool) admitNow(ctx context.Context, tenant string, pl *Platform) (left chan struct{}, why error) {
	select {
	case p.admitting <- struct{}{}:
		defer func() { <-p.admitting }()
	case <-ctx.Done():
	case <-p.ctx.Done():
	}
	if err := p.over(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	left = p.left
	p.mu.Unlock()
	if why = p.fits(tenant, pl); why == nil {
		p.mu.Lock()
		p.count(pl, tenant, 1)
		p.mu.Unlock()
	}
	return left, why
}

// admit charges a session on its platform's GPUs, and waits until it fits if it must. leave takes the charge back.
func (p *Pool) admit(ctx context.Context, tenant string, pl *Platform) error {
	var expired <-chan time.Time
	if p.opts.Wait > 0 {
		timer := time.NewTimer(p.opts.Wait)
		defer timer.Stop()
		expired = timer.C
	}
	for {
		left, why := p.admitNow(ctx, tenant, pl)
		if why == nil || left == nil || expired == nil {
			return why
		}
		select {
		case <-left:
		case <-p.opts.GPURoom:
			p.mu.Lock()
			p.lookAgain()
			p.mu.Unlock()
		case <-expired:
			return fmt.Errorf("%w; nothing became free in %v (--worker-wait)", why, p.opts.Wait)
		case <-p.ctx.Done():
		case <-ctx.Done():
		}
	}
}

// count adds n sessions of a tenant to each GPU of a platform. p.mu is held.
func (p *Pool) count(pl *Platform, tenant string, n int) {
	for _, g := range gpusOf(pl) {
		on := p.admitted[g.uuid]
		if on == nil {
			on = map[string]int{}
			p.admitted[g.uuid] = on
		}
		if on[tenant] += n; on[tenant] == 0 {
			delete(on, tenant)
		}
		if len(on) == 0 {
			delete(p.admitted, g.uuid)
		}
	}
}

// leave takes the charge of a tenant's session back, and has those that wait look again. p.mu is held.
func (p *Pool) leave(pl *Platform, tenant string) {
	p.count(pl, tenant, -1)
	p.lookAgain()
}

// lookAgain has all sessions that wait for room on a GPU see whether there is some. p.mu is held.
func (p *Pool) lookAgain() {
	close(p.left)
	p.left = make(chan struct{})
}
