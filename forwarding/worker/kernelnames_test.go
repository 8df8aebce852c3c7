//go:build cgo

package worker

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tendril/forwarding/clwire"
)

// create makes a program that is not built.
func (f *fixture) create(source string) uint64 {
	blob, p := f.id(), f.id()
	f.send(&clwire.Blob{ID: blob, Total: uint64(len(source)), Data: []byte(source)})
	f.send(&clwire.CreateProgram{ID: p, Context: f.context, Kind: clwire.ProgramSource, Blob: blob})
	return p
}

// kernels are the names in a build's result.
func (f *fixture) kernels(r *clwire.Reply) (names []string) {
	f.t.Helper()
	var b clwire.BuildResult
	if r.Status != 0 || json.Unmarshal(r.Data, &b) != nil {
		f.t.Fatalf("build: %d %s", r.Status, r.Data)
	}
	for _, k := range b.Kernels {
		names = append(names, k.Name)
	}
	slices.Sort(names)
	return names
}

// TestNamesWithoutTheDriversList: once a long word was met, results name the kernels of the sources, also of programs
// that were made before.
func TestNamesWithoutTheDriversList(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	early := f.create("kernel void a(global int *x) { *x = 1; } kernel void b(global int *x) { *x = 2; }")
	f.create("// " + strings.Repeat("w", longWord+1))
	late := f.create("kernel void c(global int *x) { *x = 3; }")
	if got := f.kernels(f.call(&clwire.BuildProgram{Program: early})); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("of a program that was made before: %q", got)
	}
	parts := []uint64{f.create("kernel void d(global int *x) { *x = 4; }"), late}
	for _, p := range parts {
		if r := f.call(&clwire.CompileProgram{BuildProgram: clwire.BuildProgram{Program: p}}); r.Status != 0 {
			t.Fatalf("compile: %d %s", r.Status, r.Data)
		}
	}
	link := &clwire.LinkProgram{ID: f.id(), Context: f.context, Programs: parts}
	if got := f.kernels(f.call(link)); !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("of a program that was linked: %q", got)
	}
}

// TestNamesOfALibrary: a library was linked before a long word was met, and a program is linked of it after, when the
// library's part is gone.
func TestNamesOfALibrary(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	part := f.create("kernel void d(global int *x) { *x = 4; }")
	if r := f.call(&clwire.CompileProgram{BuildProgram: clwire.BuildProgram{Program: part}}); r.Status != 0 {
		t.Fatalf("compile: %d %s", r.Status, r.Data)
	}
	library := f.id()
	if r := f.call(&clwire.LinkProgram{ID: library, Context: f.context, Programs: []uint64{part},
		Options: []byte("-create-library")}); r.Status != 0 {
		t.Fatalf("library: %d %s", r.Status, r.Data)
	}
	f.send(&clwire.Release{ID: part})
	f.create("// " + strings.Repeat("w", longWord+1))
	link := &clwire.LinkProgram{ID: f.id(), Context: f.context, Programs: []uint64{library}}
	if got := f.kernels(f.call(link)); !slices.Equal(got, []string{"d"}) {
		t.Errorf("of a program that was linked: %q", got)
	}
}

// TestLinkLooksForNoNames: neither is one when a program is linked of it, where the driver has its list.
func TestLinkLooksForNoNames(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	const words = 8192
	part := f.create("/* " + strings.Repeat("kernel ", words) + "*/ kernel void d(global int *x) { *x = 4; }")
	if r := f.call(&clwire.CompileProgram{BuildProgram: clwire.BuildProgram{Program: part}}); r.Status != 0 {
		t.Fatalf("compile: %d %s", r.Status, r.Data)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := f.call(&clwire.LinkProgram{ID: f.id(), Context: f.context, Programs: []uint64{part}})
	runtime.ReadMemStats(&after)
	if got := f.kernels(r); !slices.Equal(got, []string{"d"}) {
		t.Errorf("of a program that was linked: %q", got)
	}
	if n := after.Mallocs - before.Mallocs; n > words/2 {
		t.Errorf("%d allocations for a source of %d words", n, words)
	}
}

// TestCreationLooksForNoNames: a source is not looked through for kernels when a program is made of it, which the
// connection's reader does.
func TestCreationLooksForNoNames(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	const words = 8192
	source := strings.Repeat("kernel ", words)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f.create(source)
	f.finish(f.queue, 0)
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > words/2 {
		t.Errorf("%d allocations for a source of %d words", n, words)
	}
}
