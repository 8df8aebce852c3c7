//go:build cgo

package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/tools/e2e/await"
)

// forms runs a test with commands submitted by the reader and by lanes.
func forms(t *testing.T, test func(t *testing.T, c *client)) {
	for _, lanes := range []bool{false, true} {
		name := "inline"
		if lanes {
			name = "lanes"
		}
		t.Run(name, func(t *testing.T) { test(t, inProcess(t, lanes)) })
	}
}

// finish waits for a queue and expects a status.
func (f *fixture) finish(queue uint64, want int32) {
	f.t.Helper()
	if r := f.call(&clwire.Finish{Queue: queue}); r.Status != want {
		f.t.Fatalf("finish: %d, want %d; faults %+v", r.Status, want, f.faults)
	}
}

func (f *fixture) expect(what string, b []byte, want int32) {
	f.t.Helper()
	f.bring()
	for i, v := range ints(b) {
		if v != want {
			f.t.Fatalf("%s: item %d is %d, want %d; faults %+v", what, i, v, want, f.faults)
		}
	}
}

func TestKernelComputesInTheSegment(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		b, mem := f.buffer(64)
		k := f.kernel("add")
		for i := range 10 {
			f.send(run1(clwire.Cmd{Queue: f.queue}, k, 16, argMem(0, b), argInt(1, int32(i))))
		}
		f.finish(f.queue, 0)
		f.expect("sum", mem, 45)
	})
}

func TestUserEventHoldsWhatFollows(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		b, mem := f.buffer(64)
		k, user, first, second := f.kernel("add"), f.id(), f.id(), f.id()
		f.send(&clwire.UserEvent{ID: user})
		// Both launches are held; each keeps the arguments of its time.
		f.send(run1(clwire.Cmd{Queue: f.queue, Event: first, Wait: []uint64{user}}, k, 16, argMem(0, b), argInt(1, 1)))
		f.send(run1(clwire.Cmd{Queue: f.queue, Event: second}, k, 16, argInt(1, 20)))
		other := f.newQueue(0)
		f.send(run1(clwire.Cmd{Queue: other}, k, 16, argInt(1, 300)))
		f.finish(other, 0)
		f.expect("only the free queue ran", mem, 300)
		done := f.ask(&clwire.Finish{Queue: f.queue})
		f.send(&clwire.SetUserEvent{ID: user})
		f.until("finish", func() bool { return f.replies[done] != nil })
		f.expect("all ran", mem, 321)
		if f.count[first] != 1 || f.count[second] != 1 {
			t.Errorf("ends reported: %v", f.count)
		}
	})
}

func TestFailedUserEventFailsItsDependents(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		b, mem := f.buffer(64)
		k, user, first, second, third := f.kernel("add"), f.id(), f.id(), f.id(), f.id()
		f.send(&clwire.UserEvent{ID: user})
		f.send(run1(clwire.Cmd{Queue: f.queue, Event: first, Wait: []uint64{user}}, k, 16, argMem(0, b), argInt(1, 1)))
		f.send(run1(clwire.Cmd{Queue: f.newQueue(0), Event: second, Wait: []uint64{first}}, k, 16, argInt(1, 1)))
		f.send(run1(clwire.Cmd{Queue: f.queue, Event: third}, k, 16, argInt(1, 5)))
		f.send(&clwire.SetUserEvent{ID: user, Status: -9})
		if r := f.call(&clwire.Wait{Events: []uint64{first,
			second}}); r.Status != int32(cl.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) {
			t.Errorf("wait: %d", r.Status)
		}
		f.finish(f.queue, 0)
		f.expect("only the last ran", mem, 5)
		for e, want := range map[uint64]int32{first: -14, second: -14, third: 0} {
			if got := f.ends[e].Status; got != want {
				t.Errorf("event %d ended with %d, want %d", e, got, want)
			}
		}
	})
}

func TestHostOperationStandsBetweenKernels(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		b, mem := f.buffer(64)
		k, op, ev := f.kernel("add"), f.id(), f.id()
		f.send(run1(clwire.Cmd{Queue: f.queue}, k, 16, argMem(0, b), argInt(1, 1)))
		f.send(&clwire.Host{Cmd: clwire.Cmd{Queue: f.queue, Event: ev}, Op: op})
		f.send(run1(clwire.Cmd{Queue: f.queue}, k, 16, argInt(1, 2)))
		f.until("host ready", func() bool { _, ok := f.ready[op]; return ok })
		if !f.inPlace {
			f.t.Skip("the host operation's memory is a segment that this device does not compute on")
		}
		f.expect("the first kernel is done, the second is not", mem, 1)
		for i := range mem {
			mem[i] = 0
		}
		f.send(&clwire.HostDone{Op: op})
		f.finish(f.queue, 0)
		f.expect("the second followed the host", mem, 2)
		if f.count[ev] != 1 {
			t.Errorf("the host operation's end was reported %d times", f.count[ev])
		}
	})
}

func TestDriverMemoryAndTransfers(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		a, b, sub := f.id(), f.id(), f.id()
		f.send(&clwire.CreateBuffer{ID: a, Context: f.context, Flags: cl.MEM_READ_WRITE, Size: 4096})
		f.send(&clwire.CreateBuffer{ID: b, Context: f.context, Flags: cl.MEM_READ_WRITE, Size: 4096})
		f.send(&clwire.CreateBuffer{ID: sub, Context: f.context, Flags: cl.MEM_READ_WRITE, Size: 1024, Parent: b,
			Offset: 1024})
		q := clwire.Cmd{Queue: f.queue}
		for i := range f.segment[:4096] {
			f.segment[i] = byte(i)
		}
		f.send(&clwire.Transfer{Cmd: q, Buffer: a, Segment: f.segmentID, Size: 4096})
		f.send(&clwire.WriteInline{Cmd: q, Buffer: a, Offset: 4, Data: []byte("inline")})
		f.send(&clwire.Fill{Cmd: q, Buffer: b, Size: 4096, Pattern: []byte{0xEE}})
		f.send(&clwire.Copy{Cmd: q, Src: a, Dst: sub, SrcOffset: 0, DstOffset: 0, Size: 16})
		f.send(&clwire.CopyRect{Cmd: q, Src: a, Dst: b, SrcOrigin: [3]uint64{16, 0, 0}, DstOrigin: [3]uint64{0, 32, 0},
			Region: [3]uint64{8, 2, 1},
			SrcRow: 64, DstRow: 64})
		f.send(&clwire.Transfer{Cmd: q, Direction: clwire.FromBuffer, Buffer: b, Segment: f.segmentID,
			SegmentOffset: 8192, Size: 4096})
		f.send(&clwire.Transfer{Cmd: q, Direction: clwire.FromBuffer, Buffer: a, Segment: f.segmentID,
			SegmentOffset: 16384, Rect: true,
			Origin: [3]uint64{8, 1, 0}, Region: [3]uint64{4, 3, 1}, RowPitch: 256})
		f.finish(f.queue, 0)
		got := f.segment[8192:12288]
		want := bytes.Repeat([]byte{0xEE}, 4096)
		copy(want[1024:], append([]byte{0, 1, 2, 3}, "inline\x0a\x0b\x0c\x0d\x0e\x0f"...))
		copy(want[32*64:], []byte{16, 17, 18, 19, 20, 21, 22, 23})
		copy(want[33*64:], []byte{80, 81, 82, 83, 84, 85, 86, 87})
		if !bytes.Equal(got, want) {
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("byte %d is %d, want %d", i, got[i], want[i])
				}
			}
		}
		if rect := f.segment[16384:16396]; !bytes.Equal(rect, []byte{8, 9, 10, 11, 8, 9, 10, 11, 8, 9, 10, 11}) {
			t.Errorf("box: %v", rect)
		}
	})
}

func TestRangesAreChecked(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	b, _ := f.buffer(64)
	ev := func() clwire.Cmd { return clwire.Cmd{Queue: f.queue, Event: f.id()} }
	const huge = 1<<64 - 8
	for _, m := range []clwire.Message{
		&clwire.Copy{Cmd: ev(), Src: b, Dst: b, SrcOffset: 60, Size: 8},
		&clwire.Copy{Cmd: ev(), Src: b, Dst: b, DstOffset: huge, Size: 16},
		&clwire.Fill{Cmd: ev(), Buffer: b, Offset: 64, Size: 4, Pattern: []byte{1, 2, 3, 4}},
		&clwire.Fill{Cmd: ev(), Buffer: b, Size: 64},
		&clwire.WriteInline{Cmd: ev(), Buffer: b, Offset: 63, Data: []byte{1, 2}},
		&clwire.WriteInline{Cmd: ev(), Buffer: b},
		&clwire.Transfer{Cmd: ev(), Buffer: b, Segment: f.segmentID,
			SegmentOffset: uint64(len(f.segment)) - 4, Size: 8},
		&clwire.Transfer{Cmd: ev(), Buffer: b, Segment: f.segmentID, SegmentOffset: huge, Size: 64},
		&clwire.Transfer{Cmd: ev(), Buffer: b, Segment: f.segmentID, Rect: true, Region: [3]uint64{8, 8, 1},
			RowPitch: 16},
		&clwire.Transfer{Cmd: ev(), Buffer: b, Segment: f.segmentID, Rect: true,
			Region: [3]uint64{1 << 32, 1 << 32, 1}},
		&clwire.CopyRect{Cmd: ev(), Src: b, Dst: b, Region: [3]uint64{1, huge, huge}, SrcRow: huge},
	} {
		n := len(f.faults)
		f.send(m)
		f.finish(f.queue, int32(cl.INVALID_VALUE))
		f.finish(f.queue, 0)
		if len(f.faults) != n+1 || f.ends[f.faults[n].Object].Status != int32(cl.INVALID_VALUE) {
			t.Errorf("%T %+v: faults %+v", m, m, f.faults[n:])
		}
	}
}

func TestVerdicts(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		b, mem := f.buffer(64)
		k := f.kernel("add")
		bad := run1(clwire.Cmd{Queue: f.queue, Event: f.id()}, k, 16, argMem(0, b), argInt(1, 1))
		bad.HasLocal, bad.Local = true, [3]uint64{1 << 30, 1, 1}
		if r := f.call(bad); r.Status != -54 && r.Status != -55 {
			t.Errorf("a work-group of 2^30: %d", r.Status)
		}
		if r := f.call(run1(clwire.Cmd{Queue: f.queue, Event: f.id()}, k, 16)); r.Status != 0 {
			t.Errorf("a good launch: %d", r.Status)
		}
		f.finish(f.queue, 0)
		f.expect("one launch", mem, 1)
		if r := f.call(&clwire.SetArg{Kernel: k, Arg: argInt(9, 1)}); r.Status != -49 {
			t.Errorf("argument 9: %d", r.Status)
		}
		if len(f.faults) != 0 {
			t.Errorf("faults beside the verdicts: %+v", f.faults)
		}
	})
}

func TestKernelWaitsForItsBuild(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	b, mem := f.buffer(64)
	src := `kernel void late(global int *v) { v[get_global_id(0)] = 77; }`
	blob, ev := f.id(), f.id()
	f.program = f.id()
	f.send(&clwire.Blob{ID: blob, Total: uint64(len(src)), Data: []byte(src)})
	f.send(&clwire.CreateProgram{ID: f.program, Context: f.context, Kind: clwire.ProgramSource, Blob: blob})
	build := f.ask(&clwire.BuildProgram{Program: f.program})
	k := f.kernel("late")
	f.send(run1(clwire.Cmd{Queue: f.queue, Event: ev}, k, 16, argMem(0, b)))
	none := f.kernel("none")
	failing := f.id()
	f.send(run1(clwire.Cmd{Queue: f.newQueue(0), Event: failing}, none, 1))
	f.finish(f.queue, 0)
	f.expect("late", mem, 77)
	f.call(&clwire.Wait{Events: []uint64{failing}})
	if s := f.ends[failing].Status; s != -46 {
		t.Errorf("a kernel that is not there: %d", s)
	}
	f.until("BuildProgram", func() bool { return f.replies[build] != nil }) // what waited for it may be told first
	if f.replies[build].Status != 0 {
		t.Errorf("build: %+v", f.replies[build])
	}
}

func TestBuildReports(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	r := f.buildSource("kernel void broken( {")
	var b clwire.BuildResult
	f.must(json.Unmarshal(r.Data, &b))
	if r.Status != -11 || len(b.Devices) != 1 || b.Devices[0].Status != -2 ||
		!strings.Contains(string(b.Devices[0].Log), "error") {
		t.Errorf("status %d, %s", r.Status, r.Data)
	}
	r = f.buildSource("kernel void three(global const float *a, local int *l, int n) {}")
	f.must(json.Unmarshal(r.Data, &b))
	if r.Status != 0 || len(b.Kernels) != 1 || b.Kernels[0].NumArgs != 3 || b.Kernels[0].WorkGroups[0].Size == 0 {
		t.Fatalf("status %d, %s", r.Status, r.Data)
	}
	if a := b.Kernels[0].Args; b.Kernels[0].HasArgInfo && (a[0].TypeName != "float*" || a[2].Name != "n") {
		t.Errorf("arguments %+v", a)
	}
}

// A build without -cl-kernel-arg-info stays one: the driver gives no argument information, and what it takes is found
// out.
func TestBuildTellsShapes(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	r := f.buildSource("kernel void all_kinds(global float *g, constant int *c, local int *l, int n, ulong u, char3 v, double16 d, global const int *last) {}")
	var b clwire.BuildResult
	f.must(json.Unmarshal(r.Data, &b))
	if r.Status != 0 || len(b.Kernels) != 1 {
		t.Fatalf("status %d, %s", r.Status, r.Data)
	}
	k := b.Kernels[0]
	if k.HasArgInfo {
		t.Skip("this driver always gives argument information")
	}
	buffer, local := clwire.ArgShape{Kind: clwire.ShapeBuffer}, clwire.ArgShape{Kind: clwire.ShapeLocal}
	value := func(n uint32) clwire.ArgShape { return clwire.ArgShape{Kind: clwire.ShapeValue, Bytes: n} }
	want := []clwire.ArgShape{buffer, buffer, local, value(4), value(8), value(4), value(128), buffer}
	if !slices.Equal(k.Shapes, want) {
		t.Errorf("shapes %+v, want %+v", k.Shapes, want)
	}
}

func TestQueries(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	k := f.kernel("add")
	if r := f.call(&clwire.Query{Kind: clwire.QueryKernel, Object: k, Param: cl.KERNEL_NUM_ARGS}); r.Status != 0 ||
		answers.Number(r.Data) != 2 {
		t.Errorf("number of arguments: %+v", r)
	}
	if r := f.call(&clwire.Query{Kind: clwire.QueryKernelWorkGroup, Object: k,
		Param: cl.KERNEL_WORK_GROUP_SIZE}); r.Status != 0 || answers.Number(r.Data) == 0 {
		t.Errorf("work-group size: %+v", r)
	}
	if r := f.call(&clwire.Query{Kind: clwire.QueryKernel, Object: k,
		Param: cl.KERNEL_CONTEXT}); r.Status != int32(cl.INVALID_VALUE) {
		t.Errorf("a handle: %+v", r)
	}
	r := f.call(&clwire.Query{Kind: clwire.QueryProgram, Object: f.program, Param: cl.PROGRAM_BINARIES})
	if r.Status != 0 || len(r.Data) < 100 {
		t.Fatalf("binaries: %d, %d bytes", r.Status, len(r.Data))
	}
	// And back: the binary makes the same program.
	binary, blob := r.Data, f.id()
	for at := 0; at < len(binary); at += 60000 {
		f.send(&clwire.Blob{ID: blob, Total: uint64(len(binary)), Offset: uint64(at),
			Data: binary[at:min(at+60000, len(binary))]})
	}
	f.program = f.id()
	if r := f.call(&clwire.CreateProgram{ID: f.program, Context: f.context, Kind: clwire.ProgramBinaries, Blob: blob,
		Binaries: []clwire.DeviceBytes{{Device: 0, Bytes: uint64(len(binary))}}}); r.Status != 0 {
		t.Fatalf("program from a binary: %d", r.Status)
	}
	f.call(&clwire.BuildProgram{Program: f.program})
	b, mem := f.buffer(64)
	f.send(run1(clwire.Cmd{Queue: f.queue}, f.kernel("add"), 16, argMem(0, b), argInt(1, 3)))
	f.finish(f.queue, 0)
	f.expect("binary", mem, 3)
}

// An answer larger than the ring comes whole, although the client sends nothing while it waits.
func TestAnswersLargerThanTheRing(t *testing.T) {
	f := newFixture(inProcess(t, false), 0)
	var b strings.Builder
	for k := range 50 {
		fmt.Fprintf(&b, "kernel void k%d(", k)
		for a := range 16 {
			fmt.Fprintf(&b, "int %s%d, ", strings.Repeat("x", 500), a)
		}
		b.WriteString("global int *v) { v[0] = 1; }\n")
	}
	blob, program := f.id(), f.id()
	for at := 0; at < b.Len(); at += 32 << 10 {
		part := b.String()[at:min(at+32<<10, b.Len())]
		f.send(&clwire.Blob{ID: blob, Total: uint64(b.Len()), Offset: uint64(at), Data: []byte(part)})
	}
	f.send(&clwire.CreateProgram{ID: program, Context: f.context, Kind: clwire.ProgramSource, Blob: blob})
	await.Blocked(t, 1, "link.(*Conn).Block") // the worker has nothing to do
	r := f.call(&clwire.BuildProgram{Program: program, Options: []byte("-cl-kernel-arg-info")})
	if r.Status != 0 || len(r.Data) < clwire.ToClientBytes {
		t.Fatalf("status %d, %d bytes: want more than a ring of %d", r.Status, len(r.Data), clwire.ToClientBytes)
	}
	var result clwire.BuildResult
	f.must(json.Unmarshal(r.Data, &result))
	if len(result.Kernels) != 50 {
		t.Errorf("%d kernels of 50", len(result.Kernels))
	}
}

func TestProfiling(t *testing.T) {
	f := newFixture(inProcess(t, false), cl.QUEUE_PROFILING_ENABLE)
	k, ev := f.kernel("empty"), f.id()
	f.send(run1(clwire.Cmd{Queue: f.queue, Event: ev}, k, 1))
	f.finish(f.queue, 0)
	e := f.ends[ev]
	if p := e.Profile; !e.HasProfile || p[0] == 0 || p[1] < p[0] || p[2] < p[1] || p[3] < p[2] || p[4] < p[3] {
		t.Errorf("%+v", e)
	}
}

func TestEveryKeptEventIsReportedUnasked(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		k := f.kernel("empty")
		for range 500 {
			f.send(run1(clwire.Cmd{Queue: f.queue, Event: f.id()}, k, 1))
		}
		f.until("all ends", func() bool { return len(f.ends) == 500 })
		for e, n := range f.count {
			if n != 1 {
				t.Errorf("event %d was reported %d times", e, n)
			}
		}
	})
}

func TestOutOfOrderQueueKeepsBarriers(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, cl.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
		b, mem := f.buffer(64)
		k, fill := f.kernel("add"), clwire.Cmd{Queue: f.queue}
		for range 50 {
			f.send(&clwire.Fill{Cmd: fill, Buffer: b, Size: 64, Pattern: []byte{0, 0, 0, 0}})
			f.send(&clwire.Barrier{Cmd: fill})
			f.send(run1(fill, k, 16, argMem(0, b), argInt(1, 4)))
			f.send(&clwire.Barrier{Cmd: fill})
		}
		f.finish(f.queue, 0)
		f.expect("the last addition", mem, 4)
	})
}

// mappings counts this process's mappings of test segments by the session (the client has one each).
func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "memfd:segment")
}

func TestDroppedSegmentIsUnmapped(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		b, _ := f.buffer(64)
		f.finish(f.queue, 0)
		before := mappings(t)
		k := f.kernel("add")
		f.send(run1(clwire.Cmd{Queue: f.queue}, k, 16, argMem(0, b), argInt(1, 1)))
		f.send(&clwire.DropSegment{ID: f.segmentID})
		f.send(&clwire.Release{ID: b})
		f.send(&clwire.Release{ID: k})
		f.finish(f.queue, 0)
		for deadline := time.Now().Add(5 * time.Minute); mappings(t) >= before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d mappings, %d before", mappings(t), before)
			}
		}
	})
}

// A copy that waits in the driver still reads a segment that the client has dropped, also where nobody follows it.
func TestDroppedSegmentStaysForACopyUnderWay(t *testing.T) {
	forms(t, func(t *testing.T, c *client) {
		f := newFixture(c, 0)
		first, _ := f.buffer(64)
		to := f.id()
		f.send(&clwire.CreateBuffer{ID: to, Context: f.context, Flags: cl.MEM_READ_WRITE, Size: 4096})
		f.finish(f.queue, 0)
		before := mappings(t)
		f.addSegment(1 << 16)
		for i := range f.segment[:4096] {
			f.segment[i] = byte(i * 7)
		}
		cmd := clwire.Cmd{Queue: f.queue}
		f.send(run1(cmd, f.kernel("slow"), 1, argMem(0, first), argInt(1, 20e6)))
		f.send(&clwire.Transfer{Cmd: cmd, Buffer: to, Segment: f.segmentID, Size: 4096})
		f.send(&clwire.DropSegment{ID: f.segmentID})
		want := append([]byte(nil), f.segment[:4096]...)
		f.finish(f.queue, 0)
		check := f.id()
		f.addSegment(4096)
		f.send(&clwire.CreateBuffer{ID: check, Context: f.context, Flags: cl.MEM_READ_WRITE, Size: 4096})
		f.send(&clwire.Copy{Cmd: cmd, Src: to, Dst: check, Size: 4096})
		f.send(&clwire.Transfer{Cmd: cmd, Direction: clwire.FromBuffer, Buffer: check,
			Segment: f.segmentID, Size: 4096})
		f.finish(f.queue, 0)
		if !bytes.Equal(f.segment[:4096], want) {
			t.Error("the copy brought other bytes")
		}
		// The test's own mappings of both stay, the session's of the second too.
		for deadline := time.Now().Add(5 * time.Minute); mappings(t) > before+3; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d mappings, %d before: dropped ones stay", mappings(t), before)
			}
		}
	})
}

func TestBadRecordsEndTheSession(t *testing.T) {
	for name, m := range map[string]clwire.Message{
		"unknown queue":     &clwire.Finish{Queue: 999999},
		"unknown buffer":    &clwire.Fill{Cmd: clwire.Cmd{Queue: 2}, Buffer: 999999, Size: 4, Pattern: []byte{1}},
		"unknown kernel":    run1(clwire.Cmd{Queue: 2}, 999999, 1),
		"unknown event":     &clwire.Wait{Events: []uint64{999999}},
		"a queue as kernel": run1(clwire.Cmd{Queue: 2}, 1, 1),
		"taken id":          &clwire.UserEvent{ID: 1},
		"device 7":          &clwire.CreateContext{ID: 888, Devices: []uint32{7}},
		"second Hello":      &clwire.Hello{Version: clwire.Version},
		"unknown type":      &clwire.Print{},
		"incomplete blob":   &clwire.CreateProgram{ID: 888, Context: 1, Kind: clwire.ProgramSource, Blob: 5555},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(inProcess(t, false), 0)
			f.send(m)
			f.until("a fault", func() bool { return len(f.faults) > 0 })
			if f.faults[0].Object != 0 || f.faults[0].Text == "" {
				t.Errorf("%+v", f.faults)
			}
			t.Log(f.faults[0].Text)
		})
	}
}
