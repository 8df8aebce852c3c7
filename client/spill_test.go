package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"tendril/client"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// TestMoreThanMemory puts and reads four times what memory holds, from two connections.
func TestMoreThanMemory(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 16 << 20, SpillDir: t.TempDir()})
	a, b := n.dial(t), n.dial(t)
	content := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, 2<<20) }
	ids := make([]object.ID, 32)
	for i := range ids {
		o := must(a.Put(context.Background(), content(i), client.CreateOptions{Name: fmt.Sprint(i), Class: object.Named,
			Own: true}))(t)
		ids[i] = o.ID()
		o.Release()
	}
	for i, id := range ids {
		var o *client.Object
		var err error
		switch i % 3 {
		case 0:
			o, err = b.Get(context.Background(), id, 0)
		case 1:
			o, err = b.GetByName(context.Background(), fmt.Sprint(i), 0)
		default: // and would wait
			o, err = b.GetByName(context.Background(), fmt.Sprint(i), time.Minute)
		}
		if err != nil {
			t.Fatalf("object %d: %v", i, err)
		}
		if !bytes.Equal(o.Bytes(), content(i)) {
			t.Errorf("object %d came back altered", i)
		}
		o.Release()
	}
	info := must(a.Stat(context.Background(), ids[0]))(t)
	if info.State != object.Spilled || !info.OnDisk {
		t.Errorf("%+v", info)
	}
}

func TestClassesAndLabels(t *testing.T) {
	n := startNode(t, store.Options{SpillDir: t.TempDir()})
	c := n.dial(t)
	o := must(c.Put(context.Background(), []byte("x"),
		client.CreateOptions{Class: object.TTL, TTL: time.Hour, Labels: map[string]string{"k": "v"}}))(t)
	if info := must(c.Stat(context.Background(),
		o.ID()))(t); info.Labels["k"] != "v" || info.Class != object.TTL || info.Expires == nil {
		t.Errorf("%+v", info)
	}
	soon := time.Millisecond
	if err := c.Update(context.Background(), o.ID(), client.Change{TTL: &soon}); err != nil {
		t.Fatal(err)
	}
	o.Release()
	await.Until(t, "its end", func() bool {
		_, err := c.Stat(context.Background(), o.ID())
		return errors.Is(err, object.ErrNotFound)
	})
	p := must(c.Put(context.Background(), []byte("y"), client.CreateOptions{Class: object.Named, Name: "p"}))(t)
	defer p.Release()
	yes := true
	if err := c.Update(context.Background(), p.ID(),
		client.Change{Persist: true, Pinned: &yes, Labels: map[string]string{"a": "b"}}); err != nil {
		t.Fatal(err)
	}
	if info := must(c.Stat(context.Background(),
		p.ID()))(t); !info.Pinned || !info.OnDisk || info.Class != object.Persisted ||
		info.Labels["a"] != "b" {
		t.Errorf("%+v", info)
	}
	if err := c.Update(context.Background(), object.NewID(), client.Change{}); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
	_, err := c.Create(context.Background(), 1, client.CreateOptions{Class: object.TTL})
	if !errors.Is(err, object.ErrInvalid) {
		t.Error(err)
	}
}
