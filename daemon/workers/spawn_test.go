package workers

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Where the kernel refuses a process, nothing of it stays open: whether it grants no such namespaces, or none in this
// cgroup just now.
func TestARefusedStartLeavesNoDescriptor(t *testing.T) {
	noGroup, err := os.Open(t.TempDir()) // which is no cgroup
	if err != nil {
		t.Fatal(err)
	}
	defer noGroup.Close()
	const impossible = unix.CLONE_NEWUSER | unix.CLONE_FS // clone(2): EINVAL
	for name, c := range map[string]struct {
		choices []isolation
		group   *os.File
	}{
		"namespaces refused": {[]isolation{impossible}, nil},
		"cgroup refused":     {[]isolation{unix.CLONE_NEWUSER}, noGroup},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpawner(c.choices)
			defer s.close()
			me := user{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
			fake := command{argv: []string{"tendril", "-fake", guardVerb}, user: me}
			start := func(group *os.File) error {
				null, err := os.Open(os.DevNull)
				if err != nil {
					t.Fatal(err)
				}
				defer null.Close()
				p, err := s.spawn("/proc/self/exe", fake, []*os.File{null, null, null}, group)
				if err == nil {
					_, _ = p.Wait()
				}
				return err
			}
			t.Log(start(nil)) // the user namespace may be granted here; then it is known to be
			runtime.GC()      // has the pidfds closed of processes that were waited for, by a goroutine of its own
			before := openFiles(t)
			for range 10 {
				if err := start(c.group); err == nil {
					t.Fatal("the kernel has started it")
				}
			}
			if n := openFiles(t); n > before {
				t.Errorf("%d descriptors, %d before", n, before)
			}
		})
	}
}
