// Package builds keeps what the builds of a program came to: for each device its status, its log and the kind of its
// code, and the kernels that the code has (OpenCL 3.0 §5.8).
//
// Devices are known by their numbers at the worker. Trust: results come from a worker that the tenant's kernels may
// have broken; a wrong one makes this program's calls fail, and nothing else. Table.mu is a leaf.
package builds

import (
	"sync"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/kernelfacts"
)

// Build is the last build for one device.
type Build struct {
	From       any // what the code was made from; the caller's
	options    string
	status     int32 // cl_build_status
	log        []byte
	binaryType uint32
	globals    uint64 // bytes of global variables
	executable bool   // built, and neither a library nor a compiled object
}

// None is what is said of a device for which nothing was built.
var None = Build{status: cl.BUILD_NONE, binaryType: cl.PROGRAM_BINARY_TYPE_NONE}

// Info is clGetProgramBuildInfo (§5.8.7).
func (b *Build) Info(param uint32) ([]byte, api.Status) {
	switch param {
	case cl.PROGRAM_BUILD_STATUS:
		return answers.U32(uint32(b.status)), cl.SUCCESS
	case cl.PROGRAM_BUILD_OPTIONS:
		return answers.String(b.options), cl.SUCCESS
	case cl.PROGRAM_BUILD_LOG:
		return answers.String(answers.Text(b.log)), cl.SUCCESS
	case cl.PROGRAM_BINARY_TYPE:
		return answers.U32(b.binaryType), cl.SUCCESS
	case cl.PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE:
		return answers.Size(b.globals), cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// Table is a program's builds. The zero value has none.
type Table struct {
	BuiltIn bool // the devices have the kernels, without a build; immutable

	mu       sync.Mutex // leaf
	devices  map[uint32]*Build
	facts    map[string]*kernelfacts.Facts // of kernels that the last build named, or that were asked for since
	round    int                           // results taken: facts asked for before one are not those after it
	attached int                           // kernel objects
	underWay bool
}

// Begin begins a build for devices. It is refused while there are kernel objects, and while another is under way
// (§5.8.2).
func (t *Table) Begin(devices []uint32, options string, from any) api.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.attached > 0 || t.underWay {
		return cl.INVALID_OPERATION
	}
	t.underWay = true
	if t.devices == nil {
		t.devices = map[uint32]*Build{}
	}
	for _, dev := range devices {
		t.devices[dev] = &Build{From: from, options: options, status: cl.BUILD_IN_PROGRESS}
	}
	return cl.SUCCESS
}

// Fail ends a build that the worker did not carry out. Kernels that were known stay known.
func (t *Table) Fail(devices []uint32, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.underWay = false
	for _, dev := range devices {
		t.devices[dev].status, t.devices[dev].log = cl.BUILD_ERROR, []byte(why)
	}
}

// End ends a build with what the worker says of it; compiled: it was clCompileProgram, whose code does not run. A
// device that the result leaves out did not build. Kernels of another device's code, which is still there when this
// build failed, are asked for again.
func (t *Table) End(devices []uint32, status api.Status, result *clwire.BuildResult, compiled bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.underWay = false
	for _, dev := range devices {
		t.devices[dev].status = cl.BUILD_ERROR
		if status == cl.SUCCESS {
			t.devices[dev].status = cl.BUILD_SUCCESS
		}
	}
	runs := status == cl.SUCCESS && !compiled
	for i := range result.Devices {
		answer := &result.Devices[i]
		if b := t.devices[answer.Device]; b != nil {
			b.take(answer)
			runs = runs && b.binaryType != cl.PROGRAM_BINARY_TYPE_LIBRARY &&
				b.binaryType != cl.PROGRAM_BINARY_TYPE_COMPILED_OBJECT
		}
	}
	for _, dev := range devices {
		t.devices[dev].executable = runs
	}
	t.facts = map[string]*kernelfacts.Facts{}
	t.round++
	for i := range result.Kernels {
		t.facts[result.Kernels[i].Name] = kernelfacts.New(&result.Kernels[i])
	}
}

func (b *Build) take(answer *clwire.BuildDevice) {
	b.status, b.log = answer.Status, answer.Log
	b.binaryType, b.globals = answer.BinaryType, answer.GlobalVarBytes
}

// Of is the build for a device as it stands; false: there was none.
func (t *Table) Of(device uint32) (Build, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.devices[device]
	if b == nil {
		return None, false
	}
	return *b, true
}

// Executable says whether some device has a program that was built or linked, and not only compiled.
func (t *Table) Executable() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.executableLocked()
}

func (t *Table) executableLocked() bool {
	if t.BuiltIn {
		return true
	}
	for _, b := range t.devices {
		if b.executable {
			return true
		}
	}
	return false
}

// Attach counts a new kernel object and gives what is known of its kernel. Where nothing is, nothing was counted: who
// asks the driver may Note the answer with the round.
func (t *Table) Attach(name string) (facts *kernelfacts.Facts, round int, status api.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.executableLocked() {
		return nil, 0, cl.INVALID_PROGRAM_EXECUTABLE
	}
	if facts = t.facts[name]; facts != nil {
		t.attached++
	}
	return facts, t.round, cl.SUCCESS
}

// AttachClone counts a kernel object that was made of another one.
func (t *Table) AttachClone() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attached++
}

// Detach counts a kernel object that has ended.
func (t *Table) Detach() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attached--
}

// Note keeps the driver's answer about a kernel, unless a build has ended since the round.
func (t *Table) Note(facts *clwire.KernelFacts, name string, round int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.round != round || t.facts[name] != nil {
		return
	}
	if t.facts == nil {
		t.facts = map[string]*kernelfacts.Facts{}
	}
	t.facts[name] = kernelfacts.New(facts)
}
