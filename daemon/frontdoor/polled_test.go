package frontdoor

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
	"tendril/store/object"
)

// nobodyLingers leaves every connection to the poller.
func nobodyLingers(o *Options) { o.Lingers = -1 }

// object makes a sealed object with a segment of its own and as much metadata as there may be.
func (p *peer) object() object.ID {
	p.t.Helper()
	return p.sealed(&wire.CreateRequest{SizeBytes: 10, Flags: wire.CreateOwn, Meta: make([]byte, object.MaxMetaBytes)})
}

// sealed makes a sealed object.
func (p *peer) sealed(request *wire.CreateRequest) object.ID {
	p.t.Helper()
	f, err := p.ask(wire.Create, request)
	if err != nil {
		p.t.Fatal(err)
	}
	var m wire.CreateReply
	if err := m.Decode(f.Payload); err != nil {
		p.t.Fatal(err)
	}
	f.CloseFDs()
	if _, err := p.ask(wire.Seal, &wire.SealRequest{ID: m.ID}); err != nil {
		p.t.Fatal(err)
	}
	return m.ID
}

// refs gives how many references there are to an object; −1: it cannot be said.
func (p *peer) refs(id object.ID) int {
	f, err := p.ask(wire.Stat, &wire.NameMessage{ID: id})
	var info object.Info
	if err != nil || json.Unmarshal(f.Payload, &info) != nil {
		return -1
	}
	return info.Refs
}

// A peer that does not read its replies keeps nobody waiting, and then gets all of them, in order and with their
// descriptors.
func TestPollerAndAPeerThatDoesNotRead(t *testing.T) {
	d := open(t, nobodyLingers)
	maker, p, other := d.dial(t).hello(), d.dial(t).hello(), d.dial(t).hello()
	const objects, n = 40, 4000
	var ids [objects]object.ID
	for i := range ids {
		ids[i] = maker.object()
	}
	sent := make(chan error, 1)
	go func() {
		for i := range uint64(n) {
			if err := p.Send(ipc.AppendFrame(nil, wire.Get, 0, 1+i,
				&wire.GetRequest{ID: ids[i*objects/n]})); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for range 500 {
		f, err := other.ask(wire.Get, &wire.GetRequest{ID: ids[0]})
		if err != nil {
			t.Fatal(err)
		}
		f.CloseFDs()
	}
	descriptors := 0
	for i := range uint64(n) {
		f, err := p.receive()
		if err != nil || f.Request != 1+i || f.Type != wire.Get|wire.ReplyBit {
			t.Fatalf("reply %d: %v %d, %v", i+1, f.Type, f.Request, err)
		}
		descriptors += f.NumFDs
		f.CloseFDs()
	}
	if err := <-sent; err != nil || descriptors != objects {
		t.Errorf("%v, %d descriptors of %d segments", err, descriptors, objects)
	}
}

// A peer that goes while it has not read its replies leaves nothing.
func TestPollerAndAPeerThatGoes(t *testing.T) {
	d := open(t, nobodyLingers)
	maker, p := d.dial(t).hello(), d.dial(t).hello()
	id := maker.object()
	stuck := make(chan struct{})
	go func() {
		defer close(stuck)
		for p.Send(ipc.AppendFrame(nil, wire.Get, 0, 1, &wire.GetRequest{ID: id})) == nil {
		}
	}()
	waitFor(t, func() bool { return maker.refs(id) > 50 })
	p.Shutdown()
	<-stuck
	waitFor(t, func() bool { return maker.refs(id) == 1 && d.Connections() == 1 })
}

// A fault while the poller serves ends that connection alone, and the poller goes on.
func TestPollerSurvivesAPanic(t *testing.T) {
	const faulty = wire.Type(0x7001)
	rows[faulty] = row{atOnce: always, handle: func(*connection, *ipc.Frame) error { panic("a fault of the daemon") }}
	t.Cleanup(func() { delete(rows, faulty) })
	d := open(t, nobodyLingers)
	p, other := d.dial(t).hello(), d.dial(t).hello()
	if _, err := p.ask(faulty, nil); err != io.EOF {
		t.Errorf("got %v, want the end of the connection", err)
	}
	if _, err := other.ask(wire.Get, &wire.GetRequest{ID: other.object()}); err != nil {
		t.Errorf("another connection suffered: %v", err)
	}
}

// heldLog is a log that takes no line until it is released.
type heldLog struct{ released chan struct{} }

func (l heldLog) Write(b []byte) (int, error) {
	<-l.released
	return len(b), nil
}

// A connection that breaks a rule ends, and its peer hears why, though the log takes no line.
func TestBrokenRulesDoNotWaitForTheLog(t *testing.T) {
	held := heldLog{make(chan struct{})}
	d := open(t, func(o *Options) {
		log := logrus.New()
		log.SetOutput(held)
		o.Log = log
	})
	defer close(held.released)
	greeted := d.dial(t).hello()
	greeted.Send(bytes.Repeat([]byte{0xff}, 16))
	broken := d.dial(t)
	broken.send(wire.Status, 1, nil)
	waitFor(t, func() bool { return d.Connections() == 0 })
	greeted.mustEnd(object.ErrProtocol)
	broken.mustEnd(object.ErrProtocol)
}

// The reply to a lazy request waits for the next request that is not lazy, whoever serves them.
func TestLazyReplies(t *testing.T) {
	for name, change := range map[string]func(*Options){"polled": nobodyLingers, "lingering": nil} {
		t.Run(name, func(t *testing.T) {
			d := open(t, change)
			maker, p := d.dial(t).hello(), d.dial(t).hello()
			id := maker.object()
			if f, err := p.ask(wire.Get, &wire.GetRequest{ID: id}); err != nil { // a descriptor would go at once
				t.Fatal(err)
			} else {
				f.CloseFDs()
			}
			for round := range 3 {
				for i := range 5 {
					if err := p.Send(ipc.AppendFrame(nil, wire.Get, ipc.FlagLazy, uint64(10+i),
						&wire.GetRequest{ID: id})); err != nil {
						t.Fatal(err)
					}
				}
				waitFor(t, func() bool { return maker.refs(id) == 2+5*(round+1) })
				if p.Waiting() {
					t.Error("a reply that may wait did not")
				}
				p.send(wire.Hurry, 0, nil)
				for i := range 5 {
					f, err := p.receive()
					if err != nil || f.Request != uint64(10+i) || f.Flags&ipc.FlagLazy != 0 {
						t.Fatalf("reply %d: %+v, %v", i, f.Header, err)
					}
					f.CloseFDs()
				}
			}
			if f, err := p.ask(wire.Hurry, nil); err != nil || f.Type != wire.Hurry|wire.ReplyBit {
				t.Errorf("%+v, %v", f.Header, err)
			}
		})
	}
}

// A tenant that floods the poller over many connections delays another tenant's request by a turn or two, not by all
// that it sent.
func TestPollerIsFair(t *testing.T) {
	const blocking, counting = wire.Type(0x7002), wire.Type(0x7003)
	const floods, each = 8, 1000
	var served, before atomic.Int32
	blocked, release := make(chan struct{}), make(chan struct{})
	rows[blocking] = row{atOnce: always, handle: func(c *connection, f *ipc.Frame) error {
		close(blocked)
		<-release
		c.reply(f, nil)
		return nil
	}}
	rows[counting] = row{atOnce: always, oneWay: true, handle: func(c *connection, f *ipc.Frame) error {
		if c.peer.Tenant == "quiet" {
			before.Store(served.Load())
			c.reply(f, nil)
			return nil
		}
		served.Add(1)
		return nil
	}}
	t.Cleanup(func() { delete(rows, blocking); delete(rows, counting) })
	var tenant atomic.Value
	tenant.Store("loud")
	d := open(t, func(o *Options) {
		nobodyLingers(o)
		o.Tenant = func(uint32, uint32) string { return tenant.Load().(string) }
	})
	var loud []*peer
	for range floods {
		loud = append(loud, d.dial(t).hello())
	}
	blocker := d.dial(t).hello()
	tenant.Store("quiet")
	quiet := d.dial(t).hello()
	blocker.send(blocking, 1, nil)
	<-blocked
	for _, p := range loud {
		if err := p.Send(bytes.Repeat(ipc.AppendFrame(nil, counting, 0, 0, nil), each)); err != nil {
			t.Fatal(err)
		}
	}
	quiet.send(counting, 1, nil)
	close(release)
	if _, err := quiet.receive(); err != nil {
		t.Fatal(err)
	}
	if n := before.Load(); n > 4*turnRequests {
		t.Errorf("%d of a flood's %d requests came first", n, floods*each)
	}
	waitFor(t, func() bool { return served.Load() == floods*each }) // and none of them is forgotten
}

// TestGetOfWhatGoesMeanwhile: an object is on disk when a Get looks, which does not wait, and gone when it is to be
// brought back.
func TestGetOfWhatGoesMeanwhile(t *testing.T) {
	d := open(t, nil)
	p := d.dial(t).hello()
	m := wire.GetRequest{Name: "gone"}
	var all []*connection
	d.mu.Lock()
	for c := range d.conns {
		all = append(all, c)
	}
	d.mu.Unlock()
	for _, c := range all {
		c.stateMu.Lock()
		entered := c.store != nil
		c.stateMu.Unlock()
		if !entered {
			t.Fatal("Hello was answered, and the connection has no store")
		}
		if err := c.beginWaiting(store.PendingBytes); err != nil {
			t.Fatal(err)
		}
		r := &pendingRequest{
			c: c, f: ipc.Frame{Header: ipc.Header{Type: wire.Get, Request: 5}}, bytes: store.PendingBytes,
			wanted: []store.Wanted{{Name: m.Name}},
		}
		r.proceed = func(r *pendingRequest, err error) { r.give(m, (*connection).giveGet, err) }
		go r.fetch()
	}
	f, err := p.receive()
	if err != nil {
		t.Fatal(err)
	}
	if err := decodeError(t, f); f.Request != 5 || !errors.Is(err, object.ErrNotFound) {
		t.Errorf("request %d: %v", f.Request, err)
	}
}

// cutLink is a connection's transport that notes whether requests were refused when it was cut.
type cutLink struct {
	transport
	cut func()
}

func (l cutLink) Shutdown() {
	l.cut()
	l.transport.Shutdown()
}

// The connection of a process that has ended is cut before its requests are refused: what it sent last, and a child of
// its reads the answer to, is answered or is not.
func TestEndedProcessIsCutFirst(t *testing.T) {
	d := open(t, nil)
	d.dial(t).hello()
	var p *connection
	d.mu.Lock()
	for p = range d.conns {
	}
	d.mu.Unlock()
	var cuts, late atomic.Int32
	c := &connection{srv: d.Server, ctx: p.ctx, cancel: p.cancel} // of p what is immutable
	c.link = cutLink{p.link, func() {
		cuts.Add(1)
		if p.ctx.Err() != nil {
			late.Add(1)
		}
	}}
	c.processEnded()
	waitFor(t, func() bool { return cuts.Load() == 2 && d.Connections() == 0 })
	if late.Load() != 1 { // end's own, which follows
		t.Errorf("%d of %d cuts came when requests were refused already", late.Load(), cuts.Load())
	}
}
