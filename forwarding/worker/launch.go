//go:build cgo

package worker

import (
	"encoding/binary"
	"fmt"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/engine"
)

// launch is an NDRange command. The reader keeps one and reuses it: Keep makes
// the copy that waits, with a snapshot of every argument.
type launch struct {
	kernel *kernel
	rng    opencl.Range
	args   []argument // all of them; the kernel's shadow, or a snapshot
	reach  *reach     // what it reaches without an argument; nil: nothing
	step   []uint16   // indices that differ from the native kernel, if kernel.inStep
	kept   bool
}

// load takes a record: the kernel's shadow gets the arguments that changed.
func (l *launch) load(s *session, k *kernel, m *clwire.NDRange) error {
	l.kernel, l.step = k, l.step[:0]
	for i := range m.Args {
		a, err := s.argumentOf(&m.Args[i])
		if err != nil {
			return err
		}
		index := int(m.Args[i].Index)
		if index >= clwire.MaxArgs {
			return fmt.Errorf("%w: argument index %d", errRecord, index)
		}
		for len(k.shadow) <= index {
			k.shadow = append(k.shadow, argument{})
		}
		k.shadow[index] = a
		l.step = append(l.step, uint16(index))
	}
	l.args, l.reach = k.shadow, k.reaches
	l.rng.Dims = uint32(m.Dims)
	l.rng.HasOffset, l.rng.HasLocal = one(m.HasOffset), one(m.HasLocal)
	for i := range 3 {
		l.rng.Global[i], l.rng.Offset[i], l.rng.Local[i] = uintptr(m.Global[i]), uintptr(m.Offset[i]),
			uintptr(m.Local[i])
	}
	return nil
}

func one(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Keep implements engine.Task.
func (l *launch) Keep() engine.Task {
	c := &launch{kernel: l.kernel, rng: l.rng, kept: true, args: append([]argument(nil), l.args...)}
	c.reach = l.reach.ref()
	c.kernel.refs.Add(1)
	c.kernel.mu.Lock()
	c.kernel.inStep = false
	c.kernel.mu.Unlock()
	for i := range c.args {
		if m := c.args[i].mem; m != nil && m.refs.Load() > 0 {
			m.refs.Add(1)
		} else if m != nil {
			c.args[i].mem = deadBuffer
		}
		if p := c.args[i].samp; p != nil && p.refs.Load() > 0 {
			p.refs.Add(1)
		} else if p != nil {
			c.args[i].samp = deadSampler
		}
	}
	return c
}

// deadBuffer and deadSampler stand for those that were released before the launch that names them.
var (
	deadBuffer  = &buffer{status: cl.INVALID_MEM_OBJECT}
	deadSampler = &sampler{status: cl.INVALID_SAMPLER}
)

// Drop implements engine.Task.
func (l *launch) Drop() {
	if !l.kept {
		return
	}
	for i := range l.args {
		if m := l.args[i].mem; m != nil && m != deadBuffer {
			m.unref()
		}
		if p := l.args[i].samp; p != nil && p != deadSampler {
			p.unref()
		}
	}
	l.reach.unref()
	l.kernel.unref()
}

// Finished implements engine.Task.
func (l *launch) Finished() func(int32) { return nil }

// Submit implements engine.Task: sets what differs, and launches.
func (l *launch) Submit(q engine.Native, waits []engine.Native, want bool) (engine.Native, int32, string) {
	k := l.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.status != cl.SUCCESS {
		return 0, int32(k.status), "the kernel could not be made"
	}
	if s := k.tell(l.reach); s != cl.SUCCESS {
		return 0, int32(s), "clSetKernelExecInfo"
	}
	if index, s := l.differences(); s != cl.SUCCESS {
		k.inStep = false
		return 0, int32(s), fmt.Sprintf("kernel argument %d", index)
	}
	e, bad, s := opencl.Queue(q).Launch(k.native, &l.rng, k.low, k.val, after(waits, want))
	l.remember(bad)
	if s != cl.SUCCESS {
		if bad >= 0 {
			return 0, int32(s), fmt.Sprintf("clSetKernelArg: argument %d", k.low[bad].Index)
		}
		return 0, int32(s), "clEnqueueNDRangeKernel"
	}
	return engine.Native(e), 0, ""
}

// differences gathers the arguments that the native kernel does not have yet. kernel.mu is held.
func (l *launch) differences() (int, opencl.Status) {
	k := l.kernel
	k.low, k.val = k.low[:0], k.val[:0]
	for len(k.set) < len(l.args) {
		k.set = append(k.set, argument{})
	}
	for i := range l.args {
		a := &l.args[i]
		if a.mem != nil && (a.mem.status != cl.SUCCESS || a.mem.refs.Load() <= 0) {
			return i, cl.INVALID_KERNEL_ARGS
		}
		if a.samp != nil && (a.samp.status != cl.SUCCESS || a.samp.refs.Load() <= 0) {
			return i, cl.INVALID_KERNEL_ARGS
		}
	}
	if k.inStep && !l.kept {
		for _, i := range l.step {
			k.put(int(i), &l.args[i])
		}
		return 0, cl.SUCCESS
	}
	for i := range l.args {
		if a := &l.args[i]; a.isSet && !a.equal(&k.set[i]) {
			k.put(i, a)
		}
	}
	return 0, cl.SUCCESS
}

// put adds one argument to the call under way.
func (k *kernel) put(i int, a *argument) {
	for len(k.val)%16 != 0 {
		k.val = append(k.val, 0)
	}
	low := opencl.Arg{Index: uint32(i), Offset: uint32(len(k.val))}
	switch a.kind {
	case clwire.ArgLocal:
		low.Kind, low.Size = opencl.ArgLocal, a.size
	case clwire.ArgMem:
		var native opencl.Mem
		if a.mem != nil {
			native = a.mem.native
		}
		k.val = binary.NativeEndian.AppendUint64(k.val, uint64(native))
		low.Size = 8
	case clwire.ArgSVM:
		k.val = binary.NativeEndian.AppendUint64(k.val, a.size)
		low.Kind, low.Size = opencl.ArgSVM, 8
	case clwire.ArgSampler:
		k.val = binary.NativeEndian.AppendUint64(k.val, uint64(a.samp.native))
		low.Size = 8
	default:
		k.val = append(k.val, a.bytes()...)
		low.Size = uint64(len(a.bytes()))
	}
	k.low = append(k.low, low)
}

// remember notes what the native kernel has now: all that was put, up to the
// one that was refused (bad, or −1).
func (l *launch) remember(bad int) {
	k := l.kernel
	n := len(k.low)
	if bad >= 0 {
		n = bad
		k.set[k.low[bad].Index] = argument{}
	}
	for _, low := range k.low[:n] {
		k.set[low.Index] = l.args[low.Index]
	}
	k.inStep = !l.kept && bad < 0
}
