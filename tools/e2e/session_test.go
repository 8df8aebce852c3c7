package e2e

import (
	"fmt"
	"testing"

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
			if said, err := rig.Output(n.Command(t.Context(), "session", "kill", fmt.Sprint(id))); err != nil {
				t.Fatal(err, string(said))
			}
		}
		victim.fails("stuck")
		victim.tell("write 1")
		victim.fails("write")
		if left := sessions(t, n); len(left) != 1 || len(workers(t, n)) != 1 {
			t.Errorf("sessions %v, %d workers", left, len(workers(t, n)))
		}
		stays.tell("write 1")
		stays.want("write 0")
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
