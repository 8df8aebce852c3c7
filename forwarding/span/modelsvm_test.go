package span

import (
	"errors"
	"slices"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
)

// modelSVM is what the model knows of shared virtual memory: which devices have some, whose driver chooses addresses,
// and where something else lies.
type modelSVM struct {
	svm     map[int]uint64         // capabilities, by device
	chooses map[int]func() uintptr // by device
	taken   func(device int, at uintptr) bool
	asked   int // times that memory was asked for
	warned  []string
}

func (m *model) SVMBuffer(context, address uintptr, flags, size uint64, _ uint32) (h, got uintptr, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.get(context, "context")
	device := slices.Index(m.devices, c.device)
	m.asked++
	if choose := m.chooses[device]; choose != nil {
		address = choose()
	}
	if m.svm[device] == 0 {
		return 0, 0, errors.New("a device without shared virtual memory")
	}
	if m.taken != nil && m.taken(device, address) {
		return 0, 0, nil
	}
	return m.put(&thing{kind: "buffer", ctx: c, flags: flags, data: make([]byte, size), at: address}), address, nil
}

// lowestFree is the first address of a list that no allocation lies at; the list's last one if there is none.
func (m *model) lowestFree(list []uintptr) uintptr {
	for _, at := range list {
		used := false
		for _, o := range m.objects {
			used = used || o.at == at
		}
		if !used {
			return at
		}
	}
	return list[len(list)-1]
}

func (m *model) SVMPart(whole uintptr, _ []uint64, flags, off, n uint64) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.get(whole, "buffer")
	if p == nil || p.at == 0 {
		return 0, cl.INVALID_MEM_OBJECT
	}
	return m.put(&thing{kind: "buffer", ctx: p.ctx, flags: flags, data: p.data[off : off+n : off+n]}), cl.SUCCESS
}

func (m *model) SetKernelArgAt(h uintptr, index uint32, buffer, address uintptr) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, b := m.get(h, "kernel"), m.get(buffer, "buffer")
	if k == nil || b == nil || b.ctx != k.ctx || address < b.at || address > b.at+uintptr(len(b.data)) {
		return cl.INVALID_ARG_VALUE
	}
	k.args[index], k.offs[index] = bytesOf(buffer), uint64(address-b.at)
	return cl.SUCCESS
}

func (m *model) SetKernelReach(h uintptr, buffers, addresses []uintptr) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.get(h, "kernel")
	for i, buffer := range buffers {
		if b := m.get(buffer, "buffer"); b == nil || b.ctx != k.ctx || addresses[i] < b.at {
			return cl.INVALID_VALUE
		}
	}
	k.reach = addresses
	return cl.SUCCESS
}

func (m *model) Warn(_ uintptr, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.warned = append(m.warned, text)
}

// The Base's own calls: what is in no context that spans, and what only has its place in the order.

func (m *model) SVMAlloc(uintptr, uint64, uint64, uint32) api.HostPtr { return api.HostPtr{} }
func (m *model) SVMFree(uintptr, api.HostPtr)                         {}

func (m *model) EnqueueSVMFree(queue uintptr, _ []uintptr, call func(), w api.Waits) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.get(queue, "queue")
	if q == nil {
		return 0, cl.INVALID_COMMAND_QUEUE
	}
	return m.enqueue(q, queue, cl.COMMAND_SVM_FREE, false, w, func() { m.calls = append(m.calls, call) })
}

func (m *model) EnqueueSVMMemcpy(queue uintptr, _ bool, dst, src api.HostPtr, size uint64,
	w api.Waits) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.get(queue, "queue")
	if q == nil {
		return 0, cl.INVALID_COMMAND_QUEUE
	}
	return m.enqueue(q, queue, cl.COMMAND_SVM_MEMCPY, false, w, func() {
		if size > 0 {
			copy(dst.Bytes(0, size), src.Bytes(0, size))
		}
	})
}

func (m *model) refuse(queue uintptr) (uintptr, api.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return 0, m.check(m.get(queue, "queue") != nil, cl.INVALID_COMMAND_QUEUE)
}

func (m *model) EnqueueSVMMemFill(queue uintptr, _, _ api.HostPtr, _, _ uint64, _ api.Waits) (uintptr, api.Status) {
	return m.refuse(queue)
}
func (m *model) EnqueueSVMMap(queue uintptr, _ bool, _ uint64, _ api.HostPtr, _ uint64, _ api.Waits) (uintptr,
	api.Status) {
	return m.refuse(queue)
}
func (m *model) EnqueueSVMUnmap(queue uintptr, _ api.HostPtr, _ api.Waits) (uintptr, api.Status) {
	return m.refuse(queue)
}
func (m *model) EnqueueSVMMigrate(queue uintptr, _ []uintptr, _ []uint64, _ uint64, _ api.Waits) (uintptr, api.Status) {
	return m.refuse(queue)
}

func (m *model) SetKernelArgSVM(h uintptr, index uint32, ptr api.HostPtr) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.get(h, "kernel")
	switch {
	case k == nil:
		return cl.INVALID_KERNEL
	case !ptr.Nil():
		return cl.INVALID_ARG_VALUE
	}
	k.args[index] = answers.U64(0)
	return cl.SUCCESS
}

func (m *model) SetKernelExecInfo(h uintptr, param uint32, _ []byte) api.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.get(h, "kernel") == nil {
		return cl.INVALID_KERNEL
	}
	return m.check(param == cl.KERNEL_EXEC_INFO_SVM_FINE_GRAIN_SYSTEM, cl.INVALID_VALUE)
}
