package frontdoor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// TestWhatWaitsIsCharged: a peer that has the daemon hold its requests while they wait is refused at a bound, and pays
// nothing when it has gone.
func TestWhatWaitsIsCharged(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	many := wire.AwaitManyRequest{WaitMS: 1 << 30}
	for len(many.Wanted) < 1500 {
		many.Wanted = append(many.Wanted, wire.NameMessage{Name: strings.Repeat("n", object.MaxNameBytes)})
	}
	for request := range uint64(maxWaits - 1) {
		p.send(wire.AwaitMany, 1+request, &many)
	}
	p.send(wire.Hurry, 1000, nil)
	refused := 0
	for {
		f, err := p.receive()
		if err != nil {
			t.Fatal(err)
		}
		if f.Request == 1000 {
			break
		}
		if err := decodeError(t, f); !errors.Is(err, object.ErrBusy) {
			t.Fatalf("request %d: %v, want %v", f.Request, err, object.ErrBusy)
		}
		refused++
	}
	const most = 64 << 20 / 4 / 4
	held := d.store.Status().RequestBytes
	if refused < 50 || held == 0 || held > most {
		t.Errorf("%d of %d were refused, %d bytes are charged; want most of them, and up to %d bytes", refused,
			maxWaits-1, held, most)
	}
	p.Close()
	waitFor(t, func() bool { return d.store.Status().RequestBytes == 0 })
}

// TestWatchesAreCharged: a watch holds a queue of events.
func TestWatchesAreCharged(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	if _, err := p.ask(wire.Watch, &wire.WatchRequest{}); err != nil {
		t.Fatal(err)
	}
	if held := d.store.Status().Tenants[0].RequestBytes; held < 16<<10 {
		t.Errorf("a watch is charged %d bytes", held)
	}
	p.Close()
	waitFor(t, func() bool { return d.store.Status().RequestBytes == 0 })
}

// TestALargeFrameIsPaidFor: what announces more than its message may have ends the connection before memory is taken
// for it; what may be large is charged as long as its memory is held.
func TestALargeFrameIsPaidFor(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	f, err := p.ask(wire.Upload, &wire.CreateWithRequest{CreateRequest: wire.CreateRequest{SizeBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	var m wire.IDMessage
	if err := m.Decode(f.Payload); err != nil {
		t.Fatal(err)
	}
	charged := func() uint64 { return d.store.Status().RequestBytes }
	before := charged()
	if before < mappingBytes {
		t.Errorf("an upload is charged %d bytes", before)
	}
	frame := ipc.AppendFrame(nil, wire.Write, 0, 5, &wire.WriteRequest{ID: m.ID, Data: make([]byte, 1<<20-64)})
	if err := p.Send(frame[:100_000]); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return charged() >= before+1<<20-100 })
	if err := p.Send(frame[100_000:]); err != nil {
		t.Fatal(err)
	}
	if f, err := p.receive(); err != nil || f.Type != wire.Write|wire.ReplyBit {
		t.Fatal(f.Type, err)
	}
	if _, err := p.ask(wire.Hurry, nil); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return charged() == before })
	head, at := ipc.AppendHeader(nil, wire.Status, 0, 9)
	ipc.SetLength(head, at, ipc.MaxPayload)
	if err := p.Send(head); err != nil { // and no more
		t.Fatal(err)
	}
	p.mustEnd(object.ErrProtocol)
	waitFor(t, func() bool { return charged() == 0 })
}

// TestAFullTenantHears: a large frame for whose memory the tenant's own requests leave no room is answered with what is
// wrong, and passed over: the connection goes on.
func TestAFullTenantHears(t *testing.T) {
	d := open(t, func(o *Options) { o.ChargeTime = 20 * time.Millisecond })
	p := d.dial(t).hello()
	f, err := p.ask(wire.Upload, &wire.CreateWithRequest{CreateRequest: wire.CreateRequest{SizeBytes: 1 << 20}})
	var m wire.IDMessage
	if err := errors.Join(err, m.Decode(f.Payload)); err != nil {
		t.Fatal(err)
	}
	var full []*store.Conn
	for range 4 {
		conn, err := d.store.Connect(store.Owner{Tenant: "t"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for conn.ChargeRequest(256<<10) == nil {
		}
		full = append(full, conn)
	}
	write := &wire.WriteRequest{ID: m.ID, Data: make([]byte, 1<<20-64)}
	for range 2 {
		if _, err := p.ask(wire.Write, write); !errors.Is(err, object.ErrBusy) ||
			!strings.Contains(err.Error(), "tenant t hold") {
			t.Errorf("got %v, want ErrBusy that names the tenant", err)
		}
	}
	if _, err := p.ask(wire.Sweep, nil); err != nil {
		t.Errorf("behind the refused frames: %v", err)
	}
	for _, conn := range full {
		conn.Close()
	}
	if _, err := p.ask(wire.Write, write); err != nil {
		t.Errorf("with room: %v", err)
	}
}

// TestAnUnreadReplyIsPaidFor: what the peer does not take is charged, holds are, and the peer is not read from
// meanwhile.
func TestAnUnreadReplyIsPaidFor(t *testing.T) {
	d := open(t, nil)
	c, err := d.store.Connect(store.Owner{Tenant: "t"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h, err := c.Create(store.Spec{SizeBytes: 4 << 20, Class: object.Named, Name: "large"})
	if err == nil {
		unix.Close(h.FD)
		err = c.Seal(h.ID, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := d.dial(t).hello()
	if _, err := p.ask(wire.Hold, &wire.GetRequest{ID: h.ID}); err != nil {
		t.Fatal(err)
	}
	if held := d.store.Status().RequestBytes; held != mappingBytes {
		t.Errorf("a hold is charged %d bytes", held)
	}
	const asked = 100
	for i := range uint64(asked) {
		p.send(wire.ReadRange, 100+i, &wire.ReadRangeRequest{ID: h.ID, Bytes: 1 << 20})
	}
	waitFor(t, func() bool { return d.store.Status().RequestBytes > 256<<10 })
	if held := d.store.Status().RequestBytes; held > 2<<20 {
		t.Errorf("%d bytes are charged for %d replies that wait", held, asked)
	}
	for i := range uint64(asked) {
		if f, err := p.receive(); err != nil || f.Request != 100+i || f.Length != 1<<20 {
			t.Fatalf("reply %d: %v, %d bytes, %v", i, f.Type, f.Length, err)
		}
	}
	waitFor(t, func() bool { return d.store.Status().RequestBytes == mappingBytes })
}
