package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril/client"
	"tendril/forwarding/cuda/fakecuda"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// An object goes into a device's memory from host memory, from another device, and by its ID; its name goes along where
// it is free. What is there already stays.
func TestGetIntoTheMemoryOfADevice(t *testing.T) {
	n := startNode(t, "--cuda-driver", fakecuda.Build(t), "--capacity", "256MiB")
	what := pattern(3<<20 + 11)
	n.want(0, nil, "put", n.file("host", what))
	same := func(name string) {
		t.Helper()
		if out := n.want(0, nil, "get", name, "-o", "-"); out != string(what) {
			t.Errorf("%s has other bytes", name)
		}
	}
	n.want(exitExists, []string{"--replace", "named \"host\""}, "get", "host", "--device", "cuda:0")
	n.want(0, []string{"first"}, "get", "host", "--device", "cuda:0", "--name", "first")
	n.want(0, []string{`"kind": "cuda"`}, "stat", "first", "--json")
	same("first")
	n.want(0, []string{"first"}, "get", "first", "--device", "cuda:0") // it is there
	await.Until(t, "two objects: host, first, and what has ended is gone", func() bool {
		return strings.Count(n.want(0, nil, "ls", "--json"), `"id"`) == 2
	})
	id := strings.Fields(n.want(0, nil, "get", "first", "--device", "cuda:1", "--name", "second"))[0]
	same("second")
	n.want(exitExists, nil, "get", id, "--device", "cuda:0")
	n.want(0, nil, "get", id, "--device", "cuda:0", "--replace")
	if out := n.want(0, nil, "stat", "second", "--json"); strings.Contains(out, id) {
		t.Errorf("the name stayed with the old one: %s", out)
	}
	same("second")
	n.want(0, []string{"host"}, "get", "host", "--device", "cuda:1", "--replace")
	n.want(0, []string{`"kind": "cuda"`}, "stat", "host", "--json")
	same("host")
	n.want(exitNoDevice, []string{"tendril devices"}, "get", "host", "--device", "cuda:7", "--name", "x")
	n.want(exitNotFound, nil, "get", "none", "--device", "cuda:0")
	n.want(exitTimeout, nil, "get", "none", "--device", "cuda:0", "--wait", "20ms")
	n.want(exitTimeout, nil, "get", "id:"+n.unsealedOnGPU().String(), "--device", "cuda:0", "--wait", "20ms")
	for _, wrong := range [][]string{{"--name", "x"}, {"--replace"}, {"--device", "gpu"}, {"--device", ""},
		{"--device", "cuda:0", "-o", "-"}, {"--device", "cuda:0", "--length", "3"}} {
		n.want(exitUsage, nil, append([]string{"get", "host"}, wrong...)...)
	}
	n.want(0, nil, "rm", "host", "first", "second")
}

// unsealedOnGPU makes an object in the memory of the first GPU that stays unsealed until the test ends.
func (n *node) unsealedOnGPU() object.ID {
	n.t.Helper()
	conn, err := client.Dial(n.t.Context(), client.Options{Socket: n.socket})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	gpu, err := conn.FindGPU(n.t.Context(), "cuda:0")
	if err != nil {
		n.t.Fatal(err)
	}
	b, err := conn.CreateDevice(n.t.Context(), gpu, 1, client.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return b.ID()
}

// What lies in a device's memory is got from another machine, in whole and in part.
func TestGetFromADeviceOfAnotherMachine(t *testing.T) {
	n, at := farNode(t, "--cuda-driver", fakecuda.Build(t), "--capacity", "128MiB")
	what := pattern(5<<20 + 13)
	n.want(0, nil, "put", n.file("there", what), "--device", "cuda:0")
	n.want(0, nil, "login", at, "--token", strings.TrimSpace(n.want(0, nil, "token", "create", "--tenant",
		fmt.Sprintf("uid:%d", os.Getuid()))))
	out := filepath.Join(n.dir, "out")
	n.want(0, nil, "--server", at, "get", "there", "-o", out)
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, what) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	n.want(0, nil, "--server", at, "get", "there", "--offset", "1048570", "--length", "2MiB", "-o", out)
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, what[1048570:][:2<<20]) {
		t.Errorf("a part: %d bytes, %v", len(got), err)
	}
	n.want(exitUsage, []string{"--device"}, "--server", at, "get", "there", "--device", "cuda:0")
}
