package session

// What a layer above needs that OpenCL has no call for: package span makes one context of several of ours.

// HostBytes is the memory under b, which must stay where it is for as long as a command may use it.
func HostBytes(b []byte) HostPtr { return pointerTo(b) }

// Bytes returns n bytes of the program's memory from off on; the program vouches for them.
func (h HostPtr) Bytes(off, n uint64) []byte { return h.bytes(off, n) }

// Plus returns the address off bytes further on.
func (h HostPtr) Plus(off uint64) HostPtr { return h.plus(off) }

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

// ArgumentUse is what a kernel's build tells of an argument.
type ArgumentUse struct {
	Memory  bool // a buffer or an image
	Sampler bool
	Writes  bool // the kernel may write through it
	Known   bool // false: the driver gave no argument information
}

// ArgumentUse answers for an argument of a kernel.
func (d *Driver) ArgumentUse(kernel uintptr, index uint32) ArgumentUse {
	k := d.kernels.Get(kernel)
	if k == nil || index >= uint32(len(k.facts.sizes)) || !k.facts.HasArgInfo {
		return ArgumentUse{Writes: true}
	}
	size := k.facts.sizes[index]
	return ArgumentUse{Memory: size.global || size.image, Sampler: size.sampler, Writes: !size.reads, Known: true}
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

// Recorded says that the command goes into a command buffer (Record), and is not sent.
func (w Waits) Recorded() bool { return w.graph != nil }

// Unasked marks a transfer that the program did not ask for: what its flags deny the host does not hold for it.
func (w Waits) Unasked() Waits {
	w.unasked = true
	return w
}

// Notify runs a callback of the program's in its turn, after those that are due already.
func (d *Driver) Notify(call func()) { d.callbacks.run(call) }
