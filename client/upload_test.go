package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"tendril/client"
	"tendril/client/admin"
	"tendril/store"
	"tendril/store/object"
)

// failing is a writer that takes so many bytes and then fails, or takes less than it is given.
type failing struct {
	left int
	err  error
}

func (f *failing) Write(b []byte) (int, error) {
	n := min(len(b), f.left)
	f.left -= n
	if n < len(b) {
		return n, f.err
	}
	return n, nil
}

// TestUpload: bytes that are copied to and from the daemon are whole and in order, more requests than are under way at
// a time, in parts of any size.
func TestUpload(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dial(t)
	want := make([]byte, 10<<20+77)
	for i := range want {
		want[i] = byte(rand.Uint32())
	}
	u, err := c.NewUpload(context.Background(), uint64(len(want)), client.CreateOptions{Name: "large", Class: object.Named,
		Meta: []byte(`{"a":1}`), Checksum: true})
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(want); {
		part := min(1+rand.IntN(3<<20), len(want)-at)
		if sent, err := u.Write(want[at : at+part]); sent != part || err != nil {
			t.Fatalf("%d of %d bytes: %v", sent, part, err)
		}
		at += part
	}
	if err := u.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := u.Seal(context.Background()); !errors.Is(err, object.ErrSealed) {
		t.Errorf("sealed again: %v", err)
	}
	if err := u.Abort(context.Background()); err != nil {
		t.Errorf("an abort after the seal: %v", err)
	}
	u.Release()
	mapped, err := n.dial(t).GetByName(context.Background(), "large", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Release()
	if mapped.ID() != u.ID() || !bytes.Equal(mapped.Bytes(), want) {
		t.Error("another process sees other bytes")
	}
	r, err := c.Open(context.Background(), object.ID{}, "large", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.ID() != u.ID() || r.Size() != uint64(len(want)) || r.Class() != object.Named || string(r.Meta()) != `{"a":1}` {
		t.Errorf("%v: %d bytes, %v, %s", r.ID(), r.Size(), r.Class(), r.Meta())
	}
	for _, part := range [][2]uint64{{0, r.Size()}, {0, 0}, {r.Size(), 0}, {5<<20 + 1, 3 << 20}, {r.Size() - 1, 1}} {
		var got bytes.Buffer
		if err := r.CopyRange(context.Background(), &got, part[0], part[1]); err != nil ||
			!bytes.Equal(got.Bytes(), want[part[0]:part[0]+part[1]]) {
			t.Errorf("%d bytes from %d on: %d other ones, %v", part[1], part[0], got.Len(), err)
		}
	}
	found, err := admin.Of(c).Scrub(context.Background(), nil)
	if err != nil || found.Objects == 0 || len(found.Damaged) != 0 {
		t.Errorf("scrub: %+v, %v", found, err)
	}
}

// TestUploadRefused: what the daemon says to one part is the error of what follows; nothing that is not whole is
// sealed, and nothing of it stays.
func TestUploadRefused(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 32 << 20})
	c := n.dial(t)
	if _, err := c.NewUpload(context.Background(), 1<<40, client.CreateOptions{}); !errors.Is(err, object.ErrFull) {
		t.Errorf("more than there is: %v", err)
	}
	short, err := c.NewUpload(context.Background(), 100, client.CreateOptions{Name: "short"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := short.Write(make([]byte, 99)); err != nil {
		t.Fatal(err)
	}
	if err := short.Seal(context.Background()); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("sealed with a byte missing: %v", err)
	}
	if err := short.Abort(context.Background()); err != nil {
		t.Error(err)
	}
	long, err := c.NewUpload(context.Background(), 100, client.CreateOptions{Name: "long"})
	if err != nil {
		t.Fatal(err)
	}
	_, writeErr := long.Write(make([]byte, 20<<20)) // more parts than are under way at a time
	if sealErr := long.Seal(context.Background()); !errors.Is(writeErr, object.ErrInvalid) || !errors.Is(sealErr,
		object.ErrInvalid) {
		t.Errorf("beyond the end: %v; sealed: %v", writeErr, sealErr)
	}
	if n, err := long.Write([]byte{1}); n != 0 || !errors.Is(err, object.ErrInvalid) {
		t.Errorf("after an error: %d bytes, %v", n, err)
	}
	if err := long.Abort(context.Background()); err != nil {
		t.Error(err)
	}
	if list, err := c.List(context.Background(), "", true); err != nil || len(list) != 0 {
		t.Errorf("there still are %+v, %v", list, err)
	}
}

// TestCopyRangeGivenUp: whoever takes no more, or asks for what is not there, gets that as the error, and the
// connection goes on, with answers that nobody waits for under way.
func TestCopyRangeGivenUp(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dial(t)
	u, err := c.NewUpload(context.Background(), 8<<20, client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Write(make([]byte, 8<<20)); err != nil {
		t.Fatal(err)
	}
	if err := u.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(context.Background(), object.NewID(), "", 0); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("an object that is not there: %v", err)
	}
	r, err := c.Open(context.Background(), u.ID(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the disk is full")
	for name, test := range map[string]struct {
		to     io.Writer
		off, n uint64
		want   error
	}{
		"beyond the end":   {io.Discard, 8 << 20, 1, object.ErrInvalid},
		"far beyond it":    {io.Discard, 1, 1<<64 - 1, object.ErrInvalid},
		"a failing writer": {&failing{3 << 20, broken}, 0, 8 << 20, broken},
		"a lazy writer":    {&failing{3 << 20, nil}, 0, 8 << 20, io.ErrShortWrite},
	} {
		if err := r.CopyRange(context.Background(), test.to, test.off, test.n); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		var all bytes.Buffer
		if err := r.CopyRange(context.Background(), &all, 0, 8<<20); err != nil || all.Len() != 8<<20 {
			t.Fatalf("after %s: %d bytes, %v", name, all.Len(), err)
		}
	}
	r.Close()
	late, err := c.NewUpload(context.Background(), 1, client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := late.Write([]byte{1}); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("on a connection that is closed: %v", err)
	}
	if _, err := c.NewUpload(context.Background(), 1, client.CreateOptions{}); !errors.Is(err, client.ErrDisconnected) {
		t.Errorf("a new one there: %v", err)
	}
}
