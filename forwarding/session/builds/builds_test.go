package builds

import (
	"testing"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// build carries a build out for one device.
func build(t *testing.T, table *Table, dev uint32, status api.Status, binary uint32, kernels ...string) {
	t.Helper()
	if got := table.Begin([]uint32{dev}, "-O", "source"); got != cl.SUCCESS {
		t.Fatalf("a build begins with %d", got)
	}
	answer := clwire.BuildDevice{Device: dev, BinaryType: binary, Log: []byte("said"), GlobalVarBytes: 24}
	if status != cl.SUCCESS {
		answer.Status = cl.BUILD_ERROR
	}
	result := clwire.BuildResult{Devices: []clwire.BuildDevice{answer}}
	for _, name := range kernels {
		result.Kernels = append(result.Kernels, clwire.KernelFacts{Name: name})
	}
	table.End([]uint32{dev}, status, &result, false)
}

// TestFailedBuildOfAnotherDevice: what was built for one device stays when a build for another fails (§5.8.2).
func TestFailedBuildOfAnotherDevice(t *testing.T) {
	var table Table
	build(t, &table, 0, cl.SUCCESS, cl.PROGRAM_BINARY_TYPE_EXECUTABLE, "k")
	build(t, &table, 1, cl.BUILD_PROGRAM_FAILURE, cl.PROGRAM_BINARY_TYPE_EXECUTABLE)
	if !table.Executable() {
		t.Error("the other device's executable is gone")
	}
	build(t, &table, 0, cl.BUILD_PROGRAM_FAILURE, cl.PROGRAM_BINARY_TYPE_EXECUTABLE)
	if table.Executable() {
		t.Error("a failed build left an executable")
	}
}

func TestWhatRuns(t *testing.T) {
	for binary, want := range map[uint32]bool{cl.PROGRAM_BINARY_TYPE_EXECUTABLE: true,
		cl.PROGRAM_BINARY_TYPE_LIBRARY: false, cl.PROGRAM_BINARY_TYPE_COMPILED_OBJECT: false} {
		var table Table
		build(t, &table, 0, cl.SUCCESS, binary)
		if got := table.Executable(); got != want {
			t.Errorf("binary type %d runs: %v", binary, got)
		}
	}
	var compiled Table
	compiled.Begin([]uint32{0}, "", nil)
	compiled.End([]uint32{0}, cl.SUCCESS, &clwire.BuildResult{}, true)
	if compiled.Executable() {
		t.Error("what was only compiled runs")
	}
	if _, _, status := compiled.Attach("k"); status != cl.INVALID_PROGRAM_EXECUTABLE {
		t.Errorf("a kernel of it: %d", status)
	}
	if builtIn := (Table{BuiltIn: true}); !builtIn.Executable() {
		t.Error("built-in kernels do not run")
	}
}

// TestFactsOfABuildBefore: what was asked about a kernel before a build is not noted after it.
func TestFactsOfABuildBefore(t *testing.T) {
	var table Table
	build(t, &table, 0, cl.SUCCESS, cl.PROGRAM_BINARY_TYPE_EXECUTABLE)
	_, round, status := table.Attach("k")
	if status != cl.SUCCESS {
		t.Fatal(status)
	}
	build(t, &table, 0, cl.SUCCESS, cl.PROGRAM_BINARY_TYPE_EXECUTABLE) // Attach of what is not known counts nothing
	table.Note(&clwire.KernelFacts{Name: "k"}, "k", round)
	facts, round, _ := table.Attach("k")
	if facts != nil {
		t.Fatal("facts of the build before are noted")
	}
	table.Note(&clwire.KernelFacts{Name: "k", NumArgs: 1}, "k", round)
	if facts, _, _ = table.Attach("k"); facts == nil {
		t.Fatal("facts of this build are not noted")
	}
	table.Note(&clwire.KernelFacts{Name: "k", NumArgs: 2}, "k", round)
	if again, _, _ := table.Attach("k"); again != facts {
		t.Error("one kernel's facts, which kernel objects share, were replaced")
	}
}

// TestBuiltInFacts: of built-in kernels nothing is known before it is asked.
func TestBuiltInFacts(t *testing.T) {
	table := Table{BuiltIn: true}
	facts, round, status := table.Attach("copy")
	if facts != nil || status != cl.SUCCESS {
		t.Fatal(facts, status)
	}
	table.Note(&clwire.KernelFacts{Name: "copy"}, "copy", round)
	if facts, _, _ = table.Attach("copy"); facts == nil {
		t.Error("the answer is not noted")
	}
}

// TestKernelsKeepBuildsAway: no build while the program has kernel objects, nor while another is under way (§5.8.2).
func TestKernelsKeepBuildsAway(t *testing.T) {
	var table Table
	build(t, &table, 0, cl.SUCCESS, cl.PROGRAM_BINARY_TYPE_EXECUTABLE, "k")
	if facts, _, status := table.Attach("k"); facts == nil || status != cl.SUCCESS {
		t.Fatal(facts, status)
	}
	table.AttachClone()
	for range 2 {
		if got := table.Begin([]uint32{0}, "", nil); got != cl.INVALID_OPERATION {
			t.Errorf("a build beside kernels begins with %d", got)
		}
		table.Detach()
	}
	if got := table.Begin([]uint32{0}, "", nil); got != cl.SUCCESS {
		t.Errorf("a build without kernels begins with %d", got)
	}
	if got := table.Begin([]uint32{1}, "", nil); got != cl.INVALID_OPERATION {
		t.Errorf("a build beside another begins with %d", got)
	}
	if b, _ := table.Of(0); b.status != cl.BUILD_IN_PROGRESS {
		t.Errorf("status %d", b.status)
	}
	table.Fail([]uint32{0}, "no worker")
	b, _ := table.Of(0)
	wantInfo(t, &b, cl.PROGRAM_BUILD_LOG, answers.String("no worker"))
	wantInfo(t, &b, cl.PROGRAM_BUILD_STATUS, answers.U32(0xFFFFFFFE)) // CL_BUILD_ERROR
	if got := table.Begin([]uint32{0}, "", nil); got != cl.SUCCESS {
		t.Errorf("after a build that failed: %d", got)
	}
}

func wantInfo(t *testing.T, b *Build, param uint32, want []byte) {
	t.Helper()
	if got, status := b.Info(param); status != cl.SUCCESS || string(got) != string(want) {
		t.Errorf("parameter %#x: %q, %d; want %q", param, got, status, want)
	}
}

func TestInfo(t *testing.T) {
	var table Table
	build(t, &table, 3, cl.SUCCESS, cl.PROGRAM_BINARY_TYPE_EXECUTABLE)
	b, there := table.Of(3)
	if !there || b.From != "source" {
		t.Fatalf("%+v", b)
	}
	wantInfo(t, &b, cl.PROGRAM_BUILD_STATUS, answers.U32(0))
	wantInfo(t, &b, cl.PROGRAM_BUILD_OPTIONS, answers.String("-O"))
	wantInfo(t, &b, cl.PROGRAM_BUILD_LOG, answers.String("said"))
	wantInfo(t, &b, cl.PROGRAM_BINARY_TYPE, answers.U32(cl.PROGRAM_BINARY_TYPE_EXECUTABLE))
	wantInfo(t, &b, cl.PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE, answers.Size(24))
	if _, status := b.Info(0); status != cl.INVALID_VALUE {
		t.Errorf("a parameter that is none: %d", status)
	}
	none, there := table.Of(4)
	if there {
		t.Error("a device without a build has one")
	}
	wantInfo(t, &none, cl.PROGRAM_BUILD_STATUS, answers.U32(0xFFFFFFFF)) // CL_BUILD_NONE
	wantInfo(t, &none, cl.PROGRAM_BINARY_TYPE, answers.U32(cl.PROGRAM_BINARY_TYPE_NONE))
}
