package session

import (
	"testing"
	"time"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
)

// TestBinaryTypeIsAskedWithoutALock: a program is not held while its worker is asked about it, since the worker answers
// once the builds under way are over.
func TestBinaryTypeIsAskedWithoutALock(t *testing.T) {
	r := newRig(t, true)
	h, _, status := r.d.CreateProgramWithBinary(r.ctx, []uintptr{r.dev}, [][]byte{[]byte("bin:kernel inc global")})
	r.ok(status)
	p, w := r.d.programs.Get(h), r.worker()
	w.turn.Lock()
	before, asked := w.records.Load(), make(chan struct{})
	go func() {
		defer close(asked)
		r.d.ProgramBuildInfo(h, r.dev, cl.PROGRAM_BINARY_TYPE)
	}()
	for w.records.Load() == before { // the question has come
		time.Sleep(time.Millisecond)
	}
	free := p.mu.TryLock()
	if free {
		p.mu.Unlock()
	}
	w.turn.Unlock()
	<-asked
	if !free {
		t.Error("the program is locked while its worker is asked")
	}
	data, _ := r.d.ProgramBuildInfo(h, r.dev, cl.PROGRAM_BUILD_STATUS)
	if got := int32(answers.Number(data)); got != cl.BUILD_NONE {
		t.Errorf("build status %d", got)
	}
}
