package store

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/store/object"
)

// TestPut: what is put is sealed at once, has its name, and lies where readers of it find it; what it took comes back.
func TestPut(t *testing.T) {
	s := newStore(t, Options{})
	c, other := connect(t, s, "uid:1"), connect(t, s, "uid:1")
	for _, data := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("0123456789"), 600), make([]byte, MaxPutBytes)} {
		h, err := c.Put(Spec{Class: object.Named, Name: "n", Meta: []byte("m"), Labels: map[string]string{"a": "b"}}, true,
			data)
		if err != nil {
			t.Fatal(err)
		}
		closeHandle(h)
		got, err := contents(t, other, h.ID)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v: want %d", len(got), err, len(data))
		}
		info, err := other.Stat(object.ID{}, "n")
		if err != nil || info.ID != h.ID || info.State != object.Sealed || info.Labels["a"] != "b" || info.Refs != 1 {
			t.Fatalf("%+v, %v", info, err)
		}
		if err := c.Release(h.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Stat(h.ID, ""); err != nil {
			t.Fatalf("the name holds it: %v", err)
		}
	}
	if err := c.Delete(object.ID{}, "n"); err != nil {
		t.Fatal(err)
	}
	c.Close()
	other.Close()
	if st := s.Status(); st.Objects != 0 || st.UsedBytes != 0 {
		t.Errorf("left: %+v", st)
	}
}

// TestPutTakesNames: a name that is taken stays its object's unless replace takes it.
func TestPutTakesNames(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "uid:1")
	named := Spec{Class: object.Named, Name: "n"}
	first, err := c.Put(named, false, []byte("first"))
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(first)
	if _, err := c.Put(named, false, []byte("second")); !errors.Is(err, object.ErrExists) {
		t.Fatal(err)
	}
	second, err := c.Put(named, true, []byte("second"))
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(second)
	if info, err := c.Stat(object.ID{}, "n"); err != nil || info.ID != second.ID {
		t.Fatalf("%+v, %v", info, err)
	}
	if got, err := contents(t, c, first.ID); err != nil || string(got) != "first" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := c.Release(first.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stat(first.ID, ""); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("its last reference went: %v", err)
	}
}

// TestPutIsForReading: the descriptor that a Put gives cannot be mapped for writing, and one segment serves many.
func TestPutIsForReading(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "uid:1")
	first, err := c.Put(Spec{}, false, []byte("first"))
	if err != nil || first.FD < 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	defer unix.Close(first.FD)
	if m, err := unix.Mmap(first.FD, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("it was mapped for writing")
		_ = unix.Munmap(m)
	}
	if _, err := unix.Pwrite(first.FD, []byte("x"), 0); err == nil {
		t.Error("it was written")
	}
	if err := c.Release(first.ID); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		h, err := c.Put(Spec{}, false, make([]byte, 1000))
		if err != nil || h.FD >= 0 || h.Ref.Segment != first.Ref.Segment {
			t.Fatalf("%+v, %v: want segment %d without a descriptor", h, err, first.Ref.Segment)
		}
		if err := c.Release(h.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPutRefusals: what a Put cannot do changes nothing.
func TestPutRefusals(t *testing.T) {
	s := newStore(t, Options{TenantBytes: 2 << 20})
	c := connect(t, s, "uid:1")
	for _, x := range []struct {
		spec    Spec
		replace bool
		bytes   int
		want    error
	}{
		{spec: Spec{}, bytes: MaxPutBytes + 1, want: object.ErrInvalid},
		{spec: Spec{Class: object.Persisted}, want: object.ErrUnsupported},
		{spec: Spec{Checksum: true}, want: object.ErrUnsupported},
		{spec: Spec{Own: true}, want: object.ErrUnsupported},
		{spec: Spec{Shared: true}, want: object.ErrUnsupported},
		{spec: Spec{Class: object.Named}, want: object.ErrInvalid},
		{spec: Spec{Class: object.TTL}, want: object.ErrInvalid},
		{spec: Spec{Class: 77}, want: object.ErrInvalid},
		{spec: Spec{Name: "a\nb"}, want: object.ErrInvalid},
		{spec: Spec{Meta: make([]byte, object.MaxMetaBytes+1)}, want: object.ErrInvalid},
		{replace: true, want: object.ErrInvalid},
	} {
		if _, err := c.Put(x.spec, x.replace, make([]byte, x.bytes)); !errors.Is(err, x.want) {
			t.Errorf("%+v, %d bytes: %v, want %v", x.spec, x.bytes, err, x.want)
		}
	}
	n := 0
	for ; n < 1000; n++ {
		h, err := c.Put(Spec{}, false, make([]byte, MaxPutBytes))
		if errors.Is(err, object.ErrQuota) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		closeHandle(h)
	}
	if n == 0 || n == 1000 {
		t.Fatalf("%d puts of 64 KiB under a quota of 2 MiB", n)
	}
	if st := s.Status(); st.Objects != n {
		t.Errorf("%d objects, want %d", st.Objects, n)
	}
	c.Close()
	if _, err := c.Put(Spec{}, false, nil); err == nil {
		t.Error("a closed connection put")
	}
	if st := s.Status(); st.Objects != 0 || st.UsedBytes != 0 {
		t.Errorf("left: %+v", st)
	}
}

// TestPutExpires: class ttl counts from the Put on.
func TestPutExpires(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "uid:1")
	h, err := c.Put(Spec{Class: object.TTL, TTL: time.Millisecond}, false, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	if err := c.Release(h.ID); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Minute)
	for err == nil && time.Now().Before(deadline) {
		_, err = c.Stat(h.ID, "")
	}
	if !errors.Is(err, object.ErrNotFound) {
		t.Errorf("%v, want that it expired", err)
	}
}

// TestPutAtOnce: who may not wait puts into memory that is there, and does nothing else.
func TestPutAtOnce(t *testing.T) {
	s := newStore(t, Options{})
	c := connect(t, s, "uid:1")
	named := Spec{Class: object.Named, Name: "n"}
	if _, err := c.AtOnce().Put(named, true, []byte("x")); !errors.Is(err, ErrWouldWait) {
		t.Fatalf("without memory: %v", err)
	}
	h, err := c.Put(Spec{}, false, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	closeHandle(h)
	if _, err := c.AtOnce().Put(named, true, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AtOnce().Put(named, true, []byte("y")); !errors.Is(err, ErrWouldWait) {
		t.Fatalf("a name that is taken: %v", err)
	}
	if got := s.Status().Objects; got != 2 {
		t.Errorf("%d objects, want 2", got)
	}
}
