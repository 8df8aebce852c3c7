package store

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// holdAs has a process of a user hold a descriptor, which it takes over.
func holdAs(t *testing.T, uid uint32, fd int) (end func()) {
	t.Helper()
	f := os.NewFile(uintptr(fd), "segment")
	defer f.Close()
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() { cmd.Process.Kill(); cmd.Wait() }
}

// judgeNow has the store judge what is disputed, without the waiting.
func judgeNow(s *Store) {
	s.mu.Lock()
	s.judgeAt = time.Now()
	s.wakeJanitor()
	s.mu.Unlock()
}

func chargedTo(s *Store, tenant string) uint64 {
	for _, t := range s.Status().Tenants {
		if t.Name == tenant {
			return t.ChargedBytes
		}
	}
	return 0
}

// TestReaderPaysForWhatItKeeps: a reader of another tenant that keeps a shared object after it was deleted is charged
// for it, and its owner is not; unless the owner keeps it, too.
func TestReaderPaysForWhatItKeeps(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it looks into other users' processes")
	}
	const reader, size = 65533, 3 << 20
	s := newStore(t, Options{TenantBytes: 8 << 20})
	s.search.limit = 5 * time.Minute // a busy machine has many processes
	owner := connect(t, s, "owner")
	other, err := s.Connect(Owner{Tenant: "reader", Principals: []string{"uid:65533"}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	take := func() (fd int) {
		id := sealedObject(t, owner, Spec{SizeBytes: size, Own: true})
		if err := owner.Grant(id, "", Everybody, false); err != nil {
			t.Fatal(err)
		}
		h, err := other.Get(id)
		if err == nil {
			err = errors.Join(other.Release(id), other.Forget(h.Ref.Segment), owner.Release(id))
		}
		if err != nil {
			t.Fatal(err)
		}
		sweepAll(owner)
		return h.FD
	}
	fd := take()
	s.mu.Lock()
	s.judgeAt = time.Now().Add(time.Hour) // no look but judgeNow's, however long the child's start takes
	s.mu.Unlock()
	end := holdAs(t, reader, fd)
	if chargedTo(s, "owner") < size {
		t.Error("nobody pays before the store has looked")
	}
	waitFor(t, func() bool { judgeNow(s); return chargedTo(s, "reader") >= size })
	if got := chargedTo(s, "owner"); got >= size {
		t.Errorf("the owner is charged %d bytes for what the reader keeps", got)
	}
	s.mu.Lock()
	if n := owner.tenant.leavingBytes; n > 0 {
		t.Errorf("the owner counts on %d bytes that the reader keeps", n)
	}
	s.mu.Unlock()
	mustAgree(t, s, true)

	both := take()
	mine, err := unix.FcntlInt(uintptr(both), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	endToo := holdAs(t, reader, both)
	looked := func() (at time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.judgeAt
	}
	asked := time.Now()
	judgeNow(s)
	waitFor(t, func() bool { return looked().After(asked.Add(searchEvery / 2)) })
	if chargedTo(s, "owner") < size {
		t.Error("the owner keeps it, and does not pay")
	}
	_, err = other.Create(Spec{SizeBytes: 6 << 20, Own: true})
	wantErr(t, err, object.ErrQuota)
	unix.Close(mine)
	waitFor(t, func() bool { judgeNow(s); return chargedTo(s, "owner") < size })
	end()
	endToo()
	// who looks through processes at this moment may have it for a moment
	waitFor(t, func() bool { return s.Status().KeptBytes == 0 })
	mustAgree(t, s, true)
}

// A takeover does not make the owner pay: neither for what a reader keeps of objects that were deleted before, nor of
// those that are deleted after it.
func TestReaderPaysAfterATakeover(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it looks into other users' processes")
	}
	const reader, size = 65533, 3 << 20
	for _, deleted := range []string{"before", "after", "after it came back"} {
		t.Run(deleted, func(t *testing.T) {
			s := newStore(t, Options{})
			owner := connect(t, s, "owner")
			id := sealedObject(t, owner, Spec{SizeBytes: size, Own: true, Class: object.Named, Name: "n"})
			if err := owner.Grant(id, "", Everybody, false); err != nil {
				t.Fatal(err)
			}
			who := Owner{Tenant: "reader", Principals: []string{"uid:65533"}}
			other, err := s.Connect(who)
			if err != nil {
				t.Fatal(err)
			}
			h, err := other.Get(id)
			if err != nil {
				t.Fatal(err)
			}
			end := holdAs(t, reader, h.FD)
			defer end()
			if deleted == "before" {
				other.Close()
				if err := errors.Join(owner.Delete(id, ""), owner.Release(id)); err != nil {
					t.Fatal(err)
				}
			}
			s.Leave()
			other.Close()
			owner.Close()
			next := handOver(t, s, s.opts)
			next.mu.Lock()
			next.search.limit = 5 * time.Minute
			next.mu.Unlock()
			if deleted == "after it came back" {
				again, err := next.Connect(who)
				if err != nil {
					t.Fatal(err)
				}
				defer again.Close()
				if held, here := again.Reclaim(id, h.Ref.Segment); !held || !here {
					t.Fatalf("held again: %v, in its place: %v", held, here)
				}
				if err := errors.Join(again.Release(id), again.Forget(h.Ref.Segment)); err != nil {
					t.Fatal(err)
				}
			}
			for _, orphan := range next.Orphans() {
				orphan.Close()
			}
			if deleted != "before" {
				if err := connect(t, next, "owner").Delete(id, ""); err != nil {
					t.Fatal(err)
				}
			}
			waitFor(t, func() bool { judgeNow(next); return chargedTo(next, "reader") >= size })
			if got := chargedTo(next, "owner"); got >= size {
				t.Errorf("the owner is charged %d bytes for what the reader keeps", got)
			}
			end()
			waitFor(t, func() bool { return next.Status().KeptBytes == 0 })
		})
	}
}
