package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

// A program reaches a node by ssh alone, which carries each of its connections, and the node over TCP in the same list of
// servers. The ssh here runs the command on this machine.
func TestProgramsOverSSH(t *testing.T) {
	n, p := middle(t)
	dir := t.TempDir()
	ssh, called := filepath.Join(dir, "ssh"), filepath.Join(dir, "called")
	script := fmt.Sprintf("#!/bin/sh\necho called >>%s\nfor last; do :; done\nTENDRIL_SOCKET=%s PATH=%s:$PATH exec sh -c \"$last\"\n", called, n.Socket(), n.Bin)
	if err := os.WriteFile(ssh, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, servers := range [][]string{{"ssh://gpubox"}, {"ssh://gpubox", p.Address()}} {
		args := []string{"run"}
		for _, s := range servers {
			args = append(args, "--server", s)
		}
		cmd := n.Command(t.Context(), append(args, "--", session)...)
		cmd.Env, cmd.Stdin = append(cmd.Env, "TENDRIL_SSH="+ssh), strings.NewReader(wholeScript)
		out, err := rig.Output(cmd)
		if err != nil || strings.Contains(out, "wrong") || !strings.Contains(out, "good") {
			t.Errorf("%v: the program said %q, %v", servers, out, err)
		}
	}
	// The control connection, the control stream and at least one lane, twice.
	if calls, err := os.ReadFile(called); err != nil || strings.Count(string(calls), "called") < 6 {
		t.Errorf("ssh was called so: %q, %v", calls, err)
	}
}
