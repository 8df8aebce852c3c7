package store

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/store/object"
	"tendril/store/segment"
	"tendril/tools/e2e/loopback"
)

// madeOf makes a sealed object whose bytes are all b. m is the mapping of the last one's segment, or nil.
func madeOf(t *testing.T, c *Conn, m *segment.Mapping, size uint64, b byte) (Handle, *segment.Mapping) {
	t.Helper()
	h, err := c.Create(Spec{SizeBytes: size})
	if err != nil {
		t.Fatal(err)
	}
	if h.FD >= 0 {
		m = mapHandle(t, h, true)
	}
	copy(m.Bytes()[h.Ref.Offset:], bytes.Repeat([]byte{b}, int(size)))
	if err := c.Seal(h.ID, false); err != nil {
		t.Fatal(err)
	}
	return h, m
}

// TestMemoryThatSocketsHave: what a socket has of an object's memory stays what it was, unread, while the object is
// deleted and its maker makes another one. Where no socket has any, the other one comes into the same memory.
func TestMemoryThatSocketsHave(t *testing.T) {
	const size = 4 << 20
	for name, sent := range map[string]bool{"sent": true, "not sent": false} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, newStore(t, Options{SegmentBytes: 1 << 20, HugeFromBytes: NoHuge}), "x")
			h, m := madeOf(t, c, nil, size, 1)
			r, err := c.Open(h.ID, "")
			if err != nil {
				t.Fatal(err)
			}
			from, to, err := loopback.Conns()
			if err != nil {
				t.Fatal(err)
			}
			defer from.Close()
			defer to.Close()
			got := 0
			if sent {
				got = sendSome(t, r, from.(*net.TCPConn))
			}
			r.Close()
			if err := errors.Join(c.Delete(h.ID, ""), c.Release(h.ID)); err != nil {
				t.Fatal(err)
			}
			next, _ := madeOf(t, c, m, size, 2)
			if again := next.Ref.Segment == h.Ref.Segment; again == sent {
				t.Errorf("the next object is in the same memory: %v", again)
			}
			from.Close()
			b, err := io.ReadAll(to)
			if err != nil || !bytes.Equal(b, bytes.Repeat([]byte{1}, got)) {
				t.Errorf("%d bytes of %d, of the next object %d: %v", len(b), got, bytes.Count(b, []byte{2}), err)
			}
		})
	}
}

// sendSome has a socket take what it does of an object that is read.
func sendSome(t *testing.T, r *Reading, to *net.TCPConn) (n int) {
	t.Helper()
	file, off := r.Memory()
	if file == nil {
		t.Fatal("no memory")
	}
	if again, at := r.Memory(); again != file || at != off {
		t.Errorf("memory %v at %d, and then %v at %d", file, off, again, at)
	}
	raw, err := to.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	at := int64(off)
	err = raw.Write(func(fd uintptr) bool {
		n, err = unix.Sendfile(int(fd), int(file.Fd()), &at, int(r.Size))
		return true
	})
	if err != nil || n <= 0 {
		t.Fatalf("sendfile: %d, %v", n, err)
	}
	return n
}

// TestMemoryOfReadings: only memory that an object has alone, and that the kernel sends, is given.
func TestMemoryOfReadings(t *testing.T) {
	s := newStore(t, Options{SegmentBytes: 1 << 20, SpillDir: t.TempDir(), HugeFromBytes: NoHuge})
	c := connect(t, s, "x")
	for name, x := range map[string]struct {
		spec  Spec
		given bool
	}{
		"large":      {Spec{SizeBytes: 1 << 20}, true},
		"its own":    {Spec{SizeBytes: 4096, Own: true}, true},
		"small":      {Spec{SizeBytes: 4096}, false},
		"empty":      {Spec{}, false},
		"persistent": {Spec{SizeBytes: 1 << 20, Class: object.Persisted, Name: "p"}, true},
	} {
		r, err := c.Open(sealedObject(t, c, x.spec), "")
		if err != nil {
			t.Fatal(err)
		}
		before := memfds(t)
		if file, off := r.Memory(); (file != nil) != x.given || x.given && off != r.off {
			t.Errorf("%s: memory %v at %d", name, file, off)
		}
		r.Close()
		if now := memfds(t); now != before {
			t.Errorf("%s: %d descriptors of segments, %d before", name, now, before)
		}
	}
}

// TestReadIntoABuffer: Read gives what Range does, wherever the object is.
func TestReadIntoABuffer(t *testing.T) {
	s := newStore(t, Options{SegmentBytes: 1 << 20, SpillDir: t.TempDir(), HugeFromBytes: NoHuge})
	c := connect(t, s, "x")
	for name, spec := range map[string]Spec{"small": {SizeBytes: 5000, Class: object.Named, Name: "s"},
		"large": {SizeBytes: 1 << 20, Class: object.Named, Name: "l"}, "empty": {Class: object.Named, Name: "e"}} {
		r, err := c.Open(filled(t, c, spec, 3), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range [][2]uint64{{0, r.Size}, {r.Size / 3, r.Size / 2}, {r.Size, 0}, {r.Size, 1},
			{^uint64(0), 1}} {
			want, wantErr := r.Range(x[0], x[1])
			got := make([]byte, x[1])
			if err := r.Read(got, x[0]); (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got, want) {
				t.Errorf("%s, %v: %v, want %v, or other bytes", name, x, err, wantErr)
			}
		}
		r.Close()
	}
}
