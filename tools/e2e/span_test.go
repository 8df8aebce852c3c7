package e2e

import (
	"encoding/json"
	"fmt"
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

// peersOf names a node as a peer of another.
func peersOf(t *testing.T, of, node *rig.Node, address string) {
	t.Helper()
	out, err := node.Run(t.Context(), "peer", "ls", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var own struct {
		Authority string `json:"authority"`
	}
	if err := json.Unmarshal([]byte(out), &own); err != nil || own.Authority == "" {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := of.Run(t.Context(), "peer", "add", address, "--ca", own.Authority); err != nil {
		t.Fatal(err)
	}
	if out, err := of.Run(t.Context(), "peer", "ls"); err != nil || !strings.Contains(out, address) {
		t.Fatalf("%v: %s", err, out)
	}
}

// spanProgram builds the program of random commands.
func spanProgram(t *testing.T) string {
	t.Helper()
	need(t, "cc", noCC)
	program := filepath.Join(t.TempDir(), "span")
	_, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-o", program, "testdata/span.c", "-lOpenCL"))
	need(t, "cc", err)
	return program
}

// TestOneContextOverTwoNodes runs one program natively and on a context over this node's device and another node's: the
// same commands in the same order of events give the same bytes, with a link between the workers and without one.
func TestOneContextOverTwoNodes(t *testing.T) {
	program := spanProgram(t)
	near := node(t)
	there, address, config := far(t)
	over := func(seed int, want, env string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), near.Tendril(), "run", "--server", "local", "--server", address, "--", program, fmt.Sprint(seed), "120")
		cmd.Env = append(rig.Native(), "XDG_CONFIG_HOME="+config, "TENDRIL_SOCKET="+near.Socket(), env)
		var said strings.Builder
		cmd.Stderr = &said
		got, err := cmd.Output()
		if err != nil || string(got) != want {
			t.Fatalf("seed %d, %s: %v: %q, natively %q\n%s", seed, env, err, got, want, said.String())
		}
		if !strings.Contains(said.String(), "2 devices") {
			t.Errorf("not two devices: %s", said.String())
		}
	}
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	natively := func(seed int) string {
		native := exec.CommandContext(t.Context(), program, fmt.Sprint(seed), "120")
		native.Env = rig.Native()
		want, err := rig.Output(native)
		need(t, "driver", err)
		return want
	}
	over(9, natively(9), "TENDRIL_PEERS=")
	if log := near.Log(); !strings.Contains(log, "no link between two workers") || !strings.Contains(log, "peer add HOST:PORT") {
		t.Errorf("the node does not say why its worker has no link, and what to do:\n%s", log)
	}
	peersOf(t, near, there, address)
	for seed := range rounds {
		want := natively(seed + 1)
		over(seed+1, want, "TENDRIL_PEERS=off")
		over(seed+1, want, "TENDRIL_PEERS=on")
	}
	for _, n := range []*rig.Node{near, there} {
		if log := n.Log(); !strings.Contains(log, "two workers are linked") {
			t.Errorf("a node knows of no link:\n%s", log)
		}
	}
}
