package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tendril/tools/e2e/rig"
)

// A program that hangs is ended, and the report names what the program, the worker and the daemon are in: the next hang
// explains itself.
func TestHungProgramSaysWhere(t *testing.T) {
	n := node(t)
	p := steer(t, n, nil, 1)
	p.tell("stuck finish")
	p.want("in finish")
	lacks := func(said string, wants ...string) error {
		for _, want := range wants {
			if !strings.Contains(said, want) {
				return fmt.Errorf("%q is not in the report: %s", want, said)
			}
		}
		return nil
	}
	eventually(t, func() error { // it is about to call it, and who has no processor says nothing in time
		return lacks(rig.Where(p.cmd.Process.Pid), "tdlFinish", "frontdoor.", "forwarding/worker.")
	})
	err := rig.Await(p.cmd, time.Millisecond)
	if !errors.Is(err, rig.ErrHung) {
		t.Fatalf("%v", err)
	}
	if lack := lacks(err.Error(), "/states", "tendril daemon", "tendril worker", "system call"); lack != nil {
		t.Error(lack)
	}
	eventually(t, idle(t.Context(), n)) // it was killed; the daemon was not
}
