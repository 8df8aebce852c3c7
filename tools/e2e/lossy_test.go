package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tendril/tools/e2e/lossy"
	"tendril/tools/e2e/rig"
)

// A session over a link that loses and reorders packets computes what it should, and ends as it should.
func TestSessionOverALinkThatLosesPackets(t *testing.T) {
	t.Parallel()
	networks(t)
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	link, err := lossy.Lay(fmt.Sprintf("te%d", os.Getpid()),
		lossy.Quality{Delay: 2 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.03})
	if err != nil {
		t.Skipf("skipped: this machine makes no such link: %v", err)
	}
	t.Cleanup(func() {
		if err := link.Close(); err != nil {
			t.Error(err)
		}
	})
	at := lossy.There + ":7433"
	n := nodeInside(t, link.InsideThere(), "TENDRIL_LISTEN="+at)
	token, err := n.Run(t.Context(), "token", "create", "--tenant", "lab")
	if err != nil {
		t.Fatal(err)
	}
	config := t.TempDir()
	here := func(words string, args ...string) string {
		argv := append(link.InsideHere(), append([]string{n.Tendril()}, args...)...)
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env, cmd.Stdin = append(rig.Native(), "XDG_CONFIG_HOME="+config, "TENDRIL_STACKS="+config),
			strings.NewReader(words)
		out, err := rig.Output(cmd)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	here(token, "login", at)
	words, want := "open\n", ""
	for i := range 20 {
		words += fmt.Sprintf("add %d\nverify\n", i)
		want += "add 0\ngood\n"
	}
	out := here(words, "run", "--server", at, "--", session)
	if _, said, _ := strings.Cut(out, "\n"); said != want {
		t.Errorf("%q, want %q", said, want)
	}
	if _, lost := link.Packets(); lost == 0 {
		t.Error("no packet was lost")
	}
	eventually(t, idle(t.Context(), n))
}
