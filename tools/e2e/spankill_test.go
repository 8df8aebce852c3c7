package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"tendril/tools/e2e/rig"
)

// A daemon or worker of one node is killed under random commands in a context over two nodes whose workers are linked:
// calls return, those of the device that is gone with errors, and the other device works, in that context and in a new
// one.
func TestKilledBesideAnotherNode(t *testing.T) {
	t.Parallel()
	need(t, "driver", hasDriver())
	program := cProgram(t, "testdata/killed.c")
	for _, what := range []string{"daemon", "worker"} {
		for gone, which := range []string{"this machine's", "the other's"} {
			t.Run(fmt.Sprintf("%s %s", which, what), func(t *testing.T) {
				killedBeside(t, program, gone, what)
			})
		}
	}
}

func killedBeside(t *testing.T, program string, gone int, what string) {
	near := node(t)
	there, address, config := far(t)
	peersOf(t, near, there, address)
	nodes := [2]*rig.Node{near, there}
	cmd := near.Command(t.Context(), "run", "--on-loss", "1", "--server", "local", "--server", address, "--", program,
		fmt.Sprint(1-gone))
	// A node that is only slow is none that was killed, and would have a second to come back.
	cmd.Env = append(near.Env(), "XDG_CONFIG_HOME="+config, "TENDRIL_DEADLINE=120")
	var complaint rig.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	watch := rig.WatchOver(cmd, limit)
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if lines.Text() != "ready" {
			continue
		}
		if what == "daemon" {
			nodes[gone].Kill()
			continue
		}
		for _, pid := range servingPIDs(t, nodes[gone], 1) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if err := errors.Join(cmd.Wait(), watch.End()); err != nil ||
		strings.Join(said, "; ") != "ready; the other works; alone too; released" {
		t.Errorf("%v: %q\n%s", err, said, complaint.String())
	}
	eventually(t, func() error {
		if s, err := nodes[1-gone].Status(t.Context()); err != nil || len(s.Sessions) != 0 ||
			len(workers(t, nodes[1-gone])) != 0 {
			return fmt.Errorf("%v: sessions %+v, workers %v are left", err, s.Sessions, workers(t, nodes[1-gone]))
		}
		return nil
	})
}
