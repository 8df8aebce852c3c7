package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

// far starts a node that other machines may come to, and logs a fresh user's configuration in. It returns the address
// and that configuration's directory.
func far(t *testing.T) (n *rig.Node, address, config string) {
	t.Helper()
	n, err := rig.Start(t.Context(), bin, "TENDRIL_LISTEN=127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	out, err := n.Run(t.Context(), "token", "create", "--once", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var token struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal([]byte(out), &token); err != nil || token.Token == "" {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err = n.Run(t.Context(), "status", "--json"); err != nil {
		t.Fatal(err)
	}
	var status struct {
		Node struct {
			Listen string `json:"listen"`
		} `json:"node"`
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil || status.Node.Listen == "" {
		t.Fatalf("%v: %s", err, out)
	}
	address, config = status.Node.Listen, t.TempDir()
	login := n.Command(t.Context(), "login", address, "--token", token.Token)
	login.Env = append(rig.Native(), "XDG_CONFIG_HOME="+config)
	if _, err := rig.Output(login); err != nil {
		t.Fatal(err)
	}
	return n, address, config
}

// TestOneContextOverTwoNodes runs one program natively and on a context over this node's device and another node's: the
// same commands in the same order of events give the same bytes.
func TestOneContextOverTwoNodes(t *testing.T) {
	need(t, "cc", noCC)
	near := node(t)
	_, address, config := far(t)
	program := filepath.Join(t.TempDir(), "span")
	_, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-o", program, "testdata/span.c", "-lOpenCL"))
	need(t, "cc", err)
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	for seed := range rounds {
		args := []string{fmt.Sprint(seed + 1), "120"}
		native := exec.CommandContext(t.Context(), program, args...)
		native.Env = rig.Native()
		want, err := rig.Output(native)
		need(t, "driver", err)
		over := exec.CommandContext(t.Context(), near.Tendril(), append([]string{"run", "--server", "local", "--server", address, "--", program}, args...)...)
		over.Env = append(rig.Native(), "XDG_CONFIG_HOME="+config, "TENDRIL_SOCKET="+near.Socket())
		var said strings.Builder
		over.Stderr = &said
		got, err := over.Output()
		if err != nil || string(got) != want {
			t.Fatalf("seed %d: %v: %q, natively %q\n%s", seed+1, err, got, want, said.String())
		}
		if !strings.Contains(said.String(), "2 devices") {
			t.Errorf("not two devices: %s", said.String())
		}
	}
	if _, err := os.Stat(near.Socket()); err != nil {
		t.Error(err)
	}
}
