package frontdoor

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// ugly are labels whose JSON is six times as long as they are.
func ugly() map[string]string {
	labels := make(map[string]string)
	for i := range object.MaxLabels {
		labels[fmt.Sprintf("%c%s", 'a'+i, strings.Repeat("\x01", object.MaxLabelBytes-1))] = strings.Repeat("\x02",
			object.MaxLabelBytes)
	}
	return labels
}

// put makes n named, empty objects.
func (d *door) put(t testing.TB, n int, labels map[string]string) {
	t.Helper()
	c, err := d.store.Connect(store.Owner{Tenant: "t", Name: "maker"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for i := range n {
		h, err := c.Create(store.Spec{Class: object.Named, Name: fmt.Sprintf("o%06d", i), Labels: labels})
		if err == nil {
			err = c.Seal(h.ID, false)
		}
		if err == nil {
			err = c.Release(h.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// heap gives what is allocated now, garbage among it.
func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Sys - m.HeapReleased
}

// TestUnreadListsCostLittle: clients that ask for long lists and read none of them have the daemon hold some pages, not
// their lists.
func TestUnreadListsCostLittle(t *testing.T) {
	d := open(t, nil)
	d.put(t, 3000, ugly())
	runtime.GC()
	before := heap()
	var peers []*peer
	for range 8 {
		p := d.dial(t).hello()
		for request := range uint64(8) {
			p.send(wire.ListWhere, 100+request, &wire.ListWhereRequest{})
			p.send(wire.ListPage, 200+request, &wire.ListPageRequest{})
		}
		peers = append(peers, p)
	}
	waitFor(t, func() bool { return d.store.Status().RequestBytes >= 8*pageLeast })
	other := d.dial(t).hello()
	if _, err := other.ask(wire.StreamPage, &wire.PageRequest{}); err != nil { // another is served all the while
		t.Error(err)
	}
	const most = 64 << 20
	if grown := heap() - before; heap() > before && grown > most {
		t.Errorf("the daemon took %d MiB for lists that nobody reads, want less than %d", grown>>20, most>>20)
	}
	if held := d.store.Status().RequestBytes; held > 16<<20 {
		t.Errorf("%d bytes are charged", held)
	}
	for _, p := range peers {
		p.Close()
	}
	other.Close()
	waitFor(t, func() bool { return d.store.Status().RequestBytes == 0 })
}

// pages asks for all pages of a listing, and gives their items.
func (p *peer) pages(t wire.Type, ask func(cursor string) ipc.Payload) (items []json.RawMessage, pages int) {
	p.t.Helper()
	for cursor := ""; ; {
		f, err := p.ask(t, ask(cursor))
		if err != nil {
			p.t.Fatal(err)
		}
		var m wire.PageReply
		var some []json.RawMessage
		if err := errors.Join(m.Decode(f.Payload), json.Unmarshal(m.Items, &some)); err != nil {
			p.t.Fatal(err)
		}
		if len(m.Items) > pageBytes+2 && len(some) > 1 || len(some) > pageEntries {
			p.t.Errorf("a page of %d entries in %d bytes", len(some), len(m.Items))
		}
		items, pages = append(items, some...), pages+1
		if cursor = m.Next; cursor == "" {
			return items, pages
		}
	}
}

// TestPagesTellOfEachOnce: every object that is there all the while comes once, in order, though others come and go
// between the pages.
func TestPagesTellOfEachOnce(t *testing.T) {
	d := open(t, nil)
	d.put(t, 2500, nil)
	p := d.dial(t).hello()
	n := 0
	items, pages := p.pages(wire.ListPage, func(cursor string) ipc.Payload {
		c, err := d.store.Connect(store.Owner{Tenant: "t"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// some that were listed, then some that were not
		if err := c.Delete(object.ID{}, fmt.Sprintf("o%06d", 2*n)); err != nil && n > 0 {
			t.Fatal(err)
		}
		if n++; n > 1 {
			_ = c.Delete(object.ID{}, fmt.Sprintf("o%06d", 2499-2*n))
		}
		h, err := c.Create(store.Spec{Class: object.Named, Name: fmt.Sprintf("p%06d", n)})
		if err != nil || c.Seal(h.ID, false) != nil {
			t.Fatal(err)
		}
		return &wire.ListPageRequest{Limit: 100, Cursor: cursor}
	})
	seen := make(map[string]int)
	last := ""
	for _, item := range items {
		var o object.Info
		if err := json.Unmarshal(item, &o); err != nil {
			t.Fatal(err)
		}
		seen[o.Name]++
		if strings.HasPrefix(o.Name, "o") {
			if o.Name <= last {
				t.Errorf("%s after %s", o.Name, last)
			}
			last = o.Name
		}
	}
	if pages < 25 || slices.Max(slices.Collect(maps.Values(seen))) > 1 {
		t.Errorf("%d pages, an object %d times", pages, slices.Max(slices.Collect(maps.Values(seen))))
	}
	for i := 100; i < 2300; i++ {
		if name := fmt.Sprintf("o%06d", i); seen[name] != 1 && i%2 == 0 {
			t.Errorf("%s came %d times", name, seen[name])
		}
	}
}

// TestAListInOneAnswerIsTheSame: what clients of earlier releases ask for has what the pages have, though it is more
// than a page.
func TestAListInOneAnswerIsTheSame(t *testing.T) {
	d := open(t, nil)
	d.put(t, 40, ugly())
	d.put2(t)
	p := d.dial(t).hello()
	for name, test := range map[string]struct {
		whole wire.Type
		ask   ipc.Payload
		page  wire.Type
		part  func(cursor string) ipc.Payload
	}{
		"List": {wire.List, &wire.ListRequest{}, wire.ListPage,
			func(c string) ipc.Payload { return &wire.ListPageRequest{Limit: 7, Cursor: c} }},
		"ListWhere": {wire.ListWhere, &wire.ListWhereRequest{Prefix: "o00000"}, wire.ListPage,
			func(c string) ipc.Payload {
				return &wire.ListPageRequest{ListWhereRequest: wire.ListWhereRequest{Prefix: "o00000"},
					Limit: 3, Cursor: c}
			}},
		"nothing": {wire.List, &wire.ListRequest{Prefix: "x"}, wire.ListPage, func(c string) ipc.Payload {
			return &wire.ListPageRequest{ListWhereRequest: wire.ListWhereRequest{Prefix: "x"}, Cursor: c}
		}},
		"Top": {wire.Top, &wire.Number{N: 10000}, wire.TopPage,
			func(c string) ipc.Payload { return &wire.PageRequest{Limit: 9, Cursor: c} }},
		"StreamList": {wire.StreamList, &wire.WatchRequest{Prefix: "s"}, wire.StreamPage,
			func(c string) ipc.Payload { return &wire.PageRequest{Prefix: "s", Limit: 2, Cursor: c} }},
	} {
		items, _ := p.pages(test.page, test.part)
		if got, want := p.whole(test.whole, test.ask), items; !slices.EqualFunc(got, want, func(a,
			b json.RawMessage) bool {
			return string(a) == string(b)
		}) || (len(got) == 0) != (name == "nothing") {
			t.Errorf("%s: %d items in one answer, %d in pages, or others", name, len(got), len(want))
		}
	}
	for _, cursor := range []string{"x", "12-34"} {
		if _, err := p.ask(wire.ListPage, &wire.ListPageRequest{Cursor: cursor}); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("cursor %q: %v", cursor, err)
		}
		if _, err := p.ask(wire.TopPage, &wire.PageRequest{Cursor: cursor}); !errors.Is(err, object.ErrInvalid) {
			t.Errorf("cursor %q of Top: %v", cursor, err)
		}
	}
}

// put2 makes some streams.
func (d *door) put2(t testing.TB) {
	t.Helper()
	c, err := d.store.Connect(store.Owner{Tenant: "t"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for i := range 5 {
		if _, err := c.OpenStream(store.StreamSpec{Name: fmt.Sprintf("s%d", i), Writes: true, Keep: true}); err != nil {
			t.Fatal(err)
		}
	}
}

// whole asks for a listing in one answer, which may come in several frames.
func (p *peer) whole(t wire.Type, ask ipc.Payload) (items []json.RawMessage) {
	p.t.Helper()
	p.send(t, 77, ask)
	var all []byte
	for {
		f, err := p.receive()
		if err != nil || f.Type != t|wire.ReplyBit {
			p.t.Fatal(f.Type, err)
		}
		all = append(all, f.Payload...)
		if f.Flags&ipc.FlagMore == 0 {
			break
		}
	}
	if err := json.Unmarshal(all, &items); err != nil {
		p.t.Fatal(err)
	}
	return items
}

// TestAllPage is for root and the daemon's own user alone.
func TestAllPage(t *testing.T) {
	list := &wire.ListPageRequest{}
	other := open(t, nil)
	if _, err := other.dial(t).hello().ask(wire.AllPage, list); !errors.Is(err, object.ErrPermission) {
		t.Error(err)
	}
	d := open(t, func(o *Options) { o.Admin = func(uint32) bool { return true } })
	d.put(t, 3, nil)
	admin := d.dial(t).hello()
	items, _ := admin.pages(wire.AllPage, func(cursor string) ipc.Payload {
		return &wire.ListPageRequest{Cursor: cursor}
	})
	var info object.Info
	if len(items) != 3 || json.Unmarshal(items[0], &info) != nil || info.Tenant != "t" {
		t.Errorf("%s", items)
	}
	shared := &wire.ListPageRequest{ListWhereRequest: wire.ListWhereRequest{Shared: true}}
	if _, err := admin.ask(wire.AllPage, shared); !errors.Is(err, object.ErrInvalid) {
		t.Error(err)
	}
}
