package main

import (
	"encoding/json"
	"strings"
	"testing"

	"tendril/forwarding/cuda/fakecuda"
)

// gpuFindings runs the doctor, and gives what it found of each GPU, by way.
func gpuFindings(t *testing.T, n *node) map[string]map[string]finding {
	t.Helper()
	_, out, errs := n.run("", "doctor", "--json")
	var list []finding
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	found := map[string]map[string]finding{}
	for _, f := range list {
		if f.GPU == "" {
			continue
		}
		if found[f.GPU] == nil {
			found[f.GPU] = map[string]finding{}
		}
		found[f.GPU][f.Way] = f
	}
	return found
}

// The doctor tries every way to the memory of each GPU, in other processes, and measures the copies.
func TestDoctorLooksAtGPUs(t *testing.T) {
	t.Setenv("CUDA_FAKE_BYTES", "268435456")
	n := startNode(t, "--cuda-driver", fakecuda.Build(t), "--capacity", "256MiB")
	found := gpuFindings(t, n)
	if len(found) != 2 {
		t.Fatalf("%+v", found)
	}
	for gpu, ways := range found {
		for way, rate := range map[string]bool{"make an object": false, "another process imports it, and writes": false,
			"a third process reads it": false, "the keeper copies it to host memory": true,
			"the keeper copies host memory to it": true} {
			if f := ways[way]; f.State != good || f.MS <= 0 || rate != (f.GBPerSecond > 0) {
				t.Errorf("%s: %s: %+v", gpu, way, f)
			}
		}
		if f := ways["an OpenCL program reads it"]; f.State != notable || !strings.Contains(f.Found, "no OpenCL device") ||
			f.Do == "" {
			t.Errorf("%s: %+v", gpu, f)
		}
		across := 0
		for way, f := range ways {
			if strings.HasPrefix(way, "the keeper copies it to GPU") && f.State == good && f.GBPerSecond > 0 {
				across++
			}
		}
		if want := map[bool]int{true: 1, false: 0}[strings.HasPrefix(gpu, "cuda:0")]; across != want {
			t.Errorf("%s: %d copies to other GPUs", gpu, across)
		}
	}
	out := n.want(1, []string{"GPU", "WAY", "GB/s", "not there"}, "doctor")
	if strings.Contains(out, gpuCanary) {
		t.Error(out)
	}
	nothingLeft(t, func() string { return n.want(0, nil, "ls", "--json") })
}
