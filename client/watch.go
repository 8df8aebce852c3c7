package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// The kinds of events that are not the daemon's, or that say nothing of an object.
const (
	// EventLost: some events are missing, list again: the caller was slow, or the daemon was away.
	EventLost = "lost"
	// EventDisconnected: the daemon went. Events come again after EventLost, when there is one.
	EventDisconnected = "disconnected"
)

// Event is something that happened to an object: "sealed", "named", "unnamed" (it has that name no more: it was
// renamed, another took its name, or it was deleted and a composite has it), "gone" (its last), "spilled", "restored";
// or one of the kinds above.
type Event struct {
	Kind      string    `json:"event"`
	ID        object.ID `json:"id"`
	Name      string    `json:"name"`
	SizeBytes uint64    `json:"size_bytes"`
	At        time.Time `json:"at"`
}

const watchPauseMost = 2 * time.Second // between tries to connect again

// Watch calls f with each event of this tenant's objects whose name begins with prefix, in order, until ctx ends or f
// answers an error, which comes back; began, which may be nil, is called once listening has begun. It uses a connection
// of its own. Where the daemon goes f gets EventDisconnected, then Watch waits for the next daemon, as long as ctx lets
// it, and f gets EventLost; with Options.NoReconnect it ends with ErrDisconnected instead.
func Watch(ctx context.Context, o Options, prefix string, began func(), f func(Event) error) error {
	w := &watch{ctx: ctx, o: o, prefix: prefix, began: began, f: f}
	w.o.NoReconnect = true // it does that itself
	err := w.once()
	for errors.Is(err, ErrDisconnected) && w.listened && w.failed == nil && !o.NoReconnect {
		if err = w.tell(EventDisconnected); err == nil {
			err = w.again()
		}
	}
	return err
}

// watch is one Watch.
type watch struct {
	ctx      context.Context
	o        Options
	prefix   string
	began    func()
	f        func(Event) error
	listened bool  // began was called
	failed   error // f's error
	resumed  bool  // the connection at hand is not the first
}

// again listens to the next daemon, after random pauses until there is one.
func (w *watch) again() error {
	for pause := firstPause; ; pause = min(2*pause, watchPauseMost) {
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
		w.resumed = false
		err := w.once()
		if w.resumed || !errors.Is(err, ErrDisconnected) && !errors.Is(err, object.ErrBusy) {
			return err // it listened, or trying goes no further
		}
	}
}

// once listens to one daemon until it goes.
func (w *watch) once() error {
	c, err := Dial(w.ctx, w.o)
	if err != nil {
		return err
	}
	defer c.Close()
	w.o.Socket = c.socket // it stays with this daemon, and the next one there
	c.sendMu.Lock()
	c.out = ipc.AppendFrame(c.out, wire.Watch, 0, c.next+1, &wire.WatchRequest{Prefix: w.prefix})
	err = c.write()
	c.sendMu.Unlock()
	for err == nil {
		err = w.receive(c)
	}
	return err
}

// receive handles one frame. Nobody else reads this connection.
func (w *watch) receive(c *Conn) error {
	frame, err := c.link.Receive(w.ctx.Err)
	if err != nil {
		if w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		return c.disconnected(err)
	}
	defer frame.CloseFDs()
	switch {
	case frame.Type == wire.Error && frame.Request == 0:
		return c.deliverError(nil, &frame)
	case frame.Type == wire.Error:
		var m wire.ErrorReply
		if err := m.Decode(frame.Payload); err != nil {
			return err
		}
		return object.FromCode(m.Code, m.Text)
	case frame.Type != wire.Watch|wire.ReplyBit:
		return fmt.Errorf("%w: %v to a Watch", object.ErrProtocol, frame.Type)
	case len(frame.Payload) == 0:
		return w.begin()
	}
	var ev Event
	if err := json.Unmarshal(frame.Payload, &ev); err != nil {
		return fmt.Errorf("%w: event: %w", object.ErrProtocol, err)
	}
	w.failed = w.f(ev)
	return w.failed
}

// begin notes that the daemon listens for this connection.
func (w *watch) begin() error {
	if w.listened {
		w.resumed = true
		return w.tell(EventLost)
	}
	w.listened = true
	if w.began != nil {
		w.began()
	}
	return nil
}

// tell is an event of this side's own.
func (w *watch) tell(kind string) error {
	w.failed = w.f(Event{Kind: kind, At: time.Now().UTC()})
	return w.failed
}
