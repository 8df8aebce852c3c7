package link

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// rawPair is a connection, one end ours and the other a descriptor.
func rawPair(t *testing.T) (*rawConn, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "socket")
	defer f.Close()
	c, err := newRawConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, fds[1]
}

// What is gathered goes when there is enough of it, and at the end; in order, and as a whole.
func TestWritesGather(t *testing.T) {
	c, peer := rawPair(t)
	defer unix.Close(peer)
	arrived := func() []byte {
		b := make([]byte, 1<<10)
		n, _, err := unix.Recvfrom(peer, b, unix.MSG_DONTWAIT)
		if err != nil && err != unix.EAGAIN {
			t.Fatal(err)
		}
		return b[:max(n, 0)]
	}
	write := func(s string) {
		if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatalf("%q: %d, %v", s, n, err)
		}
	}
	c.gathers(8)
	for _, step := range []struct{ write, comes string }{{"abcd", ""}, {"efgh", ""}, {"i", "abcdefgh"},
		{"more than 8", "i"}, {"z", "more than 8"}} {
		write(step.write)
		if got := arrived(); !bytes.Equal(got, []byte(step.comes)) {
			t.Fatalf("behind %q came %q", step.write, got)
		}
	}
	if err := c.gathered(); err != nil || string(arrived()) != "z" {
		t.Fatalf("at the end: %v", err)
	}
	if write("now"); string(arrived()) != "now" {
		t.Fatal("a write behind the end waits")
	}
}

func TestGatheredForNobody(t *testing.T) {
	c, peer := rawPair(t)
	unix.Close(peer)
	c.gathers(1 << 10)
	if _, err := c.Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	if err := c.gathered(); !errors.Is(err, ErrHangup) {
		t.Fatal(err)
	}
}
