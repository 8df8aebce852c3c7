package frontdoor

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"tendril/ipc/wire"
	"tendril/store/object"
)

// TestLongNames: a name that is too long for any object is an error that says how long one may be, and not the end of
// the connection.
func TestLongNames(t *testing.T) {
	d := open(t, func(o *Options) { o.Cluster = newPublishingCluster() })
	p := d.dial(t).hello()
	for _, n := range []int{object.MaxNameBytes + 1, 300, 1024, 1<<16 - 1} {
		name := strings.Repeat("n", n)
		for kind, m := range map[wire.Type]interface{ Append([]byte) []byte }{
			wire.Get:          &wire.GetRequest{Name: name},
			wire.Hold:         &wire.GetRequest{Name: name, WaitMS: 1 << 30},
			wire.Stat:         &wire.NameMessage{Name: name},
			wire.Delete:       &wire.NameMessage{Name: name},
			wire.Checksum:     &wire.NameMessage{Name: name},
			wire.ReadRange:    &wire.ReadRangeRequest{Name: name, Bytes: 1},
			wire.Fill:         &wire.NameMessage{Name: name},
			wire.Create:       &wire.CreateRequest{SizeBytes: 1, Class: object.Named, Name: name},
			wire.Bind:         &wire.BindRequest{ID: object.NewID(), Name: name},
			wire.Rename:       &wire.RenameRequest{From: "a", To: name},
			wire.Grant:        &wire.GrantRequest{Name: name, To: "uid:1"},
			wire.StreamOpen:   &wire.StreamOpenRequest{Flags: wire.StreamReads, Name: name},
			wire.StreamRemove: &wire.NameMessage{Name: name},
		} {
			if _, err := p.ask(kind, m); !errors.Is(err, object.ErrInvalid) ||
				!strings.Contains(err.Error(), fmt.Sprint(object.MaxNameBytes)) {
				t.Errorf("%v, a name of %d bytes: %v", kind, n, err)
			}
		}
		list := wire.ListWhereRequest{Prefix: name}
		if _, err := p.ask(wire.ListPage, &wire.ListPageRequest{ListWhereRequest: list}); err != nil {
			t.Errorf("list with a prefix of %d bytes: %v", n, err)
		}
	}
	if _, err := p.ask(wire.Get, &wire.GetRequest{Name: strings.Repeat("t", 200) + "/" +
		strings.Repeat("n", 200)}); !errors.Is(err, object.ErrNotFound) {
		t.Errorf("another tenant's name: %v", err)
	}
}
