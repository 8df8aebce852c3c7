package session

import (
	"testing"
	"time"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// TestFailedBuildOfAnotherDevice: what was built for one device stays when a build for another fails (§5.8.2).
func TestFailedBuildOfAnotherDevice(t *testing.T) {
	p := &Program{builds: map[uint32]*build{}}
	build := func(dev uint32, status api.Status, kernels ...clwire.KernelFacts) {
		c := &construction{p: p, list: []*Device{{index: dev}}}
		if got := c.start(); got != cl.SUCCESS {
			t.Fatalf("a build starts with %d", got)
		}
		answer := clwire.BuildDevice{Device: dev, BinaryType: cl.PROGRAM_BINARY_TYPE_EXECUTABLE}
		if status != cl.SUCCESS {
			answer.Status = cl.BUILD_ERROR
		}
		c.take(status, &clwire.BuildResult{Made: true, Devices: []clwire.BuildDevice{answer}, Kernels: kernels})
	}
	build(0, cl.SUCCESS, clwire.KernelFacts{Name: "k"})
	build(1, cl.BUILD_PROGRAM_FAILURE)
	if !p.executableLocked() {
		t.Error("the other device's executable is gone")
	}
	build(0, cl.BUILD_PROGRAM_FAILURE)
	if p.executableLocked() {
		t.Error("a failed build left an executable")
	}
}

// TestFactsOfABuildBefore: what was asked about a kernel before a build is not noted after it.
func TestFactsOfABuildBefore(t *testing.T) {
	p := &Program{builds: map[uint32]*build{}}
	p.takeKernelsLocked(nil)
	round := p.round
	p.takeKernelsLocked(nil)
	p.noteFactsLocked("k", &clwire.KernelFacts{Name: "k"}, round)
	if p.facts["k"] != nil {
		t.Error("facts of the build before are noted")
	}
	if p.noteFactsLocked("k", &clwire.KernelFacts{Name: "k"}, p.round); p.facts["k"] == nil {
		t.Error("facts of this build are not noted")
	}
}

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
