//go:build cgo

package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl/nullcl"
)

// clBytes is what each device of the driver for tests has.
const clBytes = 8 << 20

// clDeviceUUID is that of its n-th device.
func clDeviceUUID(n int) string { return fmt.Sprintf("%s%02x", strings.Repeat("ce", 15), n) }

// clRig is a rig with a driver of OpenCL in place of CUDA's.
type clRig struct {
	rig
	driverCode []byte
}

func beginCL(t *testing.T) *clRig {
	t.Helper()
	icd := nullcl.Build(t)
	path, err := os.ReadFile(icd)
	if err != nil {
		t.Fatal(err)
	}
	library, err := os.ReadFile(strings.TrimSpace(string(path)))
	if err != nil {
		t.Fatal(err)
	}
	r := &clRig{rig{t: t, log: filepath.Join(t.TempDir(), "log")}, library}
	t.Setenv("NULLCL_LOG", r.log)
	t.Setenv("NULLCL_BYTES", fmt.Sprint(clBytes))
	t.Setenv("NULLCL_DEVICES", "2")
	return r
}

// start starts a keeper with a copy of the driver, which has a state of its own.
func (r *clRig) start() {
	r.t.Helper()
	dir := r.t.TempDir()
	library, icd := filepath.Join(dir, "libnullcl.so"), filepath.Join(dir, "null.icd")
	err := errors.Join(os.WriteFile(library, r.driverCode, 0o600), os.WriteFile(icd, []byte(library+"\n"), 0o600))
	if err != nil {
		r.t.Fatal(err)
	}
	r.rig.start(Options{OpenCL: OpenCLOptions{ICD: icd,
		Devices: map[string]int{clDeviceUUID(0): 0, clDeviceUUID(1): 1}}})
}

// allocate makes memory of a device; the caller closes its descriptor.
func (r *clRig) allocate(n int, size uint64) (spot, error) {
	r.t.Helper()
	reply, fd := r.ask(&clwire.KeeperRequest{Allocate: &clwire.KeeperAllocate{Device: clDeviceUUID(n), Bytes: size}})
	if (reply.Error != "") != (fd < 0) || reply.Error == "" && reply.Bytes < size {
		r.t.Fatalf("descriptor %d, %+v", fd, reply)
	}
	if reply.Error != "" {
		return spot{}, errors.New(reply.Error)
	}
	return spot{clwire.KeeperPlace{Device: clDeviceUUID(n), Bytes: reply.Bytes}, fd}, nil
}

func (r *clRig) forget(s spot) error {
	key, err := keyOf(s.fd)
	if err != nil {
		return err
	}
	reply, _ := r.ask(&clwire.KeeperRequest{Forget: &clwire.KeeperForget{Memory: []clwire.HostMemory{key}}})
	if reply.Error != "" {
		return errors.New(reply.Error)
	}
	return nil
}

// held is what this process has of twins: mappings and descriptors.
func held(t *testing.T) (mapped, files int) {
	t.Helper()
	const name = "tendril-twin"
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		if at, err := os.Readlink("/proc/self/fd/" + x.Name()); err == nil && strings.Contains(at, name) {
			files++
		}
	}
	return bytes.Count(maps, []byte(name)), files
}

// life makes memory of both devices, fills one, copies it to the other and back to the host, and lets go of it all.
func (r *clRig) life(data []byte) (err error) {
	r.t.Helper()
	n := uint64(len(data))
	from, back := r.host(data), r.host(make([]byte, n))
	var places []spot
	defer func() {
		for _, s := range places {
			err = errors.Join(err, r.forget(s))
			unix.Close(s.fd)
		}
	}()
	for i := range 2 {
		s, err := r.allocate(i, n)
		if err != nil {
			return err
		}
		places = append(places, s)
		if got := r.contents(s, len(data)); !bytes.Equal(got, make([]byte, n)) {
			r.t.Error("a new twin is not zero")
		}
	}
	for _, x := range [][2]spot{{back, places[0]}, {places[0], from}, {places[1], places[0]}, {back, places[1]}} {
		if reply := r.copy(x[0], x[1], n); reply.Error != "" {
			return errors.New(reply.Error)
		}
		if x[0] == back && x[1] == places[0] && !bytes.Equal(r.contents(back, len(data)), make([]byte, n)) {
			r.t.Error("new memory of a device is not zero")
		}
	}
	if !bytes.Equal(r.contents(back, len(data)), data) {
		r.t.Error("the bytes differ")
	}
	return nil
}

// Each call of an OpenCL driver fails once: the request has an error that names it, no byte is wrong, and nothing stays
// taken of a keeper that serves on. Where it is not known what stays the keeper ends, and the next one begins anew.
func TestEveryCallOfAnOpenCLDriverFails(t *testing.T) {
	r := beginCL(t)
	data := pattern(64<<10 + 123)
	r.start()
	if err := r.life(data); err != nil {
		t.Fatal(err)
	}
	calls, kept := r.counted() // kept: contexts and queues
	if err := r.end(); err != nil || calls < 30 {
		t.Fatalf("%d calls, %v", calls, err)
	}
	for _, code := range []string{"-4", "-61", "-36"} { // no memory, the size, an invalid queue
		failed, ends := 0, 0
		for i := 1; i <= calls; i++ {
			before, _ := held(t)
			r.start()
			t.Setenv("NULLCL_FAIL", fmt.Sprintf("%d:%s", i, code))
			err := r.life(data)
			t.Setenv("NULLCL_FAIL", "")
			if err != nil {
				failed++
			}
			if err != nil && !strings.Contains(err.Error(), code) && !strings.Contains(err.Error(), "has ended") {
				t.Errorf("call %d of %d: the error does not say %s: %v", i, calls, code, err)
			}
			again := r.life(data)
			_, left := r.counted()
			twins, files := held(t)
			ended := r.end()
			if ended == nil && (twins != before || files > 0) {
				t.Errorf("call %d of %d failed with %s (%v): %d twins are mapped, before %d; %d descriptors of theirs",
					i, calls, code, err, twins, before, files)
			}
			if ended != nil {
				ends++
				r.start()
				again = r.life(data)
				_, left = r.counted()
				ended = r.end()
			}
			if again != nil || ended != nil || left > kept {
				t.Errorf("call %d of %d failed with %s (%v), and afterwards: %v, %v; %d objects of the driver's, before %d",
					i, calls, code, err, again, ended, left, kept)
			}
		}
		if failed < calls*2/3 || ends < calls/4 {
			t.Errorf("%s: %d of %d calls failed a request, %d keepers ended", code, failed, calls, ends)
		}
	}
}

// What one keeper had when it ended, at whatever call, the next one has of the twins, byte for byte: no copy is lost
// that was answered, and one that was not is done again.
func TestNextKeeperHasTheBytes(t *testing.T) {
	r := beginCL(t)
	data, other := pattern(64<<10+123), bytes.Repeat([]byte{7}, 64<<10+123)
	n := uint64(len(data))
	fill := func(a, b, from spot) error {
		if reply := r.copy(a, from, n); reply.Error != "" {
			return errors.New(reply.Error)
		}
		if reply := r.copy(b, a, n); reply.Error != "" {
			return errors.New(reply.Error)
		}
		return nil
	}
	r.start()
	a, err := r.allocate(0, n)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(a.fd)
	b, err := r.allocate(1, n)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(b.fd)
	first, second, back := r.host(data), r.host(other), r.host(make([]byte, n))
	if err := fill(a, b, first); err != nil {
		t.Fatal(err)
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	ended := 0
	for i := 1; ; i++ {
		from, want := first, data
		if i%2 == 1 {
			from, want = second, other
		}
		r.start()
		t.Setenv("NULLCL_FAIL", fmt.Sprintf("%d:-36", i))
		err := fill(a, b, from)
		calls, _ := r.counted()
		t.Setenv("NULLCL_FAIL", "")
		if r.end() != nil {
			ended++
		}
		r.start()
		if err != nil { // as a client does
			err = fill(a, b, from)
		}
		for _, s := range []spot{a, b} {
			reply := r.copy(back, s, n)
			if err != nil || reply.Error != "" || !bytes.Equal(r.contents(back, len(want)), want) {
				t.Errorf("call %d failed: %v, %+v, or other bytes", i, err, reply)
			}
			if !bytes.Equal(r.contents(s, len(want)), want) {
				t.Errorf("call %d failed: the twin has other bytes than the device", i)
			}
		}
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
		if calls < i {
			break
		}
	}
	if ended < 10 {
		t.Errorf("%d keepers ended", ended)
	}
}

// A device is found by its UUID, wherever the driver has it now; with another's UUID at its place it is none.
func TestAnOpenCLDeviceThatCameBackElsewhere(t *testing.T) {
	r := beginCL(t)
	data := pattern(4096)
	r.start()
	s, err := r.allocate(1, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s.fd)
	from, back := r.host(data), r.host(make([]byte, 4096))
	if reply := r.copy(s, from, 4096); reply.Error != "" {
		t.Fatal(reply.Error)
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	for order, says := range map[string]string{"10": "", "01": "", "02": "the driver shows no device", "21": ""} {
		t.Setenv("NULLCL_ORDER", order)
		r.start()
		reply := r.copy(back, s, 4096)
		if (reply.Error == "") != (says == "") || !strings.Contains(reply.Error, says) {
			t.Errorf("order %s: %+v", order, reply)
		}
		if says == "" && !bytes.Equal(r.contents(back, 4096), data) {
			t.Errorf("order %s: other bytes", order)
		}
		if err := r.end(); err != nil {
			t.Error(err)
		}
	}
	t.Setenv("NULLCL_ORDER", "")
	t.Setenv("NULLCL_DEVICES", "1")
	r.start()
	if reply := r.copy(back, s, 4096); reply.Fault != clwire.KeeperNoDevice {
		t.Errorf("the device is gone: %+v", reply)
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// Sizes at the edges: what a device does not have is refused by its sort, and the keeper serves on.
func TestSizesOfOpenCLMemory(t *testing.T) {
	r := beginCL(t)
	t.Setenv("NULLCL_MOST", fmt.Sprint(clBytes/2))
	before, _ := held(t)
	r.start()
	for _, x := range []struct {
		bytes uint64
		fault clwire.KeeperFault
	}{
		{0, clwire.KeeperFailed}, {^uint64(0), clwire.KeeperFailed}, {1 << 63, clwire.KeeperFailed},
		{1 << 40, clwire.KeeperNoDevice}, {clBytes/2 + 1, clwire.KeeperNoDevice},
	} {
		ask := &clwire.KeeperAllocate{Device: clDeviceUUID(0), Bytes: x.bytes}
		reply, fd := r.ask(&clwire.KeeperRequest{Allocate: ask})
		if fd >= 0 || reply.Fault != x.fault {
			t.Errorf("%d bytes: %+v", x.bytes, reply)
		}
	}
	var all []spot
	for range 2 {
		s, err := r.allocate(0, clBytes/2)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	reply, fd := r.ask(&clwire.KeeperRequest{Allocate: &clwire.KeeperAllocate{Device: clDeviceUUID(0), Bytes: 1}})
	if fd >= 0 || reply.Fault != clwire.KeeperFull {
		t.Errorf("a full device: %+v", reply)
	}
	for _, s := range all {
		if err := r.forget(s); err != nil {
			t.Error(err)
		}
		unix.Close(s.fd)
	}
	t.Setenv("NULLCL_LATE", "-4") // the driver finds out when it first writes
	reply, fd = r.ask(&clwire.KeeperRequest{Allocate: &clwire.KeeperAllocate{Device: clDeviceUUID(0), Bytes: 1}})
	if fd >= 0 || reply.Fault != clwire.KeeperFull {
		t.Errorf("a device that is found full late: %+v", reply)
	}
	t.Setenv("NULLCL_LATE", "")
	s, err := r.allocate(0, 5) // after all that
	if err != nil {
		t.Fatal(err)
	}
	if s.Bytes != 4096 {
		t.Errorf("%d bytes for 5", s.Bytes)
	}
	for _, x := range []struct{ offset, n uint64 }{{0, 4097}, {4096, 1}, {^uint64(0), 1}, {1, ^uint64(0)}} {
		from := s
		from.Offset = x.offset
		if reply := r.copy(r.host(make([]byte, 8192)), from, x.n); reply.Fault != clwire.KeeperFailed {
			t.Errorf("%+v: %+v", x, reply)
		}
	}
	if err := errors.Join(r.forget(s), unix.Close(s.fd)); err != nil {
		t.Error(err)
	}
	if twins, files := held(t); twins != before || files > 0 {
		t.Errorf("%d twins are mapped, before %d; %d descriptors of theirs are open", twins, before, files)
	}
	if err := r.end(); err != nil {
		t.Error(err)
	}
}
