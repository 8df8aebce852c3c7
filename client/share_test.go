package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"tendril/client"
	"tendril/client/admin"
	"tendril/store"
	"tendril/store/object"
)

func TestManyRangesChecksums(t *testing.T) {
	n := startNode(t, store.Options{CapacityBytes: 16 << 20, SpillDir: t.TempDir()})
	a, b := n.dial(t), n.dial(t)
	ctx := context.Background()
	if _, err := a.GetMany(ctx, []client.Wanted{{Name: "none"}}, time.Millisecond); !errors.Is(err, object.ErrTimeout) {
		t.Errorf("got %v", err)
	}
	wanted, contents := make([]client.Wanted, 100), make([][]byte, 100)
	for i := range wanted {
		wanted[i].Name = fmt.Sprint(i)
		contents[i] = bytes.Repeat([]byte{byte(i), 7}, 150<<10)
	}
	put := make(chan error)
	go func() {
		for i, w := range wanted {
			o, err := a.Put(ctx, contents[i], client.CreateOptions{Name: w.Name, Class: object.Named, Own: true,
				Labels: map[string]string{"odd": fmt.Sprint(i % 2)}})
			if err != nil {
				put <- err
				return
			}
			o.Release()
		}
		put <- nil
	}()
	for at := 0; at < len(wanted); at += 20 {
		list := must(b.GetMany(ctx, wanted[at:at+20], 5*time.Minute))(t)
		for i, o := range list {
			if !bytes.Equal(o.Bytes(), contents[at+i]) {
				t.Errorf("object %d", at+i)
			}
			o.Release()
		}
	}
	if err := <-put; err != nil {
		t.Fatal(err)
	}
	if odd := must(a.ListWhere(ctx, client.Query{Labels: map[string]string{"odd": "1"}}))(t); len(odd) != 50 {
		t.Errorf("%d objects with the label", len(odd))
	}
	for i, info := range must(a.List(ctx, "", false))(t) {
		var at int
		fmt.Sscan(info.Name, &at)
		if sum := must(b.Checksum(ctx, info.ID))(t); sum != xxhash.Sum64(contents[at]) {
			t.Errorf("checksum of %s: %x", info.Name, sum)
		}
		part := make([]byte, 1001)
		if err := b.ReadAt(ctx, info.ID, part, uint64(i)); err != nil || !bytes.Equal(part, contents[at][i:][:1001]) {
			t.Errorf("range of %s: %v", info.Name, err)
		}
		if err := b.ReadAt(ctx, info.ID, part, 1<<40); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("a range beyond the end: %v", err)
		}
	}
}

func TestWatchAndTop(t *testing.T) {
	n := startNode(t, store.Options{})
	c := n.dial(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	done := errors.New("done")
	var kept *client.Object
	var seen []string
	err := client.Watch(ctx, client.Options{Socket: n.socket}, "w", func() {
		kept = must(c.Put(context.Background(), []byte("x"), client.CreateOptions{Name: "w1", Class: object.Named}))(t)
		if err := errors.Join(c.Rename(context.Background(), "w1", "w2", false), c.DeleteByName(context.Background(),
			"w2")); err != nil {
			t.Error(err)
		}
	}, func(ev client.Event) error {
		if seen = append(seen, ev.Kind+" "+ev.Name); len(seen) == 4 {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) || fmt.Sprint(seen) != "[sealed w1 unnamed w1 named w2 gone w2]" {
		t.Errorf("%v, %v", seen, err)
	}
	kept.Release()
	held := must(c.Put(context.Background(), make([]byte, 100), client.CreateOptions{}))(t)
	defer held.Release()
	if top := must(admin.Of(c).Top(context.Background(),
		5))(t); len(top) != 1 || len(top[0].Holders) != 1 || top[0].Holders[0].Refs != 1 ||
		top[0].Holders[0].Since.IsZero() {
		t.Errorf("%+v", top)
	}
	if err := c.Share(context.Background(), held.ID(), "all"); err != nil {
		t.Error(err)
	}
	if info := must(c.Stat(context.Background(), held.ID()))(t); len(info.Grants) != 1 {
		t.Errorf("%+v", info)
	}
	if err := c.Unshare(context.Background(), held.ID(), "uid:5"); !errors.Is(err, object.ErrNotFound) {
		t.Error(err)
	}
}
