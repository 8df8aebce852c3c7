package segment

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

func create(t *testing.T, n uint64) *Memory {
	t.Helper()
	m, err := Create(Linux{}, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// received gives what a peer gets: its own descriptor.
func received(t *testing.T, m *Memory) *os.File {
	t.Helper()
	fd, err := m.Dup()
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "segment")
	t.Cleanup(func() { f.Close() })
	return f
}

// mustNotWrite tries every way by which a holder of f could change the memory.
func mustNotWrite(t *testing.T, f *os.File, n int) {
	t.Helper()
	refused := func(how string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: allowed", how)
		}
	}
	_, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	refused("writable mapping", err)
	if ro, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		t.Errorf("read-only mapping: %v", err)
	} else {
		refused("mprotect of a read-only mapping", unix.Mprotect(ro, unix.PROT_READ|unix.PROT_WRITE))
		unix.Munmap(ro)
	}
	_, err = f.WriteAt([]byte{1}, 0)
	refused("pwrite", err)
	refused("shrink", f.Truncate(0))
	refused("grow", f.Truncate(int64(n)*2))
	refused("hole", unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, PageBytes))
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer again.Close()
	_, err = unix.Mmap(int(again.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	refused("writable mapping after reopening through /proc/self/fd", err)
	_, err = again.WriteAt([]byte{1}, 0)
	refused("pwrite after reopening", err)
}

// TestReaderCannotWrite runs as whoever runs the tests; in CI that is root, for whom file modes mean nothing.
func TestReaderCannotWrite(t *testing.T) {
	m := create(t, 3*PageBytes)
	if err := m.Fix(); err != nil {
		t.Fatal(err)
	}
	writer, err := Map(received(t, m), m.Bytes(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Unmap()
	copy(writer.Bytes(), "before")
	for range 2 { // the second time must do nothing
		if err := m.SealForReaders(); err != nil {
			t.Fatal(err)
		}
	}
	f := received(t, m)
	mustNotWrite(t, f, int(m.Bytes()))
	if _, err := Map(f, m.Bytes(), true); !errors.Is(err, object.ErrPermission) {
		t.Errorf("Map writable = %v, want ErrPermission", err)
	}
	reader, err := Map(f, m.Bytes(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Unmap()
	copy(writer.Bytes(), "after!")
	if !bytes.HasPrefix(reader.Bytes(), []byte("after!")) {
		t.Error("the creator's existing mapping must stay writable: it fills the segment's next objects")
	}
	if err := m.SealStrict(); err == nil {
		t.Error("SealStrict after SealForReaders must fail: F_SEAL_SEAL is set")
	}
}

func TestStrict(t *testing.T) {
	m := create(t, PageBytes)
	if err := m.Fix(); err != nil {
		t.Fatal(err)
	}
	writer, err := Map(received(t, m), m.Bytes(), true)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SealStrict(); !errors.Is(err, object.ErrBusy) {
		t.Fatalf("SealStrict with a writable mapping = %v, want ErrBusy", err)
	}
	if seals, _ := (Linux{}).Seals(m.fd); seals&(unix.F_SEAL_SEAL|unix.F_SEAL_FUTURE_WRITE) != 0 {
		t.Fatalf("a refused strict seal left seals 0x%x", seals)
	}
	if err := writer.Unmap(); err != nil {
		t.Fatal(err)
	}
	if err := m.SealStrict(); err != nil {
		t.Fatal(err)
	}
	mustNotWrite(t, received(t, m), int(m.Bytes()))
}

// A child that has not executed its program yet, as a worker is for a while, keeps no mapping of its parent's.
func TestChildrenHaveNoMapping(t *testing.T) {
	m := create(t, PageBytes)
	w, err := m.Map(true)
	if err != nil {
		t.Fatal(err)
	}
	child := fork()
	if child <= 0 {
		t.Fatalf("fork: %d", child)
	}
	defer func() {
		_ = unix.Kill(child, unix.SIGKILL)
		_, _ = unix.Wait4(child, nil, 0, nil)
	}()
	if err := w.Unmap(); err != nil {
		t.Fatal(err)
	}
	if err := m.SealStrict(); err != nil {
		t.Error(err)
	}
}

// fork makes a copy of this process that only sleeps.
//
//go:norace
func fork() int {
	pid, _, err := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if err != 0 {
		return -int(err)
	}
	for pid == 0 {
		unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
	return int(pid)
}

func TestFixedBeforeSharing(t *testing.T) {
	m := create(t, 2*PageBytes)
	if err := m.Resize(PageBytes); err != nil {
		t.Fatal(err)
	}
	if err := m.Fix(); err != nil {
		t.Fatal(err)
	}
	f := received(t, m)
	if f.Truncate(0) == nil || f.Truncate(1<<20) == nil {
		t.Error("a peer could resize a segment")
	}
	if _, err := Map(f, 2*PageBytes, false); !errors.Is(err, object.ErrProtocol) {
		t.Errorf("mapping beyond the end = %v, want ErrProtocol", err)
	}
}

func residentKiB(t *testing.T, m *Memory) int64 {
	var st unix.Stat_t
	if err := unix.Fstat(m.fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks / 2
}

func TestPopulate(t *testing.T) {
	m := create(t, 1<<20)
	if got := residentKiB(t, m); got != 0 {
		t.Fatalf("a fresh segment has %d KiB", got)
	}
	if err := m.Populate(0, 512<<10, nil); err != nil || residentKiB(t, m) < 512 {
		t.Fatalf("Populate: %v, %d KiB resident", err, residentKiB(t, m))
	}
	if err := m.Populate(512<<10, 1<<20, func() bool { return true }); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("Populate given up = %v", err)
	}
	if err := m.Populate(0, 1<<21, nil); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("Populate beyond the end = %v", err)
	}
	if err := m.Resize(256 << 10); err != nil || residentKiB(t, m) > 256 {
		t.Errorf("Resize: %v, %d KiB resident", err, residentKiB(t, m))
	}
}

func TestSizes(t *testing.T) {
	for _, bad := range []uint64{0, 1<<62 + 1, ^uint64(0)} {
		if _, err := Create(Linux{}, bad); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("Create(%d) = %v", bad, err)
		}
	}
	if m := create(t, 1); m.Bytes() != PageBytes {
		t.Errorf("1 byte became %d", m.Bytes())
	}
}

// TestDescriptorsDoNotSurviveExec looks at a child's descriptors.
func TestDescriptorsDoNotSurviveExec(t *testing.T) {
	m := create(t, PageBytes)
	f := received(t, m)
	for _, fd := range []int{m.fd, int(f.Fd())} {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d: flags %d, %v: not close-on-exec", fd, flags, err)
		}
	}
	out, err := exec.Command("ls", "-l", "/proc/self/fd").Output()
	if err != nil || bytes.Contains(out, []byte("memfd:tendril")) {
		t.Errorf("child sees a segment: %v\n%s", err, out)
	}
}

func TestMain(m *testing.M) {
	before := descriptors()
	code := m.Run()
	if after := descriptors(); code == 0 && after > before {
		fmt.Fprintf(os.Stderr, "descriptors: %d before, %d after\n", before, after)
		code = 1
	}
	os.Exit(code)
}

func descriptors() int {
	names, _ := filepath.Glob("/proc/self/fd/*")
	count := 0
	for _, n := range names {
		if target, err := os.Readlink(n); err == nil && bytes.Contains([]byte(target), []byte("memfd:tendril")) {
			count++
		}
	}
	return count
}
