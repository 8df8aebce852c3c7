package store

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
)

// keepers are the ways in which a process that has said Forget still has the memory. Each takes the descriptor over,
// and gives what ends it.
var keepers = map[string]func(t *testing.T, h Handle) (end func()){
	"a mapping": func(t *testing.T, h Handle) func() {
		m := mapHandle(t, h, false)
		return func() { m.Unmap() }
	},
	"a descriptor": func(_ *testing.T, h Handle) func() { return func() { closeHandle(h) } },
	"a path": func(t *testing.T, h Handle) func() { // a descriptor that can read nothing, and be opened again
		defer closeHandle(h)
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", h.FD), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return func() { unix.Close(fd) }
	},
	"a message that nobody has read": func(t *testing.T, h Handle) func() {
		defer closeHandle(h)
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(h.FD), nil, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() { unix.Close(pair[0]); unix.Close(pair[1]) }
	},
	"a child": func(t *testing.T, h Handle) func() {
		defer closeHandle(h)
		f := os.NewFile(uintptr(h.FD), "segment")
		child := exec.Command("sleep", "1000")
		child.ExtraFiles = []*os.File{f}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		f.Close()
		return func() { child.Process.Kill(); child.Wait() }
	},
}

// TestForgottenAndKept: who says Forget and keeps the memory, in whatever way, is charged for it until the kernel has
// it back. Another tenant's put goes on.
func TestForgottenAndKept(t *testing.T) {
	const size, quota = 1 << 20, 8 << 20
	for name, keep := range keepers {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Options{CapacityBytes: 32 << 20, SegmentBytes: 1 << 20, TenantBytes: quota})
			c, other := connect(t, s, "hostile"), connect(t, s, "other")
			var ends []func()
			for range 64 {
				h, err := c.Create(Spec{SizeBytes: size, Own: true})
				if errors.Is(err, object.ErrQuota) {
					break
				}
				if err != nil {
					t.Fatalf("with %d MiB kept: %v", len(ends), err)
				}
				ends = append(ends, keep(t, h))
				if err := errors.Join(c.Release(h.ID), c.Forget(h.Ref.Segment)); err != nil {
					t.Fatal(err)
				}
			}
			if kept := len(ends) * size; kept > quota {
				t.Errorf("a tenant with a quota of %d bytes keeps %d", quota, kept)
			}
			st := s.Status()
			want := uint64(len(ends) * size)
			if len(st.Tenants) != 2 || st.Tenants[0].KeptBytes != want || st.KeptBytes != want {
				t.Errorf("status of what %d are kept: %+v", len(ends), st)
			}
			_, err := c.Create(Spec{SizeBytes: size, Own: true})
			if !errors.Is(err, object.ErrQuota) || !strings.Contains(err.Error(), "still mapped or open") {
				t.Errorf("what it is told: %v", err)
			}
			sealedObject(t, other, Spec{SizeBytes: 4 << 20})
			mustAgree(t, s, true)
			for _, end := range ends {
				end()
			}
			sealedObject(t, c, Spec{SizeBytes: 4 << 20})
			waitFor(t, func() bool { return s.Status().KeptBytes == 0 })
			mustAgree(t, s, true)
		})
	}
}

// TestForgetAfterUnmap: who unmaps and then says so is charged no longer than that.
func TestForgetAfterUnmap(t *testing.T) {
	s := newStore(t, Options{TenantBytes: 4 << 20})
	c := connect(t, s, "x")
	for range 100 {
		h, err := c.Create(Spec{SizeBytes: 3 << 20, Own: true})
		if err != nil {
			t.Fatal(err)
		}
		m := mapHandle(t, h, true)
		if err := c.Release(h.ID); err != nil {
			t.Fatal(err)
		}
		m.Unmap()
		if err := c.Forget(h.Ref.Segment); err != nil {
			t.Fatal(err)
		}
	}
}

// keepOne has a connection make an object, let it go, and keep its descriptor.
func keepOne(t *testing.T, c *Conn, size uint64) Handle {
	t.Helper()
	h, err := c.Create(Spec{SizeBytes: size, Own: true})
	if err == nil {
		err = errors.Join(c.Release(h.ID), c.Forget(h.Ref.Segment))
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestKeptAcrossHandover: the next store charges what was kept under the one before, until it is free; also what a
// connection had that ended for the handover, and what became free in between.
func TestKeptAcrossHandover(t *testing.T) {
	opts := Options{CapacityBytes: 32 << 20, TenantBytes: 8 << 20}
	s := newStore(t, opts)
	c := connect(t, s, "x")
	kept, meanwhile := keepOne(t, c, 3<<20), keepOne(t, c, 2<<20)
	unsealed, err := c.Create(Spec{SizeBytes: 1 << 20, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Leave()
	c.Close()
	closeHandle(meanwhile)
	s = handOver(t, handOver(t, s, opts), opts)
	if st := s.Status(); st.KeptBytes != 4<<20 || st.ChargedBytes != 4<<20 {
		t.Errorf("after the handover: %+v", st)
	}
	c = connect(t, s, "x")
	_, err = c.Create(Spec{SizeBytes: 6 << 20, Own: true})
	wantErr(t, err, object.ErrQuota)
	closeHandle(kept)
	closeHandle(unsealed)
	sealedObject(t, c, Spec{SizeBytes: 6 << 20})
	if st := s.Status(); st.KeptBytes != 0 {
		t.Errorf("when all is free: %+v", st)
	}
}

// TestLostReports: the kernel drops reports where too many wait, and nothing stays charged for that.
func TestLostReports(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "x")
	first, second := keepOne(t, c, 1<<20), keepOne(t, c, 1<<20)
	s.mu.Lock()
	closeHandle(first)
	if numbers, _ := s.watch.Freed(); len(numbers) != 1 {
		t.Errorf("reported: %v", numbers)
	}
	s.reportsLost = true
	s.mu.Unlock()
	closeHandle(second)
	waitFor(t, func() bool { return s.Status().KeptBytes == 0 })
}

// TestLostReportsOfOthers: that reports were dropped is known to whoever reads the last of them, and counts also where
// that leaves nothing to wake the one that recounts.
func TestLostReportsOfOthers(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "x")
	for range 100 {
		h := keepOne(t, c, 4096)
		s.mu.Lock()
		closeHandle(h)
		s.watch.Freed()
		s.reportsLost = true
		s.takeFreed()
		s.mu.Unlock()
		waitFor(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.remnants) == 0
		})
	}
}

// blindKernel cannot report what is free.
type blindKernel struct{ segment.Linux }

func (blindKernel) Watch(int, int) (int, error) { return 0, unix.ENOSPC }

// TestWithoutReports: a peer's word counts, and the status says so, and why, without saying twice that it is not there.
func TestWithoutReports(t *testing.T) {
	s := newStore(t, Options{System: blindKernel{}})
	closeHandle(keepOne(t, connect(t, s, "x"), 1<<20))
	if st := s.Status(); st.ChargedBytes != 0 || !strings.Contains(st.KeptUnknown, "no space left on device") ||
		strings.Contains(st.KeptUnknown, object.ErrUnsupported.Error()) {
		t.Errorf("%+v", st)
	}
}

// TestRemnantsAreBounded: a tenant cannot use up what the kernel can watch for all.
func TestRemnantsAreBounded(t *testing.T) {
	s := newStore(t, Options{})
	s.maxRemnants = 3
	c := connect(t, s, "x")
	var kept []Handle
	for range 3 {
		kept = append(kept, keepOne(t, c, 4096))
	}
	_, err := c.Create(Spec{SizeBytes: 4096, Own: true})
	wantErr(t, err, object.ErrQuota)
	sealedObject(t, connect(t, s, "y"), Spec{SizeBytes: 4096})
	closeHandle(kept[0])
	kept[0] = keepOne(t, c, 4096)
	for _, h := range kept {
		closeHandle(h)
	}
}

// TestKeptIndex: the memory of the index is charged like any other.
func TestKeptIndex(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 4 << 20})
	var kept []int
	for range 4 << 20 / 8192 {
		c := connect(t, s, "x")
		slots, level, err := c.OpenIndex()
		c.Close()
		if errors.Is(err, object.ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(level)
		kept = append(kept, slots)
	}
	if st := s.Status(); st.KeptBytes < uint64(len(kept))*8192 {
		t.Errorf("%d slots are kept: %+v", len(kept), st)
	}
	for _, fd := range kept {
		unix.Close(fd)
	}
	nothingCharged(t, s)
}

// TestChargeUntilFree: what others made is charged, is not told as kept, and comes back when nobody has it.
func TestChargeUntilFree(t *testing.T) {
	s := newStore(t, Options{TenantBytes: 2 << 20})
	fd, err := segment.Linux{}.MemfdCreate("ring")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // what comes to nothing is charged no longer
		charge, err := s.ChargeUntilFree("x", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if st := s.Status(); st.ChargedBytes != 1<<20 {
			t.Errorf("before it is made: %+v", st)
		}
		charge.Drop()
		charge.Drop()
		if st := s.Status(); st.ChargedBytes != 0 || len(st.Tenants) != 0 {
			t.Errorf("when it was not made: %+v", st)
		}
	}
	charge, err := s.ChargeUntilFree("x", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	charge.Watch(fd)
	charge.Drop()
	_, err = s.ChargeUntilFree("x", 2<<20)
	wantErr(t, err, object.ErrQuota)
	if st := s.Status(); st.ChargedBytes != 1<<20 || st.KeptBytes != 0 {
		t.Errorf("%+v", st)
	}
	unix.Close(fd)
	nothingCharged(t, s)
	if st := s.Status(); len(st.Tenants) != 0 {
		t.Errorf("when it is closed: %+v", st)
	}
}

// TestEndedProcessesAreLeaving: what a connection that is ending, or has just ended, had is on its way back, though
// others have it mapped still: whoever needs memory waits for it.
func TestEndedProcessesAreLeaving(t *testing.T) {
	s := newStore(t, Options{})
	waitFor(t, func() bool { // it counts for some seconds, which this thread may not have been given
		c := connect(t, s, "x")
		g, err := c.AllocSegment(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(g.FD) // as its worker, which is to be ended
		if st := s.Status(); st.LeavingBytes != 0 || st.SessionBytes != 1<<20 {
			t.Fatalf("of a session that goes on: %+v", st)
		}
		c.Stop()
		if st := s.Status(); st.LeavingBytes != 1<<20 || st.SessionBytes != 0 {
			t.Fatalf("while its workers are ended: %+v", st)
		}
		c.Close()
		st := s.Status()
		if st.KeptBytes != 1<<20 {
			t.Fatalf("when it has ended: %+v", st)
		}
		return st.LeavingBytes == 1<<20
	})
	nothingCharged(t, s)
}

// TestLeavingIsATenantsOwn: what a tenant's connections have not let go of is told apart from what others' have: it is
// no hope for who needs memory under a quota of his own.
func TestLeavingIsATenantsOwn(t *testing.T) {
	s := newStore(t, Options{CapacityBytes: 32 << 20})
	hostile, keeper, other := connect(t, s, "hostile"), connect(t, s, "hostile"), connect(t, s, "other")
	sealedObject(t, other, Spec{SizeBytes: 1})
	id := sealedObject(t, hostile, Spec{SizeBytes: 1 << 20, Own: true})
	h, err := keeper.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	mapHandle(t, h, false)
	if err := errors.Join(hostile.Release(id), keeper.Release(id)); err != nil { // and nobody says Forget
		t.Fatal(err)
	}
	left := func(at time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, g := range s.segments {
			g.left = at
		}
	}
	left(time.Now().Add(time.Hour)) // it counts for some seconds, which this thread may not have been given
	want := map[string]uint64{"hostile": 1 << 20, "other": 0}
	for asks, own := range map[string]uint64{"hostile": 1 << 20, "other": 0, "stranger": 0} {
		st := s.Status()
		st.For(asks)
		if st.LeavingBytes != 1<<20 || *st.TenantLeavingBytes != own {
			t.Errorf("%d bytes leave, %d of %s's", st.LeavingBytes, *st.TenantLeavingBytes, asks)
		}
		for _, x := range st.Tenants {
			if x.LeavingBytes != want[x.Name] {
				t.Errorf("%d bytes of %s leave, want %d", x.LeavingBytes, x.Name, want[x.Name])
			}
		}
	}
	// a client says Forget before it unmaps: others go on waiting
	if err := errors.Join(hostile.Forget(h.Ref.Segment), keeper.Forget(h.Ref.Segment)); err != nil {
		t.Fatal(err)
	}
	if st := s.Status(); st.LeavingBytes != 1<<20 || st.KeptBytes != 1<<20 {
		t.Errorf("all have said Forget, and one has it mapped: %d bytes leave, %d are kept", st.LeavingBytes,
			st.KeptBytes)
	}
	// who has kept it for so long may keep it for ever: nobody waits for it any more
	left(time.Now().Add(-leavingTime))
	st := s.Status()
	if st.For("hostile"); st.LeavingBytes != 0 || *st.TenantLeavingBytes != 0 {
		t.Errorf("later: %d bytes leave, %d of the tenant's", st.LeavingBytes, *st.TenantLeavingBytes)
	}
}
