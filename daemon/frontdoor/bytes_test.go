package frontdoor

import (
	"bytes"
	"errors"
	"testing"

	"tendril/cluster/pki"
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// upload asks for an object of size bytes.
func (d *farDoor) upload(t *testing.T, link *ipc.Remote, m wire.CreateRequest) (object.ID, error) {
	t.Helper()
	f, err := ask(link, wire.Upload, &wire.CreateWithRequest{CreateRequest: m})
	var id wire.IDMessage
	if err == nil {
		err = id.Decode(f.Payload)
	}
	return id.ID, err
}

func TestBytesOverTheNetwork(t *testing.T) {
	d := openFar(t)
	link, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
	if err != nil {
		t.Fatal(err)
	}
	other, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
	if err != nil {
		t.Fatal(err)
	}
	id, err := d.upload(t, link, wire.CreateRequest{SizeBytes: 10, Name: "n", Class: object.Named, Meta: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		link *ipc.Remote
		m    wire.WriteRequest
		want error
	}{
		{link, wire.WriteRequest{ID: id, Offset: 5, Data: []byte("world")}, nil},
		{link, wire.WriteRequest{ID: id, Offset: 0, Data: []byte("hello")}, nil},
		{link, wire.WriteRequest{ID: id, Offset: 10}, nil},
		{link, wire.WriteRequest{ID: id, Offset: 10, Data: []byte("!")}, object.ErrInvalid},
		{link, wire.WriteRequest{ID: id, Offset: 1<<64 - 1, Data: []byte("!")}, object.ErrInvalid},
		{link, wire.WriteRequest{ID: object.ID{9}, Data: []byte("!")}, object.ErrNotFound},
		{other, wire.WriteRequest{ID: id, Data: []byte("!")}, object.ErrNotFound},
	} {
		if _, err := ask(x.link, wire.Write, &x.m); !errors.Is(err, x.want) {
			t.Errorf("write of %d bytes at %d: %v, want %v", len(x.m.Data), x.m.Offset, err, x.want)
		}
	}
	if _, err := ask(other, wire.Seal, &wire.SealRequest{ID: id}); err == nil {
		t.Error("another connection sealed it")
	}
	if _, err := ask(link, wire.ReadRange, &wire.ReadRangeRequest{ID: id, Bytes: 1}); !errors.Is(err,
		object.ErrNotSealed) {
		t.Errorf("read before the seal: %v", err)
	}
	if _, err := ask(link, wire.Seal, &wire.SealRequest{ID: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(link, wire.Write, &wire.WriteRequest{ID: id, Data: []byte("!")}); !errors.Is(err,
		object.ErrNotFound) {
		t.Errorf("write after the seal: %v", err)
	}
	f, err := ask(other, wire.Hold, &wire.GetRequest{Name: "n"})
	var held wire.HoldReply
	if err == nil {
		err = held.Decode(f.Payload)
	}
	if err != nil || held.ID != id || held.SizeBytes != 10 || string(held.Meta) != "{}" {
		t.Fatalf("%+v, %v", held, err)
	}
	if _, err := ask(link, wire.Delete, &wire.NameMessage{ID: id}); err != nil {
		t.Fatal(err)
	}
	f, err = ask(other, wire.ReadRange, &wire.ReadRangeRequest{ID: id, Offset: 3, Bytes: 4})
	if err != nil || !bytes.Equal(f.Payload, []byte("lowo")) {
		t.Errorf("what is held stays readable: %q, %v", f.Payload, err)
	}
	if _, err := ask(other, wire.Release, &wire.IDMessage{ID: id}); err != nil {
		t.Error(err)
	}
	if _, err := ask(link, wire.Release, &wire.IDMessage{ID: id}); err != nil {
		t.Error(err)
	}
	if _, err := ask(other, wire.ReadRange, &wire.ReadRangeRequest{ID: id, Offset: 3, Bytes: 4}); !errors.Is(err,
		object.ErrNotFound) {
		t.Errorf("nobody holds it: %v", err)
	}
	d.empty(t)
}

// TestAReleasedUploadIsOver: a release of what is not sealed yet is an abort, which a client sends whose context ended
// before the answer to its Upload came. The connection can upload as much as before, and nothing stays charged.
func TestAReleasedUploadIsOver(t *testing.T) {
	d := openFar(t)
	link, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * maxUploads {
		id, err := d.upload(t, link, wire.CreateRequest{SizeBytes: 10})
		if err != nil {
			t.Fatalf("upload %d: %v", i, err)
		}
		if _, err := ask(link, wire.Release, &wire.IDMessage{ID: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := ask(link, wire.Write, &wire.WriteRequest{ID: id, Data: []byte("!")}); !errors.Is(err,
			object.ErrNotFound) {
			t.Errorf("a write after the release: %v", err)
		}
	}
	d.empty(t)
	await.Until(t, "nothing is charged to requests, but for the last reply", func() bool {
		return d.store.Status().RequestBytes < mappingBytes
	})
}

// empty wants the store to hold nothing any more, though connections are open.
func (d *farDoor) empty(t *testing.T) {
	t.Helper()
	await.Until(t, "an empty store", func() bool {
		st := d.store.Status()
		return st.Objects == 0 && st.SegmentBytes == 0 && st.References == 0
	})
}

func TestUploadsAreBoundedAndCharged(t *testing.T) {
	d := openFar(t)
	link, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.upload(t, link, wire.CreateRequest{SizeBytes: 1 << 40}); !errors.Is(err, object.ErrFull) {
		t.Errorf("more than the store: %v", err)
	}
	first, err := d.upload(t, link, wire.CreateRequest{SizeBytes: 60 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.upload(t, link, wire.CreateRequest{SizeBytes: 8 << 20}); !errors.Is(err, object.ErrFull) {
		t.Errorf("a second one: %v", err)
	}
	if _, err := ask(link, wire.Abort, &wire.IDMessage{ID: first}); err != nil {
		t.Fatal(err)
	}
	for range maxUploads {
		if _, err := d.upload(t, link, wire.CreateRequest{SizeBytes: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.upload(t, link, wire.CreateRequest{}); !errors.Is(err, object.ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	link.Shutdown()
	d.empty(t)
}

// A name that is taken meanwhile leaves an upload that can be aborted, and nothing behind.
func TestUploadWhoseNameIsTaken(t *testing.T) {
	d := openFar(t)
	link, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
	if err != nil {
		t.Fatal(err)
	}
	var ids [2]object.ID
	for i := range ids {
		if ids[i], err = d.upload(t, link,
			wire.CreateRequest{SizeBytes: 4, Name: "x", Class: object.Named}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ask(link, wire.Seal, &wire.SealRequest{ID: ids[0]}); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(link, wire.Seal, &wire.SealRequest{ID: ids[1]}); !errors.Is(err, object.ErrExists) {
		t.Errorf("the name is taken: %v", err)
	}
	if _, err := ask(link, wire.Write, &wire.WriteRequest{ID: ids[1], Data: []byte("!")}); !errors.Is(err,
		object.ErrInvalid) {
		t.Errorf("write after a seal that failed: %v", err)
	}
	if _, err := ask(link, wire.Abort, &wire.IDMessage{ID: ids[1]}); err != nil {
		t.Error(err)
	}
	if _, err := ask(link, wire.Delete, &wire.NameMessage{Name: "x"}); err != nil {
		t.Error(err)
	}
	if _, err := ask(link, wire.Release, &wire.IDMessage{ID: ids[0]}); err != nil {
		t.Error(err)
	}
	d.empty(t)
}

func TestHoldWaits(t *testing.T) {
	d := openFar(t)
	var links [2]*ipc.Remote
	for i := range links {
		link, err := d.enter(t, certificateFrom(t, d.cluster.authority, pki.User))
		if err != nil {
			t.Fatal(err)
		}
		links[i] = link
	}
	if _, err := ask(links[0], wire.Hold, &wire.GetRequest{Name: "late", WaitMS: 20}); !errors.Is(err,
		object.ErrTimeout) {
		t.Errorf("nothing came: %v", err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := ask(links[0], wire.Hold, &wire.GetRequest{Name: "late", WaitMS: 1 << 30})
		answered <- err
	}()
	id, err := d.upload(t, links[1], wire.CreateRequest{Name: "late", Class: object.Named})
	if err == nil {
		_, err = ask(links[1], wire.Seal, &wire.SealRequest{ID: id})
	}
	if err = errors.Join(err, <-answered); err != nil {
		t.Error(err)
	}
}
