package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"

	"tendril/client"
	"tendril/store/object"
)

// A name that nothing can be published under is refused with its length, whatever is before its slash, and the next
// request is answered.
func TestNamesThatAreTooLongToPublish(t *testing.T) {
	ns, c := newNodes(t), aNode(t, "a")
	ns.start(c)
	id := put(t, c, "short")
	conn := dial(t, c)
	for name, want := range map[string]error{
		"x/" + strings.Repeat("a", 253): nil,
		"x/" + strings.Repeat("a", 254): object.ErrInvalid,
		"x/" + strings.Repeat("a", 255): object.ErrInvalid,
		strings.Repeat("a", 256):        object.ErrInvalid,
		"not UTF-8: \xff":               object.ErrInvalid,
	} {
		if _, err := conn.Publish(context.Background(), id, name, false); !errors.Is(err, want) {
			t.Errorf("publish under %d bytes: %v", len(name), err)
		}
		if err := conn.Unpublish(context.Background(), name); !errors.Is(err, want) {
			t.Errorf("unpublish %d bytes: %v", len(name), err)
		}
	}
}

// A composite is refused: other nodes would have it without its members. Its members are published.
func TestNoCompositeIsPublished(t *testing.T) {
	ns, c := newNodes(t), aNode(t, "a")
	ns.start(c)
	id, conn, ctx := put(t, c, "part"), dial(t, c), context.Background()
	whole, err := conn.Compose(ctx, []object.Member{{Name: "a", ID: id}}, client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Publish(ctx, whole.ID(), "whole", false)
	if !errors.Is(err, object.ErrUnsupported) || !strings.Contains(err.Error(), "publish its members") {
		t.Errorf("a composite: %v", err)
	}
	if _, err = conn.Publish(ctx, id, "part", false); err != nil {
		t.Error(err)
	}
}

// What ends one publication looks at that one, however many there are.
func TestSettleLooksAtOne(t *testing.T) {
	h := &held{objects: map[object.ID]int{}}
	var one object.ID
	for range 1000 {
		one = object.NewID()
		h.objects[one] = 1
	}
	p := publications{tenants: map[string]*held{"t": h}}
	looks := 0
	p.settle("t", one, func(object.ID) bool { looks++; return true })
	if looks > 1 || h.objects[one] != 0 {
		t.Errorf("%d looks at the metadata; %d publications are under way", looks, h.objects[one])
	}
}

// A delete of an object that was never published costs the metadata a look, and no memory.
func TestDroppedOfWhatIsNotPublished(t *testing.T) {
	d := newCluster(t, 1, nil).all[0]
	id := object.NewID()
	if n := allocations(func() {
		if was, err := d.Dropped("t", id); was || err != nil {
			t.Errorf("published: %v, %v", was, err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
