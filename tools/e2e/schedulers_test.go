package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tendril/tools/e2e/rig"
)

// packaged is the path of a file of packaging/.
func packaged(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "packaging", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// programAt is a program that reaches a node by its environment.
func programAt(t *testing.T, n *rig.Node, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = n.Env()
	return cmd
}

// withPath has a command find tendril, and programs of a directory before all others.
func withPath(cmd *exec.Cmd, n *rig.Node, dir string) *exec.Cmd {
	cmd.Env = append(cmd.Env, "PATH="+dir+":"+filepath.Dir(n.Tendril())+":"+os.Getenv("PATH"))
	return cmd
}

// script makes a shell script.
func script(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// The nodes of a DaemonSet become one cluster by the addresses of their service, of which one is nobody's and one is
// this node's own.
func TestNodesJoinByAHeadlessService(t *testing.T) {
	t.Parallel()
	a := node(t, "TENDRIL_LISTEN=127.0.0.1:0", "TENDRIL_NODE_NAME=a")
	b := node(t, "TENDRIL_LISTEN=127.0.0.1:0", "TENDRIL_NODE_NAME=b")
	at, err := a.Listening(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(at, ":")
	dir := t.TempDir()
	script(t, filepath.Join(dir, "getent"), "echo 127.0.0.9 STREAM nodes; echo "+host+" STREAM; echo 127.0.0.3 STREAM")
	tokens := filepath.Join(dir, "token")
	join := withPath(programAt(t, b, packaged(t, "kubernetes/join.sh")), b, dir)
	join.Env = append(join.Env, "TENDRIL_NODES=nodes", "POD_IP=127.0.0.9", "TENDRIL_TOKENS="+tokens, "TENDRIL_PORT="+port,
		"JOIN_PAUSE=0.2")
	out := new(rig.Buffer)
	join.Stdout, join.Stderr = out, out
	if err := join.Start(); err != nil {
		t.Fatal(err)
	}
	token, err := a.Run(t.Context(), "token", "create", "--role", "node") // later than the pod's start
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tokens+".new", []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tokens+".new", tokens); err != nil {
		t.Fatal(err)
	}
	if err := rig.Await(join, limit); err != nil || !strings.Contains(out.String(), "with 1 others") {
		t.Fatalf("join.sh: %v: %s", err, out)
	}
	var status struct {
		Nodes []struct{} `json:"nodes"`
	}
	text, err := a.Run(t.Context(), "cluster", "status", "--json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &status)
	}
	if err != nil || len(status.Nodes) != 2 {
		t.Errorf("%d nodes, %v", len(status.Nodes), err)
	}
}

// A task has what Slurm's prolog prints as its environment: its programs lease as many devices as the job has GPUs.
func TestSlurmsTaskProlog(t *testing.T) {
	t.Parallel()
	need(t, "clinfo", installed("clinfo"))
	n := node(t)
	prolog := func(gpus string) string {
		cmd := withPath(programAt(t, n, packaged(t, "slurm/task-prolog.sh")), n, t.TempDir())
		cmd.Env = append(cmd.Env, "TENDRIL_SLURM_DEVICES=type=cpu", "SLURM_GPUS_ON_NODE="+gpus)
		out, err := rig.Output(cmd)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if said := prolog("0"); said != "" {
		t.Errorf("a job without GPUs: %q", said)
	}
	task := programAt(t, n, "clinfo", "--list")
	leases := false
	for line := range strings.Lines(prolog("1")) {
		if v, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "export "); ok {
			task.Env = append(task.Env, v)
			leases = leases || v == "TENDRIL_LEASE=1"
		}
	}
	if out, err := rig.Output(task); err != nil || !strings.Contains(string(out), "Device #0") || !leases {
		t.Errorf("the task says %q, %v; leases: %v", out, err, leases)
	}
}

// What Nomad's job runs, as Nomad's raw_exec runs it.
func TestNomadsJob(t *testing.T) {
	t.Parallel()
	need(t, "clinfo", installed("clinfo"))
	n := node(t)
	job, err := os.ReadFile(packaged(t, "nomad/example.nomad.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`args\s*=\s*(\[.*\])`).FindSubmatch(job)
	var args []string
	if list == nil || json.Unmarshal(list[1], &args) != nil {
		t.Fatalf("no args in the job: %s", job)
	}
	out, err := rig.Output(withPath(n.Command(t.Context(), args...), n, t.TempDir()))
	if err != nil || !strings.Contains(string(out), "Device #0") {
		t.Errorf("the job says %q, %v", out, err)
	}
}
