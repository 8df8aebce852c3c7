package frontdoor

import (
	"errors"
	"testing"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// attach shows an object to the session's worker.
func (p *peer) attach(worker uint64, id object.ID, name string) (wire.AttachReply, error) {
	p.t.Helper()
	f, err := p.ask(wire.AttachObject, &wire.AttachRequest{Worker: worker, ID: id, Name: name})
	if err != nil {
		return wire.AttachReply{}, err
	}
	var m wire.AttachReply
	if err := m.Decode(f.Payload); err != nil {
		p.t.Fatal(err)
	}
	if f.NumFDs != 0 {
		p.t.Errorf("the client got %d descriptors", f.NumFDs)
		f.CloseFDs()
	}
	return m, nil
}

// An object goes to the worker, the reference is the connection's; what fails leaves none.
func TestAttachObject(t *testing.T) {
	d := open(t, nil)
	p, maker := d.dial(t).hello(), d.dial(t).hello()
	id := maker.object()
	if _, err := p.attach(7, id, ""); !errors.Is(err, object.ErrInvalid) {
		t.Fatalf("without a session: %v", err)
	}
	if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
		t.Fatal(err)
	}
	m, err := p.attach(7, id, "")
	if err != nil || m.ID != id || m.SizeBytes != 10 || m.Segment>>63 != 1 || m.Segment<<1 == 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	if n := maker.refs(id); n != 2 {
		t.Errorf("%d references, want the maker's and the session's", n)
	}
	var same [2]wire.AttachReply
	for i := range same { // sent again, as by a client that did not hear the answer
		f, err := p.ask(wire.AttachObject, &wire.AttachRequest{Worker: 7, Attempt: 5, ID: id})
		if err == nil {
			err = same[i].Decode(f.Payload)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := maker.refs(id); n != 3 || same[0] != same[1] {
		t.Errorf("an attempt that was sent again: %+v, %d references", same, n)
	}
	if _, err := p.attach(8, id, ""); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("a worker that is not there: %v", err)
	}
	if _, err := p.attach(7, object.ID{9}, ""); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("an object that is not there: %v", err)
	}
	if n := maker.refs(id); n != 3 {
		t.Errorf("%d references after what failed", n)
	}
	p.Close()
	waitFor(t, func() bool { return maker.refs(id) == 1 })
}

func TestAttachOfAnEmptyObject(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
		t.Fatal(err)
	}
	f, err := p.ask(wire.Create, &wire.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var m wire.CreateReply
	if err := m.Decode(f.Payload); err != nil {
		t.Fatal(err)
	}
	f.CloseFDs()
	if _, err := p.ask(wire.Seal, &wire.SealRequest{ID: m.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.attach(7, m.ID, ""); !errors.Is(err, object.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if n := p.refs(m.ID); n != 1 { // its maker's
		t.Errorf("%d references", n)
	}
}
