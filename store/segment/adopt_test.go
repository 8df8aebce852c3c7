package segment

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// TestAdopt: what another daemon says is a segment of so many bytes is taken only where it is one that nobody can cut
// short. The descriptor is taken in any case.
func TestAdopt(t *testing.T) {
	sealed := func(t *testing.T, fix bool) int {
		m := create(t, 2*PageBytes)
		w, err := m.Map(true)
		if err != nil {
			t.Fatal(err)
		}
		copy(w.Bytes(), "adopted")
		if err := w.Unmap(); err != nil {
			t.Fatal(err)
		}
		if fix {
			if err := errors.Join(m.Fix(), m.SealForReaders()); err != nil {
				t.Fatal(err)
			}
		}
		fd, err := m.Dup()
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	file := func(t *testing.T) int {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	for name, test := range map[string]struct {
		fd    func(t *testing.T) int
		bytes uint64
		want  error
	}{
		"right":                 {func(t *testing.T) int { return sealed(t, true) }, 2 * PageBytes, nil},
		"can be cut":            {func(t *testing.T) int { return sealed(t, false) }, 2 * PageBytes, object.ErrProtocol},
		"said to be longer":     {func(t *testing.T) int { return sealed(t, true) }, 3 * PageBytes, object.ErrProtocol},
		"said to be shorter":    {func(t *testing.T) int { return sealed(t, true) }, PageBytes, object.ErrProtocol},
		"said to be nothing":    {func(t *testing.T) int { return sealed(t, true) }, 0, object.ErrProtocol},
		"said to be everything": {func(t *testing.T) int { return sealed(t, true) }, 1 << 63, object.ErrProtocol},
		"a file":                {file, 2 * PageBytes, object.ErrProtocol},
		"no descriptor":         {func(*testing.T) int { return 1 << 20 }, 2 * PageBytes, object.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			fd := test.fd(t)
			m, err := Adopt(Linux{}, fd, test.bytes)
			if !errors.Is(err, test.want) {
				t.Fatalf("%v, want %v", err, test.want)
			}
			if err != nil {
				if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
					t.Errorf("the descriptor is still there: %v", err)
				}
				return
			}
			defer m.Close()
			r, err := m.Map(false)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Unmap()
			if m.Huge() || m.Bytes() != test.bytes || string(r.Bytes()[:7]) != "adopted" {
				t.Errorf("huge %v, %d bytes: %q", m.Huge(), m.Bytes(), r.Bytes()[:7])
			}
			mustNotWrite(t, received(t, m), int(m.Bytes()))
		})
	}
}

// TestRemapForAStrictSeal: a writable mapping that is mapped anew by a descriptor for reading alone does not stand in
// the way of a strict seal, as one that was only made read-only does; slices of it stay valid.
func TestRemapForAStrictSeal(t *testing.T) {
	m := create(t, 2*PageBytes)
	if err := m.Fix(); err != nil {
		t.Fatal(err)
	}
	w, err := m.Map(true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Unmap()
	copy(w.Bytes(), "strict")
	if err := unix.Mprotect(w.Bytes(), unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if err := m.SealStrict(); !errors.Is(err, object.ErrBusy) {
		t.Errorf("beside a mapping that could be made writable again: %v, want ErrBusy", err)
	}
	fd, err := ReadOnly(m.FD())
	if err != nil {
		t.Fatal(err)
	}
	ro := os.NewFile(uintptr(fd), "segment")
	if err := Remap(w.Bytes(), ro, true); err == nil {
		t.Error("mapped writable by a descriptor for reading alone")
	}
	if err := Remap(w.Bytes(), ro, false); err != nil {
		t.Fatal(err)
	}
	ro.Close()
	if err := Remap(w.Bytes(), ro, false); err == nil {
		t.Error("mapped by a closed file")
	}
	if err := m.SealStrict(); err != nil {
		t.Errorf("the strict seal: %v", err)
	}
	if got := string(w.Bytes()[:6]); got != "strict" {
		t.Errorf("a slice from before has %q", got)
	}
	if !storeFaults(&w.Bytes()[0]) {
		t.Error("it can be written")
	}
	m.LendReadOnly()
	f := received(t, m)
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY {
		t.Errorf("what is lent has flags %#x, %v", flags, err)
	}
	if _, err := ReadOnly(1 << 20); err == nil {
		t.Error("a descriptor that is none was opened again")
	}
}
