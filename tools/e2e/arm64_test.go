package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"tendril/tools/e2e/rig"
)

type object struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State string `json:"state"`
	Size  int64  `json:"size_bytes"`
}

func objects(t *testing.T, listing string) []object {
	t.Helper()
	var all []object
	if err := json.Unmarshal([]byte(listing), &all); err != nil {
		t.Fatalf("ls --json: %v\n%.300s", err, listing)
	}
	return all
}

// TestARM64 runs the client half, built for arm64, against this machine's daemon.
func TestARM64(t *testing.T) {
	t.Parallel()
	qemu, err := exec.LookPath("qemu-aarch64-static")
	if runtime.GOARCH != "amd64" {
		err = fmt.Errorf("this is %s", runtime.GOARCH)
	}
	need(t, "qemu", err)
	if testing.Short() {
		t.Skip("skipped: builds the program for another architecture")
	}
	n := node(t)
	program := filepath.Join(t.TempDir(), "tendril")
	build := exec.Command("go", "build", "-ldflags=-w", "-gcflags=all=-l -dwarf=false", // as make test-vet has
		"-o", program, "tendril/tools/tendril")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=arm64")
	if _, err := rig.OutputWithin(build, 3*limit); err != nil {
		t.Fatal(err)
	}
	arm := func(stdin []byte, args ...string) string {
		t.Helper()
		cmd := exec.Command(qemu, append([]string{program}, args...)...)
		cmd.Env = n.Env()
		cmd.Stdin = bytes.NewReader(stdin)
		out, err := rig.Output(cmd)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	data := make([]byte, 3<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	arm(data, "put", "-", "--name", "from-arm")
	got, err := n.Run(t.Context(), "get", "from-arm", "-o", "-")
	if err != nil || got != string(data) {
		t.Errorf("what arm64 put is not what amd64 gets: %v", err)
	}
	if got := arm(nil, "get", "from-arm", "-o", "-"); got != string(data) {
		t.Error("what arm64 put is not what arm64 gets")
	}
	if list := objects(t, arm(nil, "ls", "--json")); len(list) != 1 || list[0].Name != "from-arm" {
		t.Errorf("ls: %+v", list)
	}
	arm(nil, "rm", "from-arm")
}
