package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"tendril/daemon/frontdoor"
	"tendril/daemon/inspect"
	"tendril/daemon/workers"
	"tendril/store/object"
)

// SessionCommands implements frontdoor.Observer.
func (d *Daemon) SessionCommands(ctx context.Context, p frontdoor.Peer, session uint64) ([]byte, error) {
	told, err := d.sessionCommands(ctx, session, func(tenant string) bool { return p.Admin || tenant == p.Tenant })
	if err != nil {
		return nil, err
	}
	return json.Marshal(told)
}

// Commands implements inspect.Source.
func (l *look) Commands(v inspect.Viewer, session uint64) (inspect.Commands, error) {
	tenant, all := l.sees(v)
	return (*Daemon)(l).sessionCommands(l.ctx, session, func(of string) bool { return all || of == tenant })
}

// sessionCommands asks a session's workers what they have in flight. The daemon knows nothing of commands by itself.
func (d *Daemon) sessionCommands(ctx context.Context, session uint64, may func(tenant string) bool) (
	told inspect.Commands, err error) {
	s, err := d.sessions.get(session)
	if err != nil {
		return told, err
	}
	if !may(s.peer.Tenant) {
		return told, fmt.Errorf("%w: session %d is of another tenant", object.ErrPermission, session)
	}
	told = inspect.Commands{Session: strconv.FormatUint(session, 10), InFlight: []inspect.Command{},
		Last: []inspect.EndedCommand{}, Sums: []inspect.CommandSum{}, Calls: []inspect.DriverCall{}, Notes: []string{}}
	for _, w := range d.pool.Commands(ctx, session) {
		addCommands(&told, w)
	}
	return told, nil
}

// addCommands adds what one worker says. Nothing of it is believed: it is shown to who may see the worker's session.
func addCommands(told *inspect.Commands, w workers.Commands) {
	id := strconv.FormatUint(w.Worker, 10)
	if w.Err != nil {
		told.Notes = append(told.Notes, w.Err.Error())
		return
	}
	device := func(index uint32) string {
		if list := w.Platform.Snapshot.Devices; uint64(index) < uint64(len(list)) {
			return list[index].UUID
		}
		return "" // a sub-device
	}
	if w.Told.Unasked {
		told.Notes = append(told.Notes, fmt.Sprintf("worker %s: the driver does not say what runs: a call holds it up", id))
	}
	if told.More += w.Told.More; told.More < w.Told.More {
		told.More = math.MaxUint64
	}
	for _, x := range w.Told.Flying {
		told.InFlight = append(told.InFlight, inspect.Command{Worker: id, Queue: x.Queue, Device: device(x.Device),
			Kind: x.Kind, Kernel: x.Kernel, State: x.State, AgeSeconds: believable(x.Seconds)})
	}
	for _, x := range w.Told.Last {
		told.Last = append(told.Last, inspect.EndedCommand{Worker: id, Queue: x.Queue, Device: device(x.Device),
			Kind: x.Kind, Kernel: x.Kernel, Status: x.Status, Seconds: believable(x.Seconds),
			AgoSeconds: believable(x.Ago)})
	}
	for _, x := range w.Told.Sums {
		told.Sums = append(told.Sums, inspect.CommandSum{Worker: id, Kind: x.Kind, Kernel: x.Kernel, Count: x.Count,
			Failed: x.Failed, Timed: x.Timed, Seconds: believable(x.Seconds)})
	}
	for _, x := range w.Told.Calls {
		told.Calls = append(told.Calls, inspect.DriverCall{Worker: id, PID: w.PID, What: x.What, Queue: x.Queue,
			Seconds: believable(x.Seconds)})
	}
}

// mostSeconds is what a worker may say of a time: some 30 years, which every reader can show.
const mostSeconds = 1e9

func believable(seconds float64) float64 { return min(max(seconds, 0), mostSeconds) }
