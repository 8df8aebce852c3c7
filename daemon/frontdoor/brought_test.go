package frontdoor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"tendril/ipc/wire"
	"tendril/store/object"
)

type nothingElse interface{ Elsewhere }

// away has objects at other nodes. What cannot be brought is gone there.
type away struct {
	nothingElse // nil: nothing else is asked
	there       object.ID

	mu      sync.Mutex
	gone    func() // called when it is to be brought
	brought []object.ID
}

func (a *away) then(gone func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = gone
}

func (a *away) Elsewhere(_ string, id object.ID) bool { return id == a.there }

func (a *away) Bring(_ context.Context, _ string, id object.ID) (func(), error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.brought = append(a.brought, id)
	a.gone()
	return nil, object.ErrNotFound
}

func (a *away) Published(string, object.ID) (string, object.Kind, string) { return "", object.Host, "" }

func (a *away) asked() []object.ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.brought)
}

// TestAChangedNameIsFollowed: where what a name stood for is gone when it is to be brought, it is looked up again.
func TestAChangedNameIsFollowed(t *testing.T) {
	for kind, m := range namers("n") {
		if kind == wire.Stat || kind == wire.Delete { // which bring nothing
			continue
		}
		t.Run(kind.String(), func(t *testing.T) {
			cluster, there := newPublishingCluster(), &away{there: object.NewID()}
			d := open(t, func(o *Options) { o.Cluster, o.Elsewhere = cluster, there })
			after := sealed(t, connectTo(t, d.store), object.Named, "another")
			cluster.publish("n", there.there)
			there.then(func() { cluster.publish("n", after) })
			p := d.dial(t).hello()
			if _, err := p.ask(wire.OpenSession, &wire.OpenSessionRequest{}); err != nil {
				t.Fatal(err)
			}
			f, err := p.ask(kind, m)
			if err != nil {
				t.Error(err)
			} else {
				f.CloseFDs()
			}
			if got := there.asked(); len(got) != 1 {
				t.Errorf("%v were brought", got)
			}
		})
	}
}

// TestNoTargetNothingIsBrought: an object does not come from another node for a copy that has no place to go to.
func TestNoTargetNothingIsBrought(t *testing.T) {
	cluster, there := newPublishingCluster(), &away{there: object.NewID(), gone: func() {}}
	d := open(t, func(o *Options) { o.Cluster, o.Elsewhere = cluster, there })
	cluster.publish("n", there.there)
	p := d.dial(t).hello()
	f, err := p.ask(wire.Create, &wire.CreateRequest{SizeBytes: 10})
	if err != nil {
		t.Fatal(err)
	}
	f.CloseFDs()
	var made wire.CreateReply
	if err := made.Decode(f.Payload); err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string]struct {
		m    wire.CopyRequest
		want error
	}{
		"none, by name":  {wire.CopyRequest{To: object.NewID(), FromName: "n", Bytes: 1}, object.ErrNotFound},
		"none, by ID":    {wire.CopyRequest{To: object.NewID(), From: there.there, Bytes: 1}, object.ErrNotFound},
		"beyond its end": {wire.CopyRequest{To: made.ID, ToOffset: 10, FromName: "n", Bytes: 1}, object.ErrInvalid},
	} {
		if _, err := p.ask(wire.CopyObject, &x.m); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", what, err, x.want)
		}
	}
	if got := there.asked(); len(got) > 0 {
		t.Errorf("%v were brought", got)
	}
}
