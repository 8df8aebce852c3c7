package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"tendril/daemon/inspect"
	"tendril/tools/e2e/rig"
)

// TestSessionKill ends the session of a program that computes for ever, beside one that goes on: on the same node, and
// of another machine, where the program would wait for as long as it takes. Its calls fail, and nothing is left of it.
func TestSessionKill(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, n *rig.Node, env, flags []string) {
		if flags != nil {
			flags = append(flags, "--on-loss", "block")
		}
		stays := steer(t, n, env, 1, flags...)
		before := sessions(t, n)
		victim := steer(t, n, env, 1, flags...)
		victim.tell("stuck kernel")
		victim.want("in kernel")
		for id := range sessions(t, n) {
			if before[id] {
				continue
			}
			if said, err := rig.Output(n.Command(t.Context(), "session", "end", fmt.Sprint(id))); err != nil {
				t.Fatal(err, string(said))
			}
		}
		victim.fails("stuck")
		victim.tell("write 1")
		victim.fails("write")
		by := "its own user"
		if flags != nil { // tenant lab's
			by = "the administrator"
		}
		eventually(t, func() error {
			if said := victim.err.String(); !strings.Contains(said, "was ended by "+by+" with tendril session end") {
				return fmt.Errorf("it was told %q", said)
			}
			return nil
		})
		eventually(t, func() error {
			if left := sessions(t, n); len(left) != 1 || len(workers(t, n)) != 1 {
				return fmt.Errorf("sessions %v, %d workers", left, len(workers(t, n)))
			}
			return nil
		})
		stays.tell("write 1")
		stays.want("write 0")
	})
}

// TestSessionShow: what a session has in flight, which kernel that is and for how long, where its time went: on the
// same node and of another machine. A worker that does not answer holds nobody up, and is named. Nobody else may look.
func TestSessionShow(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, n *rig.Node, env, flags []string) {
		if flags != nil {
			flags = append(flags, "--on-loss", "block")
		}
		p := steer(t, n, env, 1, flags...)
		p.tell("write 1")
		p.want("write 0")
		p.tell("stuck kernel")
		p.want("in kernel")
		var id string
		for x := range sessions(t, n) {
			id = fmt.Sprint(x)
		}
		var told inspect.Commands
		show := func() error {
			raw, err := rig.Output(n.Command(t.Context(), "session", "show", id, "--json"))
			if err == nil {
				told = inspect.Commands{}
				err = json.Unmarshal([]byte(raw), &told)
			}
			return err
		}
		eventually(t, func() error {
			err := show()
			if err == nil && (len(told.InFlight) == 0 || told.InFlight[0].Kernel != "spin" ||
				told.InFlight[0].State != "running" || told.InFlight[0].Device == "") {
				err = fmt.Errorf("in flight: %+v", told)
			}
			return err
		})
		far := flags != nil // else the program writes by itself
		if told.Session != id || far && (len(told.Sums) == 0) {
			t.Errorf("%+v", told)
		}
		plain, err := rig.Output(n.Command(t.Context(), "session", "show", id))
		if err != nil || !strings.Contains(plain, "spin") || !strings.Contains(plain, "running") {
			t.Errorf("%v %s", err, plain)
		}
		for pid := range workers(t, n) {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer syscall.Kill(pid, syscall.SIGCONT)
		}
		eventually(t, func() error { // the stop begins when one thread takes the signal: others may answer until then
			if err := show(); err != nil || len(told.Notes) == 0 {
				return fmt.Errorf("of a worker that is being stopped: %v, %+v", err, told)
			}
			return nil
		})
		for range 2 {
			if err := show(); err != nil || len(told.Notes) != 1 || !strings.Contains(told.Notes[0], "does not answer") {
				t.Errorf("of a worker that is stopped: %v, %+v", err, told)
			}
		}
		for pid := range workers(t, n) {
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, func() error {
			if err := show(); err != nil || len(told.Notes) > 0 || len(told.InFlight) == 0 {
				return fmt.Errorf("once it goes on: %v, %+v", err, told)
			}
			return nil
		})
		for _, wrong := range []string{"999", "spin", "0"} {
			if out, err := rig.Output(n.Command(t.Context(), "session", "show", wrong)); err == nil {
				t.Errorf("session %s: %s", wrong, out)
			}
		}
	})
}

// sessions are the numbers of those that are open now.
func sessions(t *testing.T, n *rig.Node) map[uint64]bool {
	t.Helper()
	s, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open := map[uint64]bool{}
	for _, x := range s.Sessions {
		open[x.ID] = true
	}
	return open
}
