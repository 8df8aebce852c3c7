package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/cuda/fakecuda"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// pattern is bytes that repeat after 251.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

// onDevice allocates memory of a fake GPU.
func onDevice(t *testing.T, k *Keeper, n byte, size uint64) store.Place {
	t.Helper()
	fd, real, err := k.Allocate(nobody, device(n), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return store.Place{FD: fd, Device: device(n), Bytes: real}
}

func inHost(t *testing.T, b []byte) store.Place {
	t.Helper()
	return store.Place{FD: hostMemory(t, b), Bytes: uint64(len(b))}
}

// ways gives the bytes that went each way.
func ways(k *Keeper) map[clwire.KeeperWay]uint64 {
	m := map[clwire.KeeperWay]uint64{}
	for _, x := range k.Status().Copies {
		m[x.Way] = x.Bytes
	}
	return m
}

// Bytes are the same by every way: staged at first, pinned from the second copy of a segment on, as the driver likes
// where nothing can be pinned, and for few bytes.
func TestBytesAreTheSameByEveryWay(t *testing.T) {
	driver := fakecuda.Build(t)
	const size = 13<<20 + 4321
	data := pattern(size)
	for what, x := range map[string]struct {
		pin      uint64 // of the store's memory
		driver   string // what the driver pins
		pinned   bool
		fallback clwire.KeeperWay
		why      string
	}{
		"all":               {64 << 20, "", true, clwire.KeeperStaged, ""},
		"no store's memory": {0, "", false, clwire.KeeperStaged, "--pin-memory"},
		"too little":        {8 << 20, "", false, clwire.KeeperStaged, "--pin-memory"},
		"the driver pins nothing": {64 << 20, "0", false, clwire.KeeperPlain,
			"the driver does not pin the store's memory"},
	} {
		t.Setenv("CUDA_FAKE_PIN", x.driver)
		k := newKeeper(t, Options{Driver: driver, PinBytes: x.pin, StepBytes: 5 << 20})
		from, back, memory := inHost(t, data), inHost(t, make([]byte, size)), onDevice(t, k, 1, size)
		for i := range 3 {
			if err := errors.Join(k.Copy(nobody, memory, from, size), k.Copy(nobody, back, memory, size)); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if !bytes.Equal(contents(t, back.FD, size), data) {
				t.Fatalf("%s: copy %d differs", what, i)
			}
			if _, err := unix.Pwrite(back.FD, make([]byte, size), 0); err != nil {
				t.Fatal(err)
			}
		}
		got := ways(k)
		if x.pinned != (got[clwire.KeeperPinned] == 4*size) || x.pinned != (got[x.fallback] == 2*size) {
			t.Errorf("%s: %v", what, got)
		}
		for _, c := range k.Status().Copies {
			if c.Way == x.fallback && !x.pinned && !strings.Contains(c.Why, x.why) {
				t.Errorf("%s: %+v", what, c)
			}
		}
		small := inHost(t, []byte("some bytes"))
		memory.Offset = 77
		if err := k.Copy(nobody, memory, small, 10); err != nil || contents(t, memory.FD, 87)[77] != 's' {
			t.Errorf("%s: ten bytes: %v", what, err)
		}
		k.Close()
	}
}

// inodes counts what a process has mapped of a file.
func inodes(t *testing.T, pid, fd int) (n int) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(maps), "\n") {
		if f := strings.Fields(line); len(f) > 5 && f[4] == fmt.Sprint(st.Ino) && strings.HasPrefix(f[5], "/memfd:host") {
			n++
		}
	}
	return n
}

// What is pinned goes when its segment goes, when others need the room, and with the keeper.
func TestPinnedMemoryIsForgotten(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("CUDA_FAKE_LOG", log)
	const size = 2 << 20
	k := newKeeper(t, Options{Driver: fakecuda.Build(t), PinBytes: 2 * size})
	memory := onDevice(t, k, 0, size)
	var hosts []store.Place
	for range 3 {
		hosts = append(hosts, inHost(t, pattern(size)))
	}
	twice := func(h store.Place) {
		t.Helper()
		for range 2 {
			if err := k.Copy(nobody, memory, h, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	mapped := func(h store.Place) int { return inodes(t, k.Status().PID, h.FD) }
	twice(hosts[0])
	twice(hosts[1])
	if mapped(hosts[0]) != 1 || mapped(hosts[1]) != 1 {
		t.Errorf("two are pinned: %d, %d", mapped(hosts[0]), mapped(hosts[1]))
	}
	twice(hosts[2])
	if mapped(hosts[0]) != 0 || mapped(hosts[1]) != 1 || mapped(hosts[2]) != 1 {
		t.Errorf("the third takes the first one's room: %d, %d, %d", mapped(hosts[0]), mapped(hosts[1]), mapped(hosts[2]))
	}
	k.Forget(hosts[0].FD) // is not pinned
	k.Forget(hosts[1].FD)
	await.Until(t, "unpinned segment", func() bool { return mapped(hosts[1]) == 0 })
	if mapped(hosts[2]) != 1 {
		t.Error("another segment was forgotten")
	}
	twice(hosts[1]) // and is pinned again
	if mapped(hosts[1]) != 1 {
		t.Error("it is not pinned again")
	}
	killKeeper(t, k)
	twice(hosts[1])
	k.Forget(hosts[1].FD)
	await.Until(t, "unpinned segment", func() bool { return mapped(hosts[1]) == 0 })
}

// Two GPUs copy by themselves where they reach each other, else through host memory.
func TestFromOneGPUToAnother(t *testing.T) {
	driver := fakecuda.Build(t)
	const size = 9<<20 + 1
	data := pattern(size)
	for peers, way := range map[string]clwire.KeeperWay{"1": clwire.KeeperPeer, "0": clwire.KeeperStaged} {
		t.Setenv("CUDA_FAKE_PEERS", peers)
		k := newKeeper(t, Options{Driver: driver, StepBytes: 3 << 20})
		a, b, c := onDevice(t, k, 0, size), onDevice(t, k, 1, size), onDevice(t, k, 1, size)
		from := inHost(t, data)
		if err := k.Copy(nobody, a, from, size); err != nil {
			t.Fatal(err)
		}
		before := ways(k)[way]
		if err := errors.Join(k.Copy(nobody, b, a, size), k.Copy(nobody, c, b, size)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(contents(t, c.FD, size), data) || ways(k)[way]-before != size ||
			ways(k)[clwire.KeeperOnDevice] != size {
			t.Errorf("peers %s: %v", peers, ways(k))
		}
		k.Close()
	}
}

// A copy whose client has gone stops at the next step, and the keeper has nothing of it mapped.
func TestACopyThatNobodyWantsStops(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("CUDA_FAKE_LOG", log)
	k := newKeeper(t, Options{Driver: fakecuda.Build(t), StepBytes: 1 << 20})
	memory, from := onDevice(t, k, 0, 8<<20), inHost(t, pattern(8<<20))
	steps := 0
	who := store.Asker{Tenant: "x", Gone: func() bool { steps++; return steps > 3 }}
	if err := k.Copy(who, memory, from, 8<<20); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("%v", err)
	}
	if got := contents(t, memory.FD, 8<<20); got[3<<20-1] == 0 || got[3<<20] != 0 {
		t.Error("it did not stop after three steps")
	}
	if n := left(t, log); n != 1 { // the context
		t.Errorf("the keeper has %d things of the driver's", n)
	}
	if n := inodes(t, k.Status().PID, from.FD); n != 0 {
		t.Errorf("the keeper has %d mappings of what it copied from", n)
	}
}

// A turn is as long as others may wait, whatever the way.
func TestStepsOfACopy(t *testing.T) {
	for _, x := range []struct {
		n    uint64
		took time.Duration
		want uint64
	}{
		{256 << 20, 5 * time.Millisecond, 1 << 30}, {256 << 20, time.Millisecond, 4 << 30},
		{256 << 20, 10 * time.Millisecond, 512 << 20},
		{256 << 20, 40 * time.Millisecond, 128 << 20}, {256 << 20, time.Minute, 64 << 20}, {1, 0, 64 << 20},
		{1 << 30, 0, 4 << 30},
	} {
		if got := nextStep(x.n, x.took); got != x.want {
			t.Errorf("after %d bytes in %v: %d", x.n, x.took, got)
		}
	}
	for _, x := range []struct {
		left, step uint64
		measured   bool
		want       uint64
	}{
		{1 << 30, 256 << 20, true, 256 << 20}, {1 << 30, 832 << 20, true, 1 << 30},
		{1 << 30, 768 << 20, true, 768 << 20},
		{5, 4, true, 5}, {5, 4, false, 4}, {3, 4, false, 3}, {3, 4, true, 3},
	} {
		if got := thisStep(x.left, x.step, x.measured); got != x.want {
			t.Errorf("%+v: %d", x, got)
		}
	}
}

// A copy between two GPUs begins with as many bytes as the last one between them ended with, so that what a fast link
// has done within a turn is one request. From and to host memory it does not: the bytes may go another way.
func TestTheFirstStepOfACopy(t *testing.T) {
	k := newKeeper(t, Options{Driver: fakecuda.Build(t)})
	a, b, h := store.Place{Device: device(0)}, store.Place{Device: device(1)}, store.Place{}
	k.paced(a, b, leastStep, mostStep)
	k.paced(b, a, leastStep-1, mostStep) // too little to go by
	k.paced(a, h, leastStep, mostStep)
	k.paced(h, a, leastStep, mostStep)
	for what, x := range map[string]struct {
		to, from store.Place
		want     uint64
	}{
		"the same way": {a, b, mostStep}, "back": {b, a, firstStep}, "within a GPU": {a, a, firstStep},
		"to the host": {h, a, firstStep}, "from the host": {a, h, firstStep},
	} {
		if got := k.pace(x.to, x.from); got != x.want {
			t.Errorf("%s: %d bytes, want %d", what, got, x.want)
		}
	}
	k.paced(a, b, mostStep, leastStep) // it became slow
	if got := k.pace(a, b); got != leastStep {
		t.Errorf("afterwards %d bytes", got)
	}
}

// The keeper is killed between two steps of a copy: the next one goes on.
func TestAKeeperIsKilledWithinACopy(t *testing.T) {
	k := newKeeper(t, Options{Driver: fakecuda.Build(t), StepBytes: 1 << 20})
	memory, data := onDevice(t, k, 0, 4<<20), pattern(4<<20)
	steps := 0
	who := store.Asker{Gone: func() bool {
		if steps++; steps == 3 {
			killKeeper(t, k)
		}
		return false
	}}
	if err := k.Copy(who, memory, inHost(t, data), 4<<20); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(contents(t, memory.FD, 4<<20), data) || k.Status().Starts != 2 {
		t.Errorf("what was copied differs, or %+v", k.Status())
	}
}

// A call of the driver fails in a copy, many in turn: that is an error, no byte is wrong where there is none, and the
// copies after it are good.
func TestCallsOfACopyThatFail(t *testing.T) {
	driver := fakecuda.Build(t)
	const size, tries = 9 << 20, 11
	data := pattern(size)
	// begin gives a keeper, memory of a device, and where its bytes come from and go back to.
	begin := func(call int) (k *Keeper, memory, from, back store.Place) {
		t.Setenv("CUDA_FAKE_LOG", filepath.Join(t.TempDir(), "log"))
		t.Setenv("CUDA_FAKE_FAIL", fmt.Sprintf("%d:1", call))
		t.Setenv("CUDA_FAKE_ONCE", filepath.Join(t.TempDir(), "once"))
		k = newKeeper(t, Options{Driver: driver, PinBytes: 64 << 20, StepBytes: 4 << 20})
		fd, real, err := k.Allocate(nobody, device(0), size)
		if err != nil {
			t.Fatalf("call %d: %v", call, err)
		}
		return k, store.Place{FD: fd, Device: device(0), Bytes: real}, inHost(t, data), inHost(t, make([]byte, size))
	}
	// twice copies there and back, twice.
	twice := func(k *Keeper, memory, from, back store.Place) (all []error) {
		for range 2 {
			all = append(all, k.Copy(nobody, memory, from, size), k.Copy(nobody, back, memory, size))
		}
		return all
	}
	k, memory, from, back := begin(0)
	first := called(t, os.Getenv("CUDA_FAKE_LOG")) // which the driver was called with before: not of copies
	if err := errors.Join(twice(k, memory, from, back)...); err != nil {
		t.Fatal(err)
	}
	last := called(t, os.Getenv("CUDA_FAKE_LOG"))
	unix.Close(memory.FD)
	k.Close()
	failed := 0
	for i := range tries {
		call := first + 1 + i*(last-first)/tries
		k, memory, from, back := begin(call)
		errs := 0
		for _, err := range twice(k, memory, from, back) {
			if err != nil {
				errs++
				if !errors.Is(err, object.ErrNoDevice) {
					t.Errorf("call %d: %v", call, err)
				}
			}
		}
		if errs > 1 {
			t.Errorf("call %d failed %d copies", call, errs)
		}
		failed += errs
		err := errors.Join(k.Copy(nobody, memory, from, size), k.Copy(nobody, back, memory, size))
		if errs > 0 && err != nil || err == nil && !bytes.Equal(contents(t, back.FD, size), data) {
			t.Errorf("call %d: afterwards: %v, or the bytes differ", call, err)
		}
		unix.Close(memory.FD)
		k.Close()
	}
	t.Logf("%d copies failed of %d calls between %d and %d", failed, tries, first, last)
	if failed < tries/2 {
		t.Errorf("%d copies failed of %d calls between %d and %d", failed, tries, first, last)
	}
}

// Tenants have their turns one after the other, whatever each waits for.
func TestTurnsByTenant(t *testing.T) {
	var turns turns
	turns.take("", nil)
	came := make(chan string)
	for i, tenant := range []string{"a", "a", "a", "b", "c", "b"} {
		go func() {
			if turns.take(tenant, nil) {
				came <- tenant
			}
		}()
		await.Until(t, "its place in the queue", func() bool {
			turns.mu.Lock()
			defer turns.mu.Unlock()
			n := 0
			for _, of := range turns.waiting {
				n += of.Len()
			}
			return n == i+1
		})
	}
	ended, over := make(chan struct{}), make(chan bool)
	go func() { over <- turns.take("c", ended) }()
	close(ended)
	if <-over {
		t.Error("a turn after the end")
	}
	order := ""
	for range 6 {
		turns.give()
		order += <-came
	}
	turns.give()
	if order != "abcaba" {
		t.Errorf("the turns were %s", order)
	}
	if !turns.try() || turns.try() || len(turns.waiting) != 0 || turns.order.Len() != 0 {
		t.Error("the turn is not free, or free twice")
	}
}
