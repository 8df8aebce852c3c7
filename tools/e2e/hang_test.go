package e2e

import (
	"errors"
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
	eventually(t, func() error { // it is about to call it
		if where := rig.Where(p.cmd.Process.Pid); !strings.Contains(where, "tdlFinish") {
			return errors.New("the program is not in clFinish: " + where)
		}
		return nil
	})
	err := rig.Await(p.cmd, time.Millisecond)
	if !errors.Is(err, rig.ErrHung) {
		t.Fatalf("%v", err)
	}
	said := err.Error()
	for _, want := range []string{"/states", "tdlFinish", "tendril daemon", "frontdoor.", "tendril worker",
		"forwarding/worker.", "system call"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in the report", want)
		}
	}
	if t.Failed() {
		t.Log(said)
	}
	eventually(t, idle(t.Context(), n)) // it was killed; the daemon was not
}
