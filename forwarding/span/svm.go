package span

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/fixed"
	"tendril/forwarding/session/svm"
)

// Shared virtual memory of a context that spans (§5.6): a root buffer whose members' memory lies at one address in all
// workers, and the program's own memory at that address too. Which member has the newest bytes is known as of any
// buffer; maps and unmaps bring them to the program and back. So the grain is coarse. docs/design/svm.md.

// How an address is looked for that is free everywhere.
const (
	svmTries     = 64       // addresses
	svmFillFrom  = 4        // refusals of a driver's choice, from which on each try also steps over svmFillBytes
	svmFillBytes = 64 << 20 // at most: no more than a buffer may have
)

// svmPart is one allocation of a program's.
type svmPart struct {
	root   *Buffer
	off, n uint64 // bytes, in root
}

// svmPoint is an address in an allocation.
type svmPoint struct {
	svmPart
	at uintptr
}

// Why there is no shared virtual memory.
var (
	errTwoChoose = errors.New("two of the context's drivers choose addresses themselves, and cannot be made to agree")
	errNoAddress = errors.New("no address was found that is free in the program and in all workers")
	errNoMemory  = errors.New("the program has no memory left")
)

// takesSVM says whether all devices have shared virtual memory.
func (d *Driver) takesSVM(devices []uintptr) bool {
	return !slices.ContainsFunc(devices, func(dev uintptr) bool {
		value, _ := d.base.DeviceInfo(dev, cl.DEVICE_SVM_CAPABILITIES)
		return answers.Number(value) == 0
	})
}

// SVMAlloc is clSVMAlloc (§5.6.1): NULL where it cannot be.
func (d *Driver) SVMAlloc(context uintptr, flags, size uint64, align uint32) api.HostPtr {
	c := d.contexts.Get(context)
	if c == nil {
		return d.base.SVMAlloc(context, flags, size, align)
	}
	const access = cl.MEM_READ_WRITE | cl.MEM_WRITE_ONLY | cl.MEM_READ_ONLY
	takes := slices.ContainsFunc(c.members, func(m *member) bool { return m.svm })
	if !takes || flags&^access != 0 || flags&(flags-1) != 0 || size == 0 || size > c.limit || align&(align-1) != 0 {
		return api.HostPtr{}
	}
	p, err := c.takeSVM(flags, size, align)
	if err != nil {
		d.base.Warn(c.members[0].context, fmt.Sprintf("tendril: no shared virtual memory of %d bytes: %v", size, err))
		return api.HostPtr{}
	}
	at := p.address()
	d.shared.Add(at, size, p)
	return api.NewHostPtr(at)
}

func (p *svmPart) address() uintptr { return fixed.Address(p.root.view) + uintptr(p.off) }

// takeSVM gives an allocation memory: small ones a part of what several share.
func (c *Context) takeSVM(flags, size uint64, align uint32) (svmPart, error) {
	if size < svm.SmallBytes && align <= svm.TypeAlign && c.limit >= svm.ArenaBytes {
		if root, off, ok := c.arenas.Take(0, size); ok {
			return svmPart{root, off, size}, nil
		}
		if root, err := c.makeSVM(cl.MEM_READ_WRITE, svm.ArenaBytes, 0); err == nil {
			c.arenas.Add(0, root, size)
			return svmPart{root, 0, size}, nil
		} // there may be room for what was asked
	}
	root, err := c.makeSVM(flags, size, align)
	return svmPart{root, 0, size}, err
}

// makeSVM makes shared virtual memory as a buffer. A member whose driver chooses addresses has the word; others follow.
func (c *Context) makeSVM(flags, size uint64, align uint32) (*Buffer, error) {
	if flags == 0 {
		flags = cl.MEM_READ_WRITE
	}
	m := meeting{c: c, flags: flags, size: size, align: align}
	defer func() { m.release(m.held) }()
	for range svmTries {
		b, err := m.try()
		if err != nil || b != nil {
			return b, err
		}
	}
	return nil, fmt.Errorf("%w (the last that was tried: %s)", errNoAddress, m.last)
}

// meeting finds an address for the program and for all members that have shared virtual memory.
type meeting struct {
	c           *Context
	flags, size uint64
	align       uint32
	held        []uintptr // memory of the member that chooses, at addresses that are taken elsewhere
	last        string    // the address that was refused last, and by whom
}

// hold keeps memory whose driver chose an address that is taken elsewhere, so that the driver chooses another one: it
// would give what is freed again. Neighbours are often taken too, so that later tries step over more.
func (m *meeting) hold(member int, h uintptr) {
	m.held = append(m.held, h)
	if len(m.held) < svmFillFrom {
		return
	}
	context, n := m.c.members[member].context, min(m.c.limit, svmFillBytes)
	if filler, _, err := m.c.d.base.SVMBuffer(context, 0, m.flags, n, 0); err == nil {
		m.held = append(m.held, filler) // 0 is released as nothing is
	}
}

func (m *meeting) release(list []uintptr) {
	for _, h := range list {
		if h != 0 {
			m.c.d.base.ReleaseMemObject(h)
		}
	}
}

// order is the members that have shared virtual memory, the one that chooses first.
func (m *meeting) order() (order []int) {
	chooser := int(m.c.chooser.Load()) - 1
	for i, x := range m.c.members {
		if x.svm && i == chooser {
			order = slices.Insert(order, 0, i)
		} else if x.svm {
			order = append(order, i)
		}
	}
	return order
}

// try makes the memory everywhere at one address. nil and no error: that was taken somewhere.
func (m *meeting) try() (*Buffer, error) {
	view, err := fixed.Reserve(fixed.Pick(m.size), m.size)
	if err != nil {
		m.last = "by chance, taken in the program"
		return nil, notTaken(err)
	}
	inner := make([]uintptr, len(m.c.members))
	order := m.order()
	for n, i := range order {
		h, got, err := m.c.d.base.SVMBuffer(m.c.members[i].context, fixed.Address(view), m.flags, m.size, m.align)
		if err == nil && got != 0 && got != fixed.Address(view) {
			h, view, err = m.chose(h, i, n == 0, got, view)
		} else if err == nil && h == 0 {
			m.last = fmt.Sprintf("%#x, taken at member %d of %d", fixed.Address(view), i+1, len(inner))
		}
		if err != nil || h == 0 {
			m.refuse(inner, order[0], view, err)
			return nil, notTaken(err)
		}
		inner[i] = h
	}
	return m.c.showSVM(m, view, inner)
}

// refuse ends a try. What first made at an address that its driver chose is held. view may be nil.
func (m *meeting) refuse(inner []uintptr, first int, view []byte, err error) {
	if view != nil {
		fixed.Release(view)
	}
	if h := inner[first]; h != 0 && err == nil && int(m.c.chooser.Load()) == first+1 {
		inner[first] = 0
		m.hold(first, h)
	}
	m.release(inner)
}

// chose has the program follow a driver that chose an address, if nobody follows another one yet. h 0: try again.
func (m *meeting) chose(h uintptr, member int, first bool, got uintptr, view []byte) (uintptr, []byte, error) {
	if !m.c.chooser.CompareAndSwap(0, int32(member)+1) && m.c.chooser.Load() != int32(member)+1 {
		m.release([]uintptr{h})
		return 0, view, errTwoChoose
	}
	if !first {
		m.release([]uintptr{h})
		return 0, view, nil
	}
	fixed.Release(view)
	view, err := fixed.Reserve(got, m.size)
	if err != nil {
		m.last = fmt.Sprintf("%#x, which the driver of member %d chose, taken in the program", got, member+1)
		m.hold(member, h)
		return 0, nil, err
	}
	return h, view, nil
}

// notTaken leaves out that an address is taken, after which the next one is tried.
func notTaken(err error) error {
	if errors.Is(err, fixed.ErrTaken) {
		return nil
	}
	return err
}

// showSVM makes the root buffer of what the members have.
func (c *Context) showSVM(m *meeting, view []byte, inner []uintptr) (*Buffer, error) {
	if err := fixed.Fresh(view); err != nil {
		fixed.Release(view)
		m.release(inner)
		return nil, err
	}
	b := &Buffer{ctx: c, flags: m.flags, size: m.size, inner: inner, view: view, host: api.HostBytes(view),
		parts: parts{{hi: m.size}}}
	b.root = b
	if _, status := b.show(); status != cl.SUCCESS {
		fixed.Release(view)
		return nil, errNoMemory
	}
	return b, nil
}

// SVMFree is clSVMFree (§5.6.1): at once; the program says that no command uses it.
func (d *Driver) SVMFree(context uintptr, ptr api.HostPtr) {
	c := d.contexts.Get(context)
	if c == nil {
		d.base.SVMFree(context, ptr)
		return
	}
	c.freeSVM(ptr.Address())
}

func (c *Context) freeSVM(at uintptr) {
	p, ok := c.d.shared.Remove(at, func(p svmPart) bool { return p.root.ctx == c })
	if ok && c.arenas.Give(p.root, p.off) {
		p.root.drop()
	}
}

// inSVM finds n bytes of the program's memory in an allocation of the context's; off is in its root. ok false: they are
// in none.
func (c *Context) inSVM(ptr api.HostPtr, n uint64) (p svmPart, off uint64, ok bool) {
	p, off, ok = c.d.shared.Find(ptr.Address())
	if !ok || p.root.ctx != c || off > p.n || n > p.n-off {
		return svmPart{}, 0, false
	}
	return p, p.off + off, true
}

// rest is the use of what an allocation has from an offset in its root on.
func (p *svmPart) rest(off uint64, reads, writes bool) use {
	return use{b: p.root, off: off, n: p.off + p.n - off, reads: reads, writes: writes}
}

// overSVM says that the program made the buffer of an address in shared virtual memory: it is nobody's sub-buffer.
func (b *Buffer) overSVM() bool { return b.parent != nil && b.parent.view != nil && b.image == nil }

// bufferOver makes a buffer of shared virtual memory: both are the same memory (§5.2.1, CL_MEM_USE_HOST_PTR).
func (c *Context) bufferOver(root *Buffer, off uint64, given []uint64, flags, size uint64) (uintptr, api.Status) {
	at := slices.IndexFunc(c.members, func(m *member) bool { return m.svm })
	inner, status := c.d.base.SVMPart(root.inner[at], given, flags, off, size)
	if status != cl.SUCCESS {
		return 0, status
	}
	b := &Buffer{ctx: c, size: size, given: given, parent: root, origin: off, root: root, host: root.host.Plus(off),
		inner: make([]uintptr, len(c.members))}
	b.inner[at] = inner
	value, _ := c.d.base.MemObjectInfo(inner, cl.MEM_FLAGS)
	b.flags = answers.Number(value)&sameInnerFlagsMask | flags&^sameInnerFlagsMask
	return b.show()
}

// partLocked makes a sub-buffer, or a buffer over shared virtual memory, at a member.
func (b *Buffer) partLocked(member int) (uintptr, api.Status) {
	of, native := b.parent, b.ctx.members[member].svm
	if b.root.view != nil && !native {
		of = b.root
	}
	whole, status := of.atLocked(member)
	if status != cl.SUCCESS {
		return 0, status
	}
	if b.overSVM() && native {
		return b.ctx.d.base.SVMPart(whole, b.given, b.flags&sameInnerFlagsMask, b.origin, b.size)
	}
	return b.ctx.d.base.CreateSubBuffer(whole, b.flags&sameInnerFlagsMask&^cl.MEM_ALLOC_HOST_PTR,
		cl.BUFFER_CREATE_TYPE_REGION, true, b.origin-of.origin, b.size)
}

// offset is where a sub-buffer begins in what it is part of, in bytes.
func (b *Buffer) offset() uint64 {
	if b.parent == nil || b.overSVM() || b.image != nil { // an image lies at its buffer's start
		return 0
	}
	return b.origin - b.parent.origin
}

// SetKernelArgSVM is clSetKernelArgSVMPointer (§5.9.2): an address in an allocation, or NULL.
func (d *Driver) SetKernelArgSVM(kernel uintptr, index uint32, ptr api.HostPtr) api.Status {
	k := d.kernels.Get(kernel)
	if k == nil {
		return d.base.SetKernelArgSVM(kernel, index, ptr)
	}
	c := k.program.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	home := k.svmHome()
	if home < 0 {
		return cl.INVALID_OPERATION
	}
	if !ptr.Nil() {
		p, _, ok := c.inSVM(ptr, 0)
		if !ok { // session knows what else is wrong
			return d.base.SetKernelArgSVM(k.inner[home], index, ptr)
		}
		a := &argument{b: p.root, point: svmPoint{p, ptr.Address()}}
		status := k.sendLocked(index, a, home)
		if status == cl.SUCCESS {
			k.args[index] = a
		}
		return status
	}
	for i, inner := range k.inner {
		if inner == 0 {
			continue
		}
		status := api.Status(cl.SUCCESS)
		if c.members[i].svm {
			status = d.base.SetKernelArgSVM(inner, index, ptr)
		} else {
			status = d.base.SetKernelArg(inner, index, 8, api.HostPtr{})
		}
		if status != cl.SUCCESS {
			return status
		}
	}
	delete(k.args, index)
	return cl.SUCCESS
}

// svmHome is a member that has the kernel and shared virtual memory; -1: none does.
func (k *Kernel) svmHome() int {
	for i, h := range k.inner {
		if h != 0 && k.program.ctx.members[i].svm {
			return i
		}
	}
	return -1
}

// reach is what a kernel's launches reach by pointers that are no arguments (CL_KERNEL_EXEC_INFO_SVM_PTRS). Guarded by
// Context.mu.
type reach struct {
	given  bool
	points []svmPoint
	told   uint64 // the members that know it
}

// SetKernelExecInfo is clSetKernelExecInfo (§5.9.2).
func (d *Driver) SetKernelExecInfo(kernel uintptr, param uint32, value []byte) api.Status {
	k := d.kernels.Get(kernel)
	if k == nil {
		return d.base.SetKernelExecInfo(kernel, param, value)
	}
	c := k.program.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	home := k.svmHome()
	switch {
	case home < 0:
		return cl.INVALID_OPERATION
	case param != cl.KERNEL_EXEC_INFO_SVM_PTRS:
		return d.base.SetKernelExecInfo(k.inner[home], param, value)
	case len(value)%8 != 0:
		return cl.INVALID_VALUE
	}
	var points []svmPoint
	for ; len(value) > 0; value = value[8:] {
		at := uintptr(binary.NativeEndian.Uint64(value))
		p, _, ok := c.inSVM(api.NewHostPtr(at), 0)
		if !ok {
			return cl.INVALID_VALUE
		}
		points = append(points, svmPoint{p, at})
	}
	before := k.reach
	k.reach = reach{given: true, points: points}
	status := k.tellReachLocked(home)
	if status != cl.SUCCESS {
		k.reach = before
	}
	return status
}

// reachedLocked is what a launch reaches still: what was freed since is left out, as the program says that the kernel
// does not use it.
func (k *Kernel) reachedLocked() (points []svmPoint) {
	for _, x := range k.points {
		if p, _, ok := k.program.ctx.inSVM(api.NewHostPtr(x.at), 0); ok && p == x.svmPart {
			points = append(points, x)
		}
	}
	return points
}

// tellReachLocked tells a member, which has shared virtual memory, what a launch reaches.
func (k *Kernel) tellReachLocked(member int) api.Status {
	if k.told>>member&1 != 0 {
		return cl.SUCCESS
	}
	var buffers, addresses []uintptr
	for _, x := range k.reachedLocked() {
		inner, status := x.root.atLocked(member)
		if status != cl.SUCCESS {
			return status
		}
		buffers, addresses = append(buffers, inner), append(addresses, x.at)
	}
	status := k.program.ctx.d.base.SetKernelReach(k.inner[member], buffers, addresses)
	if status == cl.SUCCESS {
		k.told |= 1 << member
	}
	return status
}

// reachUsesLocked readies what a launch reaches at a member.
func (k *Kernel) reachUsesLocked(member int, uses []use) ([]use, api.Status) {
	if !k.given || !k.program.ctx.members[member].svm {
		return uses, cl.SUCCESS
	}
	if status := k.tellReachLocked(member); status != cl.SUCCESS {
		return nil, status
	}
	for _, x := range k.reachedLocked() {
		uses = append(uses, x.use())
	}
	return uses, cl.SUCCESS
}

// use is what a kernel does with the allocation: whatever it finds pointers to.
func (x *svmPoint) use() use { return x.rest(x.off, true, x.root.flags&cl.MEM_READ_ONLY == 0) }
