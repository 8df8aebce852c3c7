package session

import "tendril/forwarding/api"

// What a layer above needs that OpenCL has no call for: package span makes one context of several of ours.

// NodeOf numbers the daemon that a platform's devices belong to, from 0 in the order of Config.Servers.
func (d *Driver) NodeOf(platform uintptr) int {
	p := d.platforms.Get(platform)
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, control := range d.controls {
		if p != nil && p.control == control {
			return i
		}
	}
	return 0
}

// ArgumentUse answers for an argument of a kernel.
func (d *Driver) ArgumentUse(kernel uintptr, index uint32) api.ArgumentUse {
	k := d.kernels.Get(kernel)
	if k == nil || index >= uint32(len(k.facts.Sizes)) || !k.facts.HasArgInfo {
		return api.ArgumentUse{Writes: true}
	}
	size := k.facts.Sizes[index]
	return api.ArgumentUse{Memory: size.Global || size.Image, Sampler: size.Sampler, Writes: !size.Reads, Known: true}
}

// Memory is a buffer's memory where the device computes on memory shared with this process, nil elsewhere. It is valid
// until the buffer is released, and its contents are right when the commands that write them have ended.
func (d *Driver) Memory(buffer uintptr) []byte {
	b := d.buffers.Get(buffer)
	if b == nil || b.root.special.Load() {
		return nil
	}
	return b.bytes()
}

// Notify runs a callback of the program's in its turn, after those that are due already.
func (d *Driver) Notify(call func()) { d.callbacks.Run(call) }
