package keeper

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"tendril/forwarding/clwire"
	"tendril/store"
	"tendril/store/object"
)

// CopyStatus is what was copied by one way.
type CopyStatus struct {
	Way   clwire.KeeperWay `json:"way"` // device, peer, pinned, staged or plain
	Bytes uint64           `json:"bytes"`
	Steps int              `json:"steps"`
	Why   string           `json:"why,omitempty"` // the last of them went no better way
}

// errUnknownCopy is of a keeper that has the copy's places not mapped.
var errUnknownCopy = fmt.Errorf("%w: the keeper does not know the copy", object.ErrNoDevice)

// wire describes a place, from done bytes on.
func wire(p store.Place, done uint64) clwire.KeeperPlace {
	w := clwire.KeeperPlace{Bytes: p.Bytes, Offset: p.Offset + done}
	if !p.Device.IsZero() {
		w.Device = p.Device.String()
	}
	return w
}

// Copy copies bytes from one place to another, one of which at least is a device's; the descriptors stay the caller's.
// Others have their turns between its steps, before each of which it is looked at whether who asks is gone. Errors: as
// Allocate's.
func (k *Keeper) Copy(who store.Asker, to, from store.Place, bytes uint64) error {
	k.use()
	k.mu.Lock()
	k.last++
	id := k.last
	k.mu.Unlock()
	known := false // the keeper has both places mapped
	step := k.pace(to, from)
	for done := uint64(0); done < bytes; {
		n := thisStep(bytes-done, step, k.opts.StepBytes == 0)
		m := &clwire.KeeperRequest{Copy: &clwire.KeeperCopy{ID: id, To: wire(to, done), From: wire(from, done),
			Bytes: n, Last: done+n == bytes}}
		var files []int
		if !known {
			files = []int{to.FD, from.FD}
		}
		var took time.Duration
		reply, fd, err := k.askTimed(who, &took, m, files...)
		closeFD(fd)
		k.holdsPlaces(to, from)                      // also where the request failed: it may have made either before
		if errors.Is(err, errUnknownCopy) && known { // another keeper answers
			known = false
			continue
		}
		if err != nil {
			if known && done > 0 {
				k.endCopy(id)
			}
			return err
		}
		known = true
		done += n
		k.copied(reply, n)
		if k.opts.StepBytes == 0 {
			step = nextStep(n, took)
			k.paced(to, from, n, step)
		}
	}
	return nil
}

// pace gives the bytes of a copy's first request. Between two GPUs they are what the last copy has noted (paced). Host
// memory says nothing: the next segment may be one that is not pinned.
func (k *Keeper) pace(to, from store.Place) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return cmp.Or(k.opts.StepBytes, k.paces[[2]object.Device{to.Device, from.Device}], firstStep)
}

// paced notes the bytes of the request that comes after one of n, or would come.
func (k *Keeper) paced(to, from store.Place, n, step uint64) {
	if n < leastStep || to.Device.IsZero() || from.Device.IsZero() {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.paces[[2]object.Device{to.Device, from.Device}] = step // as many as there are pairs of GPUs
}

// What one request of a copy does: so much at first, then what takes turnTime, within bounds. Each request costs some
// 0.1 ms beside the copy, and all others wait for it.
const (
	firstStep = uint64(256 << 20)
	leastStep = 64 << 20
	mostStep  = 4 << 30
	turnTime  = 20 * time.Millisecond
)

// thisStep gives a request's bytes, of those that are left. Where turns are measured, the last few go along: a request
// of their own would take longer than they do.
func thisStep(left, step uint64, measured bool) uint64 {
	if measured && left <= step+step/4 {
		return left
	}
	return min(left, step)
}

// nextStep is the next request's bytes after one of n that took so long.
func nextStep(n uint64, took time.Duration) uint64 {
	ratio := float64(turnTime) / float64(max(took, time.Microsecond))
	return max(leastStep, min(mostStep, uint64(float64(n)*ratio))) &^ (leastStep - 1)
}

// endCopy has the keeper unmap what a copy had mapped that is given up. One that answers nothing is ended by ask.
func (k *Keeper) endCopy(id uint64) {
	_, fd, err := k.ask(nobody, &clwire.KeeperRequest{End: &clwire.KeeperEnd{ID: id}})
	closeFD(fd)
	if err != nil && !errors.Is(err, store.ErrDevicesEnded) {
		k.opts.Log.WithError(err).Warn("a copy that was given up")
	}
}

// holdsPlaces is holds of those places of a copy that are a device's.
func (k *Keeper) holdsPlaces(places ...store.Place) {
	for _, p := range places {
		if !p.Device.IsZero() {
			k.holds(p.FD)
		}
	}
}

// copied notes a step of a copy.
func (k *Keeper) copied(r *clwire.KeeperReply, n uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	x := k.copies[r.Way]
	k.copies[r.Way] = CopyStatus{r.Way, x.Bytes + n, x.Steps + 1, r.Why}
}
