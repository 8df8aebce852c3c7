package frontdoor

import (
	"fmt"
	"strings"
	"testing"

	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// TestLimitsHaveACodeOfTheirOwn: that a tenant may have no more objects, or segments, is said by another code than that
// it may have no more memory. A peer that speaks protocol version 1 alone does not know that code: it gets the one that
// stood for both, and the same words.
func TestLimitsHaveACodeOfTheirOwn(t *testing.T) {
	own := &wire.CreateRequest{SizeBytes: 1, Class: object.Ephemeral, Flags: wire.CreateOwn}
	small := &wire.CreateRequest{SizeBytes: 1, Class: object.Ephemeral}
	for _, test := range []struct {
		highest, version uint16
		limit            object.Code
	}{{1, 1, 8}, {2, 2, 16}, {9, wire.Version, 16}} {
		for what, n := range map[string]struct {
			opts store.Options
			ask  *wire.CreateRequest
			want object.Code
			says string
		}{
			"objects":  {store.Options{TenantObjects: 3}, small, test.limit, "objects"},
			"segments": {store.Options{Segments: 64, TenantSegments: 3}, own, test.limit, "segments"},
			"memory":   {store.Options{TenantBytes: 64 << 10}, own, object.ErrQuota.Code(), "bytes"},
		} {
			t.Run(fmt.Sprintf("%s/highest=%d", what, test.highest), func(t *testing.T) {
				n.opts.CapacityBytes = 64 << 20
				s, err := store.New(n.opts)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				d := open(t, func(o *Options) { o.Store = s })
				defer d.Close()
				p := d.dial(t)
				f, err := p.ask(wire.Hello, &wire.HelloRequest{Magic: wire.Magic, Lowest: 1, Highest: test.highest})
				if err != nil {
					t.Fatal(err)
				}
				var hello wire.HelloReply
				if err := hello.Decode(f.Payload); err != nil || hello.Version != test.version {
					t.Fatalf("version %d, %v; want %d", hello.Version, err, test.version)
				}
				for range 100 {
					p.send(wire.Create, 5, n.ask)
					if f, err = p.receive(); err != nil {
						t.Fatal(err)
					}
					f.CloseFDs()
					if f.Type == wire.Error {
						break
					}
				}
				var m wire.ErrorReply
				if err := m.Decode(f.Payload); f.Type != wire.Error || err != nil || m.Code != n.want ||
					!strings.Contains(m.Text, n.says) {
					t.Errorf("%v: %v: code %d, want %d: %s", f.Type, err, m.Code, n.want, m.Text)
				}
			})
		}
	}
}
