package segment

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func inodeOf(t *testing.T, m *Memory) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(m.FD(), &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// TestFindHolders: who has memory open, or mapped, is found with what he has of it, and nobody else.
func TestFindHolders(t *testing.T) {
	opened, mapped, passed := create(t, PageBytes), create(t, PageBytes), create(t, PageBytes)
	create(t, PageBytes) // nobody asks for it
	w, err := mapped.Map(true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Unmap()
	wanted := map[uint64]struct{}{inodeOf(t, opened): {}, inodeOf(t, mapped): {}, inodeOf(t, passed): {}}
	mapped.Close()

	child := exec.Command("sleep", "3600")
	child.ExtraFiles = []*os.File{received(t, passed)}
	if err := child.Start(); err != nil {
		t.Skip(err)
	}
	defer func() {
		child.Process.Kill()
		child.Wait()
	}()
	find := func() (mine, childs *Holder) {
		list, whole := FindHolders(wanted, time.Hour)
		if !whole {
			t.Fatal("not all processes were looked at")
		}
		for i, h := range list {
			switch h.PID {
			case os.Getpid():
				mine = &list[i]
			case child.Process.Pid:
				childs = &list[i]
			}
		}
		return mine, childs
	}
	mine, childs := find()
	if mine == nil || len(mine.Inodes) != 3 || mine.UID != uint32(os.Getuid()) || mine.Name == "" {
		t.Errorf("this process: %+v, want all of %v", mine, wanted)
	}
	if childs == nil || len(childs.Inodes) != 1 {
		t.Fatalf("the child: %+v", childs)
	}
	if _, has := childs.Inodes[inodeOf(t, passed)]; !has || childs.Name != "sleep" {
		t.Errorf("the child: %+v, want %d alone", childs, inodeOf(t, passed))
	}
	child.Process.Kill()
	child.Wait()
	opened.Close()
	if mine, childs = find(); childs != nil || mine == nil || len(mine.Inodes) != 2 {
		t.Errorf("when the child has ended and one is closed: %+v, %+v", mine, childs)
	}
	if list, whole := FindHolders(wanted, -time.Second); whole || len(list) > 0 {
		t.Errorf("in no time: %+v, whole %v", list, whole)
	}
}

// TestSearchIsOneAtATime: while a search hangs in a process another one finds nothing, at once, and says so.
func TestSearchIsOneAtATime(t *testing.T) {
	m := create(t, PageBytes)
	wanted := map[uint64]struct{}{inodeOf(t, m): {}}
	var s Search
	s.running.Store(true)
	if list, whole := s.Find(wanted, time.Hour); whole || list != nil {
		t.Errorf("beside another: %v, whole %v", list, whole)
	}
	s.running.Store(false)
	for range 2 {
		list, whole := s.Find(wanted, time.Hour)
		if !whole || !slices.ContainsFunc(list, func(h Holder) bool { return h.PID == os.Getpid() }) {
			t.Errorf("%+v, whole %v", list, whole)
		}
	}
}

// TestDescribe: a process that has just ended, or whose status says nothing, is nobody.
func TestDescribe(t *testing.T) {
	for name, test := range map[string]struct {
		status string
		want   Holder
		ok     bool
	}{
		"right":       {"Name:\tsome program\nUid:\t7\t8\t9\t10\n", Holder{Name: "some program", UID: 7}, true},
		"a bad name":  {"Name:\t\xff\xfe\nUid:\t7\n", Holder{Name: "?", UID: 7}, true},
		"no user":     {"Name:\tx\n", Holder{Name: "x"}, false},
		"an odd user": {"Name:\tx\nUid:\tseven\n", Holder{Name: "x"}, false},
		"empty user":  {"Name:\tx\nUid:\n", Holder{Name: "x"}, false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "status"), []byte(test.status), 0o600); err != nil {
			t.Fatal(err)
		}
		var h Holder
		if err := h.describe(dir); (err == nil) != test.ok || h.Name != test.want.Name || h.UID != test.want.UID {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	var h Holder
	if err := h.describe(t.TempDir()); err == nil {
		t.Errorf("without a status: %+v", h)
	}
}
