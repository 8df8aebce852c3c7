package daemon

import (
	"testing"
	"time"

	"tendril/daemon/leases"
	"tendril/daemon/workers"
	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// TestIdleLeases: a lease is idle once its workers have had no command for the time, and say so.
func TestIdleLeases(t *testing.T) {
	working := func(told clwire.WorkerCommands) workers.Commands { return workers.Commands{Told: told} }
	sums := func(n uint64) clwire.WorkerCommands {
		return clwire.WorkerCommands{Sums: []clwire.CommandSum{{Count: n}}}
	}
	last := func(ago float64) clwire.WorkerCommands {
		x := sums(7)
		x.Last = []clwire.CommandEnded{{Ago: ago}}
		return x
	}
	const look = 30 * time.Second
	for name, x := range map[string]struct {
		over bool
		told func(look int) []workers.Commands
		idle int // the look at which it is idle; 0: it never is
	}{
		"nothing runs": {told: func(int) []workers.Commands { return []workers.Commands{working(sums(7))} }, idle: 20},
		"a command now and then": {told: func(n int) []workers.Commands {
			return []workers.Commands{working(sums(uint64(n / 19)))}
		}},
		"one that stopped": {told: func(n int) []workers.Commands {
			return []workers.Commands{working(sums(uint64(min(n, 10))))}
		}, idle: 30},
		"a long command": {told: func(int) []workers.Commands {
			return []workers.Commands{working(clwire.WorkerCommands{Flying: []clwire.CommandFlying{{}}})}
		}},
		"a call of the driver": {told: func(int) []workers.Commands {
			return []workers.Commands{working(clwire.WorkerCommands{Calls: []clwire.DriverCall{{}}})}
		}},
		"commands of kinds that are not told": {told: func(int) []workers.Commands {
			return []workers.Commands{working(last(29))}
		}},
		"commands of before": {told: func(n int) []workers.Commands {
			return []workers.Commands{working(last(float64(n+1) * look.Seconds()))}
		}, idle: 20},
		"one of two works": {told: func(n int) []workers.Commands {
			return []workers.Commands{working(sums(7)), working(sums(uint64(n)))}
		}},
		"no worker": {told: func(int) []workers.Commands { return nil }},
		"a worker that is silent": {told: func(int) []workers.Commands {
			return []workers.Commands{{Err: object.ErrTimeout}}
		}},
		"over nodes": {over: true,
			told: func(int) []workers.Commands { return []workers.Commands{working(sums(7))} }},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Daemon{sessions: newSessions(), cfg: Config{LeaseIdle: 10 * time.Minute}}
			l := &leases.Lease{Number: 1, Tenant: "ann"}
			if x.over {
				l.ID = "over"
			}
			d.sessions.byID[1] = &session{id: 1, lease: l}
			d.sessions.byID[2] = &session{id: 2}
			uses, at := map[*leases.Lease]leaseUse{}, time.Now()
			for n := range 100 {
				idle := d.idleLeases(uses, at, func(session uint64) []workers.Commands {
					if session != 1 {
						t.Fatalf("session %d has no lease, and is asked", session)
					}
					return x.told(n)
				})
				if (len(idle) > 0) != (x.idle > 0 && n >= x.idle) {
					t.Fatalf("look %d: %d are idle, want that from %d on", n, len(idle), x.idle)
				}
				at = at.Add(look)
			}
			delete(d.sessions.byID, 1)
			if d.idleLeases(uses, at, nil); len(uses) > 0 {
				t.Error("what has ended is remembered")
			}
		})
	}
}
