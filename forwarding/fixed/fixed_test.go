package fixed

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func reserve(t *testing.T, n uint64) []byte {
	t.Helper()
	for range 8 {
		mem, err := Reserve(Pick(n), n)
		if err == nil {
			t.Cleanup(func() { Release(mem) })
			return mem
		}
		if !errors.Is(err, ErrTaken) {
			t.Fatal(err)
		}
	}
	t.Fatal("every address is taken")
	return nil
}

func TestFreshMemory(t *testing.T) {
	mem := reserve(t, 10000)
	if len(mem) != 12288 || Address(mem)%Align != 0 {
		t.Fatalf("%d bytes at %#x", len(mem), Address(mem))
	}
	if err := Fresh(mem); err != nil {
		t.Fatal(err)
	}
	for i := range mem {
		if mem[i] != 0 {
			t.Fatalf("byte %d is %d", i, mem[i])
		}
		mem[i] = byte(i)
	}
}

// TestTaken: what lies at an address stays, whole or in part.
func TestTaken(t *testing.T) {
	mem := reserve(t, 3*Align)
	if err := Fresh(mem); err != nil {
		t.Fatal(err)
	}
	mem[Align] = 7
	for _, at := range []uintptr{Address(mem), Address(mem) + Align, Address(mem) - Align} {
		if again, err := Reserve(at, 2*Align); !errors.Is(err, ErrTaken) {
			t.Fatalf("%#x: %d bytes, %v", at, len(again), err)
		}
	}
	if mem[Align] != 7 {
		t.Error("what lay there is gone")
	}
	at := Address(mem)
	Release(mem)
	again, err := Reserve(at, 3*Align)
	if err != nil {
		t.Fatal(err)
	}
	_ = again // the test's end releases it, at the same address
}

// TestView: both see what either writes, and the view outlives the first mapping.
func TestView(t *testing.T) {
	fd, err := unix.MemfdCreate("view", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const n = 2 * Align
	if err := unix.Ftruncate(fd, n); err != nil {
		t.Fatal(err)
	}
	first, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	mem := reserve(t, n)
	if err := View(mem, first); err != nil {
		t.Fatal(err)
	}
	first[5], mem[Align] = 3, 4
	if mem[5] != 3 || first[Align] != 4 {
		t.Error("the view shows other memory")
	}
	if err := unix.Munmap(first); err != nil {
		t.Fatal(err)
	}
	if mem[5] != 3 {
		t.Error("the view went with the first mapping")
	}
	if err := View(reserve(t, 4*Align), mem); err == nil {
		t.Error("a view of more than there is")
	}
}

func TestBadAddresses(t *testing.T) {
	for _, c := range []struct {
		at uintptr
		n  uint64
	}{{0, 1}, {Align + 1, 1}, {1 << 44, 0}} {
		if _, err := Reserve(c.at, c.n); err == nil || errors.Is(err, ErrTaken) {
			t.Errorf("%#x, %d: %v", c.at, c.n, err)
		}
	}
	if _, err := Reserve(1<<60, Align); err == nil {
		t.Error("an address that no process has")
	}
}

func TestPick(t *testing.T) {
	for range 1000 {
		for _, n := range []uint64{1, Align + 1, 3 << 20, 1 << 40, 1 << 62} {
			at := Pick(n)
			if at < pickFrom || at%Align != 0 || n < 1<<45 && uint64(at)+n > pickTo || n == 3<<20 && at%(2<<20) != 0 {
				t.Fatalf("%d bytes at %#x", n, at)
			}
		}
	}
}
