package main

import (
	"unsafe"

	"github.com/jgillich/go-opencl/cl"
)

// read fetches a buffer of size bytes and waits for it. The binding takes the
// target as a pointer; the read is blocking, so that it does not outlive the call.
func (s *session) read(buffer *cl.MemObject, size int) ([]byte, error) {
	data := make([]byte, size)
	event, err := s.queue.EnqueueReadBuffer(buffer, true, 0, size, unsafe.Pointer(&data[0]), nil)
	if err != nil {
		return nil, err
	}
	event.Release()
	return data, nil
}
