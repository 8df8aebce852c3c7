//go:build cgo

package worker

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// attachTime bounds the wait for a segment that the daemon has sent before its client could name it.
const attachTime = 5 * time.Second

// attachments are segments of the store that the daemon has sent and no record has named yet.
type attachments struct {
	mu    sync.Mutex
	files map[uint64]attached
	came  chan struct{} // closed at the next arrival
}

type attached struct {
	file  *os.File
	bytes uint64
	gpu   string // in whose memory it is; "": host memory
}

// put takes f over.
func (a *attachments) put(m *clwire.WorkerAttach, f *os.File) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.files == nil {
		a.files = map[uint64]attached{}
	}
	if _, again := a.files[m.Segment]; again || len(a.files) >= clwire.MaxAttached {
		f.Close()
		return
	}
	a.files[m.Segment] = attached{f, m.Bytes, m.Device}
	if a.came != nil {
		close(a.came)
		a.came = nil
	}
}

// take gives a segment up to its only taker, waiting for it a moment: it is on its way on another socket.
func (a *attachments) take(id uint64) (attached, bool) {
	deadline := time.NewTimer(attachTime)
	defer deadline.Stop()
	for {
		a.mu.Lock()
		got, ok := a.files[id]
		delete(a.files, id)
		if a.came == nil {
			a.came = make(chan struct{})
		}
		came := a.came
		a.mu.Unlock()
		if ok {
			return got, true
		}
		select {
		case <-came:
		case <-deadline.C:
			return attached{}, false
		}
	}
}

// attach maps a segment that the daemon has sent, for reading. Memory of a GPU it keeps for the buffers that import it.
func (s *session) attach(id uint64) (*segment, error) {
	if s.attached == nil {
		return nil, fmt.Errorf("%w: segment %d: nothing can be attached here", errRecord, id)
	}
	got, ok := s.attached.take(id)
	if !ok {
		return nil, fmt.Errorf("%w: the daemon has sent no segment %d", errRecord, id)
	}
	if got.gpu != "" {
		seg := &segment{id: id, readOnly: true, gpu: &allocation{got.file, got.bytes, got.gpu}, gone: s.unmap}
		seg.refs.Store(1)
		s.segments[id] = seg
		return seg, nil
	}
	defer got.file.Close()
	info, err := got.file.Stat()
	if err != nil {
		return nil, fmt.Errorf("segment %d: %w", id, err)
	}
	if got.bytes == 0 || info.Size() < int64(got.bytes) {
		return nil, fmt.Errorf("segment %d of %d bytes has a descriptor of %d", id, got.bytes, info.Size())
	}
	mem, err := unix.Mmap(int(got.file.Fd()), 0, int(got.bytes), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map segment %d of %d bytes: %w", id, got.bytes, err)
	}
	seg := &segment{id: id, mem: mem, readOnly: true, gone: s.unmap}
	seg.refs.Store(1)
	s.segments[id] = seg
	return seg, nil
}
