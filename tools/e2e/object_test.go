package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/trace"
	"tendril/tools/e2e/rig"
)

// buildWithExtension builds a C program that uses our OpenCL extension.
func buildWithExtension(t *testing.T, source string) string {
	t.Helper()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	out := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	cc := exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-I../../forwarding/icd/include", "-o", out,
		source, "-lOpenCL")
	if _, err := rig.Output(cc); err != nil {
		t.Fatal(err)
	}
	return out
}

// objectSum compiles the example of cl_tendril_store.
func objectSum(t *testing.T) string {
	t.Helper()
	return buildWithExtension(t, "../../forwarding/icd/examples/objectsum.c")
}

// summed writes a file of random bytes, and returns what objectsum says of it.
func summed(t *testing.T, path string, size int) string {
	t.Helper()
	b := make([]byte, size)
	random, sum := rand.NewChaCha8([32]byte{1}), uint64(0)
	_, _ = random.Read(b) // never fails
	for _, v := range b {
		sum += uint64(v)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d bytes, sum %d\n", size, sum)
}

// A kernel reads an object of the store as its buffer; a small one shares its segment with others.
func TestAnObjectAsABuffer(t *testing.T) {
	t.Parallel()
	program, n, dir := objectSum(t), node(t), t.TempDir()
	for name, size := range map[string]int{"large": 5<<20 + 3, "small": 1001} {
		file := filepath.Join(dir, name)
		want := summed(t, file, size)
		if _, err := n.Run(t.Context(), "put", file); err != nil {
			t.Fatal(err)
		}
		if got, err := n.Run(t.Context(), "run", "--", program, name); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
		if _, err := n.Run(t.Context(), "rm", name); err != nil {
			t.Errorf("an object that was a buffer cannot be removed: %v", err)
		}
	}
	if _, err := n.Run(t.Context(), "run", "--", program, "nothing"); err == nil ||
		!strings.Contains(err.Error(), "not found") {
		t.Errorf("no object: %v", err)
	}
	eventually(t, idle(t.Context(), n))
}

// An object in the memory of an OpenCL device: a program opens it by one copy, and says so; its bytes are there after
// the keeper that had them was killed.
func TestAnObjectOfAnOpenCLDevice(t *testing.T) {
	t.Parallel()
	program, n, dir := objectSum(t), node(t), t.TempDir()
	file := filepath.Join(dir, "there")
	want := summed(t, file, 5<<20+3)
	run := func(args ...string) string {
		t.Helper()
		out, err := n.Run(t.Context(), args...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	if out := run("put", file, "--device", "opencl:0", "--json"); !strings.Contains(out, `"kind": "opencl"`) {
		t.Errorf("put: %s", out)
	}
	var status struct {
		Keepers []struct {
			PID int `json:"pid"`
		} `json:"opencl_keepers"`
	}
	if err := json.Unmarshal([]byte(run("status", "--json")), &status); err != nil || len(status.Keepers) != 1 {
		t.Fatalf("%+v, %v", status, err)
	}
	if err := unix.Kill(status.Keepers[0].PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got := filepath.Join(dir, "got")
	run("get", "there", "-o", got)
	a, _ := os.ReadFile(file)
	if b, err := os.ReadFile(got); err != nil || !bytes.Equal(a, b) {
		t.Errorf("%d bytes came back, %v", len(b), err)
	}
	traced := run("trace", "-o", filepath.Join(dir, "out.json"), "--", program, "there")
	if !strings.HasPrefix(traced, want) {
		t.Errorf("%q, want %q", traced, want)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "out.json")); err != nil ||
		!bytes.Contains(raw, []byte("one copy through host memory")) {
		t.Errorf("the trace does not say that it was a copy: %v", err)
	}
	run("rm", "there")
	eventually(t, idle(t.Context(), n))
}

// Objects of an OpenCL device make way for others of their tenant, and come back whole,
// whatever happens to the keeper. Its driver sees what the probe's saw, and nothing else of the daemon's environment.
func TestObjectsOfAnOpenCLDeviceMakeWay(t *testing.T) {
	t.Parallel()
	program, dir := objectSum(t), t.TempDir()
	n := node(t, "TENDRIL_QUOTA_DEVICE=20MiB", "TENDRIL_CAPACITY=256MiB", "POCL_DEVICES=basic basic",
		"TENDRIL_TEST_SECRET=x")
	run := func(args ...string) string {
		t.Helper()
		out, err := n.Run(t.Context(), args...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	keeper := func() int {
		var status struct {
			Keepers []struct {
				PID int `json:"pid"`
			} `json:"opencl_keepers"`
		}
		if err := json.Unmarshal([]byte(run("status", "--json")), &status); err != nil || len(status.Keepers) != 1 {
			t.Fatalf("%+v, %v", status, err)
		}
		return status.Keepers[0].PID
	}
	const count = 9
	want := make([]string, count)
	for i := range count {
		file := filepath.Join(dir, fmt.Sprint("o", i))
		want[i] = summed(t, file, 8_000_000+i)
		run("put", file, "--device", "opencl:0")
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", keeper())); err != nil ||
		!bytes.Contains(env, []byte("TENDRIL_WORKER=1")) || bytes.Contains(env, []byte("POCL_DEVICES")) ||
		bytes.Contains(env, []byte("TENDRIL_TEST_SECRET")) {
		t.Errorf("the keeper's environment: %q, %v", env, err)
	}
	for i := range count {
		name := fmt.Sprint("o", i)
		if i%4 == 1 {
			if err := unix.Kill(keeper(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if i%3 == 2 { // a program brings it back
			if got := run("run", "--", program, name); got != want[i] {
				t.Errorf("%s: %q, want %q", name, got, want[i])
			}
			continue
		}
		got := filepath.Join(dir, "got")
		run("get", name, "-o", got)
		a, _ := os.ReadFile(filepath.Join(dir, name))
		if b, err := os.ReadFile(got); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %d bytes came back, %v", name, len(b), err)
		}
	}
	for i := range count {
		run("rm", fmt.Sprint("o", i))
	}
	eventually(t, idle(t.Context(), n))
}

// onlyOpenCL says what is wrong with a listing that is to have one object, in the memory of an OpenCL device.
func onlyOpenCL(listing string, err error) error {
	if err == nil && (strings.Count(listing, `"id"`) != 1 || !strings.Contains(listing, `"kind": "opencl"`)) {
		err = errors.New(listing)
	}
	return err
}

// A result becomes an object in the memory of an OpenCL device, and stays after its program.
func TestPublishOnAnOpenCLDevice(t *testing.T) {
	t.Parallel()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	n, file := node(t), filepath.Join(t.TempDir(), "out")
	p := startWith(t, n, "--publish", "out", "--publish-kind", "opencl")
	if got := p.ask("open"); got[:5] != "ready" {
		t.Fatal(got)
	}
	for _, plus := range []uint32{0, 10} { // the second takes the name
		p.want("good", "verify")
		eventually(t, func() error { // what it was made of, in host memory, goes a moment later
			out, err := n.Run(t.Context(), "ls", "--json")
			return onlyOpenCL(out, err)
		})
		if _, err := n.Run(t.Context(), "get", "out", "-o", file); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil || len(data) == 0 {
			t.Fatal(err)
		}
		for i := range len(data) / 4 {
			if got, want := binary.LittleEndian.Uint32(data[4*i:]), uint32(i)*2654435761+plus; got != want {
				t.Fatalf("word %d of the object is %d, want %d", i, got, want)
			}
		}
		if plus == 0 {
			p.want("add 0", "add 10")
		}
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
	if _, err := n.Run(t.Context(), "rm", "out"); err != nil {
		t.Error(err)
	}
	eventually(t, idle(t.Context(), n))
}

// The result of a program on another machine becomes such an object at the device's node, and stays after the program.
func TestPublishOnAnotherMachinesOpenCLDevice(t *testing.T) {
	t.Parallel()
	reader := objectSum(t)
	n, at, laptop := far(t)
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	p := begin(t, n.Far(t.Context(), laptop, "run", "--server", at, "--publish", "out", "--publish-kind", "opencl", "--",
		session))
	if got := p.ask("open"); got[:5] != "ready" {
		t.Fatal(got)
	}
	there := func(args ...string) string {
		out, err := rig.Output(n.Far(t.Context(), laptop, append(args, "--server", at)...))
		if err != nil {
			t.Fatal(args, err)
		}
		return out
	}
	for _, plus := range []uint32{0, 10} { // the second takes the name
		p.want("good", "verify")
		if err := onlyOpenCL(there("ls", "--json"), nil); err != nil {
			t.Fatalf("%v, and the program said %q", err, p.err)
		}
		const words = 1 << 16
		sum := uint64(0)
		for i := range uint32(words) {
			for _, b := range binary.LittleEndian.AppendUint32(nil, i*2654435761+plus) {
				sum += uint64(b)
			}
		}
		out, err := rig.Output(n.Far(t.Context(), laptop, "run", "--server", at, "--", reader, "out"))
		if want := fmt.Sprintf("%d bytes, sum %d\n", 4*words, sum); err != nil || out != want {
			t.Errorf("%q, want %q: %v", out, want, err)
		}
		if plus == 0 {
			p.want("add 0", "add 10")
		}
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
	there("rm", "out")
	eventually(t, idle(t.Context(), n))
}

// A program on another machine opens an object in the memory of an OpenCL device: the object's node makes the copy, and
// no bytes cross the program's link. The copy goes with the buffer.
func TestAnObjectOfAnotherMachinesOpenCLDevice(t *testing.T) {
	t.Parallel()
	program := objectSum(t)
	n, laptop := node(t, "TENDRIL_LISTEN=127.0.0.1:0"), t.TempDir()
	at, err := n.Listening(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// of the tenant that puts it: put has no --device on another machine
	token, err := n.Run(t.Context(), "token", "create", "--tenant", fmt.Sprintf("uid:%d", os.Getuid()), "--expires", "1h")
	if err != nil {
		t.Fatal(err)
	}
	login := n.Far(t.Context(), laptop, "login", at)
	login.Stdin = strings.NewReader(token)
	if _, err := rig.Output(login); err != nil {
		t.Fatal(err)
	}
	file, out := filepath.Join(t.TempDir(), "there"), filepath.Join(t.TempDir(), "out.json")
	want := summed(t, file, 8<<20+5)
	if _, err := n.Run(t.Context(), "put", file, "--device", "opencl:0"); err != nil {
		t.Fatal(err)
	}
	crossed := crossedFor(t, n, laptop, at, out, program, "there", want)
	if crossed == 0 || crossed > 1<<20 {
		t.Errorf("%d bytes crossed", crossed)
	}
	if raw, err := os.ReadFile(out); err != nil || !bytes.Contains(raw, []byte("one copy through host memory")) {
		t.Errorf("the trace does not say that it was a copy: %v", err)
	}
	if _, err := n.Run(t.Context(), "rm", "there"); err != nil {
		t.Error(err)
	}
	eventually(t, idle(t.Context(), n))
}

// An object in the memory of an OpenCL device comes to another node as one in host memory, by one copy, and has
// replicas there; from there it goes into a device's memory again.
func TestAnObjectOfAnotherNodesOpenCLDevice(t *testing.T) {
	t.Parallel()
	need(t, "driver", hasDriver())
	list, dir := clustered(t, "a", "b"), t.TempDir()
	run := func(i int, args ...string) string {
		out, err := list[i].Run(t.Context(), args...)
		if err != nil {
			t.Fatal(args, err)
		}
		return out
	}
	file := filepath.Join(dir, "there")
	summed(t, file, 18<<20+5)
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	run(0, "put", file, "--device", "opencl:0")
	run(0, "publish", "there")
	same := func(name string) {
		t.Helper()
		out := filepath.Join(dir, "out")
		run(1, "get", name, "-o", out, "--wait", "30s")
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s has other bytes at the other node: %v", name, err)
		}
	}
	same("there")
	if out := run(1, "stat", "there"); !strings.Contains(out, "host, ") ||
		!strings.Contains(out, "a (made in memory of kind opencl, of a device)") {
		t.Errorf("%s", out)
	}
	if out := run(1, "ls"); !strings.Contains(out, "ephemeral of opencl") {
		t.Errorf("%s", out)
	}
	run(1, "get", "there", "--device", "opencl:0", "--name", "again")
	same("again")
	run(0, "replicate", "there", "--replicas", "2")
	run(0, "rm", "there")
	run(1, "rm", "again")
	for _, n := range list {
		eventually(t, idle(t.Context(), n))
	}
}

// A program of C has such objects, too.
func TestAnObjectOfAnOpenCLDeviceInC(t *testing.T) {
	t.Parallel()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	n, dir := node(t), t.TempDir()
	program := filepath.Join(dir, "opencldevice")
	if _, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-Werror", "-I../../client/c", "-o", program,
		"testdata/opencldevice.c", filepath.Join(bin, "lib", "libtendril.a"), "-pthread")); err != nil {
		t.Fatal(err)
	}
	text, err := n.Run(t.Context(), "devices", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var devices []struct {
		UUID string `json:"uuid"`
	}
	if err := json.Unmarshal([]byte(text), &devices); err != nil || len(devices) == 0 {
		t.Fatalf("%s: %v", text, err)
	}
	file := filepath.Join(dir, "host")
	if err := os.WriteFile(file, []byte("from C and back"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Run(t.Context(), "put", file); err != nil {
		t.Fatal(err)
	}
	if got, err := n.Run(t.Context(), "run", "--", program, devices[0].UUID, "host"); err != nil || got != "from C and back" {
		t.Errorf("%q, %v", got, err)
	}
	eventually(t, idle(t.Context(), n))
}

// crossedFor traces the program of another machine that opens an object, into out, and gives how many bytes crossed its
// link. want is what the program says.
func crossedFor(t *testing.T, n *rig.Node, laptop, at, out, program, object, want string) (crossed uint64) {
	t.Helper()
	text, err := rig.Output(n.Far(t.Context(), laptop, "trace", "--server", at, "-o", out, "--json", "--", program, object))
	if err != nil {
		t.Fatal(err)
	}
	text, ok := strings.CutPrefix(text, want)
	if !ok {
		t.Fatalf("%q, want %q", text, want)
	}
	var s trace.Summary
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	for _, w := range s.Wire {
		crossed += w.Bytes
	}
	return crossed
}

// An object that lies at another node is used there: its bytes do not cross the program's link.
func TestAnObjectOfAnotherMachine(t *testing.T) {
	t.Parallel()
	program := objectSum(t)
	n, at, laptop := far(t)
	const size = 24 << 20
	file := filepath.Join(t.TempDir(), "big")
	want := summed(t, file, size)
	if _, err := rig.Output(n.Far(t.Context(), laptop, "put", "--server", at, file)); err != nil {
		t.Fatal(err)
	}
	crossed := crossedFor(t, n, laptop, at, filepath.Join(t.TempDir(), "out.json"), program, "big", want)
	if crossed == 0 || crossed > size/100 {
		t.Errorf("%d bytes crossed for an object of %d", crossed, size)
	}
	eventually(t, idle(t.Context(), n))
}

// An object of one node is a buffer of a context that spans two, and buffers that the host may not touch move like
// others.
func TestAnObjectInAContextThatSpans(t *testing.T) {
	t.Parallel()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	near := node(t)
	_, address, config := far(t)
	program := filepath.Join(t.TempDir(), "spanned")
	if _, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-I../../forwarding/icd/include", "-o",
		program, "testdata/spanned.c", "-lOpenCL")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "lump")
	want := summed(t, file, 3<<20+5)
	if _, err := near.Run(t.Context(), "put", file); err != nil {
		t.Fatal(err)
	}
	for _, order := range [][]string{{"local", address}, {address, "local"}} {
		over := near.Command(t.Context(), "run", "--server", order[0], "--server", order[1], "--", program, "lump")
		over.Env = append(over.Env, "XDG_CONFIG_HOME="+config)
		if got, err := rig.Output(over); err != nil || got != "device 0: "+want+"device 1: "+want {
			t.Errorf("servers %v: %q, %v, want %q of two devices", order, got, err, want)
		}
		here := 1 // of the sums, the one that a device of this node's computed: the other device's, see spanned.c
		if order[0] != "local" {
			here = 0
		}
		sum, err := near.Run(t.Context(), "get", fmt.Sprintf("sum%d", here))
		if got := fmt.Sprintf("sum %d\n", binary.LittleEndian.Uint64([]byte(sum + "12345678")[:8])); err != nil ||
			!strings.HasSuffix(want, got) {
			t.Errorf("servers %v: published %q, %v, want %q", order, got, err, want)
		}
	}
	eventually(t, idle(t.Context(), near))
}
