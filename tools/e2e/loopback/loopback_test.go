package loopback

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPair(t *testing.T) {
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	if _, err := a.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1)
	if _, err := b.Read(got); err != nil || got[0] != 'x' {
		t.Errorf("%q came: %v", got, err)
	}
}

// TestAStrangerIsTurnedAway: somebody else may connect to the port first.
func TestAStrangerIsTurnedAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	stranger, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	a, b, err := through(l)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	if _, err := a.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1)
	if _, err := b.Read(got); err != nil || got[0] != 'x' {
		t.Errorf("%q came: %v", got, err)
	}
	if n, err := stranger.Read(got); n > 0 || err == nil {
		t.Errorf("the stranger read %d bytes: %v", n, err)
	}
}

// TestPairWithoutDescriptors: the i-th call that needs a descriptor finds none, until none fails: that is an error, and
// nothing stays open.
func TestPairWithoutDescriptors(t *testing.T) {
	warm, other, err := Pair() // what the runtime opens once
	if err != nil {
		t.Fatal(err)
	}
	warm.Close()
	other.Close()
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list) - 1 // the directory itself
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	before, highest := open(), 0
	for fd := range 1024 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			highest = fd
		}
	}
	// Numbers below the highest that are free would be used first.
	for fill := highest + 1 - before; fill > 0; fill-- {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	before = open()
	faults := 0
	for more := uint64(0); ; more++ {
		few := unix.Rlimit{Cur: uint64(before) + more, Max: limit.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
			t.Fatal(err)
		}
		a, b, err := Pair()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if err == nil {
			a.Close()
			b.Close()
		}
		if now := open(); now != before {
			t.Errorf("%d more: %d descriptors, before %d; %v", more, now, before, err)
		}
		if err == nil {
			break
		}
		if faults++; a != nil || b != nil || faults > 20 {
			t.Fatalf("%v with %v and %v", err, a, b)
		}
	}
	if faults < 4 {
		t.Errorf("%d failures", faults)
	}
}
