package client_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"tendril/client"
	"tendril/store"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func TestComposeAndGetTree(t *testing.T) {
	n := startNode(t, store.Options{})
	a, b := n.dial(t), n.dial(t)
	image, mask := must(a.Put(context.Background(), []byte("image"), client.CreateOptions{}))(t),
		must(a.Put(context.Background(), []byte("mask"), client.CreateOptions{}))(t)
	inner := must(a.Compose(context.Background(), []object.Member{{Name: "mask", ID: mask.ID()}},
		client.CreateOptions{}))(t)
	sample := must(a.Compose(context.Background(), []object.Member{{Name: "image", ID: image.ID()}, {Name: "more",
		ID: inner.ID()}},
		client.CreateOptions{Class: object.Named, Name: "sample", Meta: []byte(`{"n":1}`)}))(t)
	a.Close() // what it held is the composite's alone now
	tree := must(b.GetTree(context.Background(), sample.ID(), time.Minute))(t)
	if string(tree.Members["image"].Bytes()) != "image" ||
		string(tree.Members["more"].Members["mask"].Bytes()) != "mask" || string(tree.Meta()) != `{"n":1}` {
		t.Errorf("%+v", tree)
	}
	tree.ReleaseAll()
	if err := b.DeleteByName(context.Background(), "sample"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "all objects' end", func() bool { st := n.store.Status(); return st.Objects == 0 && st.References == 0 })
}

func TestFillFromSeveralConnections(t *testing.T) {
	n := startNode(t, store.Options{})
	creator := n.dial(t)
	const size, parts = 4 << 20, 4
	buf := must(creator.Create(context.Background(), size, client.CreateOptions{Shared: true, Strict: true}))(t)
	var wait sync.WaitGroup
	joined := make(chan struct{}, parts)
	for i := range parts {
		wait.Go(func() {
			c, err := client.Dial(context.Background(), client.Options{Socket: n.socket})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			p, err := c.Fill(context.Background(), buf.ID(), "")
			if err != nil {
				t.Error(err)
				return
			}
			joined <- struct{}{}
			part := p.Bytes()[i*size/parts:][:size/parts]
			copy(part, bytes.Repeat([]byte{byte(i + 1)}, len(part)))
			if err := p.Done(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	for range parts {
		<-joined
	}
	obj, err := buf.SealFilled(context.Background(), time.Minute, false)
	if err != nil {
		t.Fatal(err)
	}
	wait.Wait()
	for i := range parts {
		if b := obj.Bytes()[i*size/parts]; b != byte(i+1) {
			t.Errorf("part %d begins with %d", i, b)
		}
	}
	obj.Release()
}

// TestFillerDies: the seal says so, and is to be had nevertheless.
func TestFillerDies(t *testing.T) {
	n := startNode(t, store.Options{})
	creator, filler := n.dial(t), n.dial(t)
	buf := must(creator.Create(context.Background(), 10, client.CreateOptions{Shared: true, Name: "n"}))(t)
	must(filler.Fill(context.Background(), object.ID{}, "n"))(t)
	if _, err := buf.SealFilled(context.Background(), 0, false); !errors.Is(err, object.ErrBusy) {
		t.Errorf("%v", err)
	}
	if _, err := buf.SealFilled(context.Background(), time.Millisecond, false); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("%v", err)
	}
	filler.Close()
	if _, err := buf.SealFilled(context.Background(), time.Minute, false); !errors.Is(err, object.ErrAborted) {
		t.Errorf("%v", err)
	}
	must(buf.SealFilled(context.Background(), time.Minute, true))(t).Release()
}
