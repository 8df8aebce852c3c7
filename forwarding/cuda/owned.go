//go:build cgo

package cuda

// #include "driver.h"
import "C"

// Owned is memory of a device that is this process's own: it ends with it, and has no descriptor. Other processes open
// it by a handle (cuIpcOpenMemHandle, cudaIpcOpenMemHandle).
type Owned struct{ Mapping }

// Own allocates bytes. Their contents are undefined. The driver may cut what is smaller than 2 MiB, or no multiple of
// that, out of a block of several allocations, and a handle opens the whole block. The caller must Free it.
func (c *Context) Own(bytes uint64) (*Owned, error) {
	m := &Owned{Mapping{c: c, bytes: bytes}}
	if err := c.l.err("cuMemAlloc", C.tc_alloc(c.l.handle, c.context, C.uint64_t(bytes), &m.at)); err != nil {
		return nil, err
	}
	return m, nil
}

// Handle gives the handle.
func (m *Owned) Handle() (handle [HandleBytes]byte, err error) {
	var raw [HandleBytes]C.uchar
	err = m.c.l.err("cuIpcGetMemHandle", C.tc_ipc_handle(m.c.l.handle, m.c.context, m.at, &raw[0]))
	for i := range raw {
		handle[i] = byte(raw[i])
	}
	return handle, err
}

// Free gives the memory back, once the device has done what this process asked of it. A process that has it open must
// not use it any more.
func (m *Owned) Free() error {
	return m.c.l.err(cuMemFree, C.tc_free(m.c.l.handle, m.c.context, m.at))
}
