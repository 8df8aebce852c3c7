//go:build cgo

package worker

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/cuda/fakecuda"
)

// TestComputeModesOfNVIDIA: a probe of NVIDIA's driver asks CUDA which GPUs are not for every process; of other
// drivers, and without CUDA, it says nothing.
func TestComputeModesOfNVIDIA(t *testing.T) {
	t.Setenv("FAKE_CUDA_MODE", "3")
	driver := fakecuda.Build(t)
	for name, want := range map[string]clwire.ComputeMode{"NVIDIA CUDA": clwire.ComputeExclusive, "other": ""} {
		list := []clwire.PlatformSnapshot{{Info: map[uint32][]byte{cl.PLATFORM_NAME: []byte(name)},
			Devices: []clwire.DeviceSnapshot{{UUID: strings.Repeat("fa", 15) + "01"}, {UUID: strings.Repeat("fb", 16)}}}}
		computeModes(list, "/no/such/driver")
		if list[0].Devices[0].Mode != "" {
			t.Errorf("%s without CUDA: %+v", name, list[0].Devices)
		}
		computeModes(list, driver)
		if d := list[0].Devices; d[0].Mode != want || d[1].Mode != "" {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// TestTryImport: the test's driver imports nothing, and says so. The memory that a driver is tried with is of the GPU
// that is named.
func TestTryImport(t *testing.T) {
	driver := fakecuda.Build(t)
	err := tryImport(driverFile(t), driver, 1<<20)
	if err == nil || !strings.Contains(err.Error(), "imports memory") {
		t.Errorf("a driver that imports none: %v", err)
	}
	uuid := bytes.Repeat([]byte{0xfa}, 16)
	uuid[15] = 1
	fd, err := exported(driver, uuid, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != 2<<20 {
		t.Errorf("a descriptor of %d bytes: %v", st.Size, err)
	}
	if _, err := exported(driver, bytes.Repeat([]byte{0xfb}, 16), 2<<20); err == nil {
		t.Error("memory of a GPU that there is not")
	}
	if _, err := exported(driver, uuid, 1<<40); err == nil {
		t.Error("more memory than there is")
	}
}

// TestSnapshotOfADriver: what a probe tells of a driver is the driver's own answer, travels as JSON, and says of no
// device that it computes on segments where that is forbidden.
func TestSnapshotOfADriver(t *testing.T) {
	icd := driverFile(t)
	for _, noInPlace := range []bool{false, true} {
		list, err := Snapshot(icd, noInPlace)
		if err != nil || len(list) == 0 {
			t.Fatalf("%+v, %v", list, err)
		}
		for i, p := range list {
			if p.ICD != icd || p.Index != i || len(p.Info[cl.PLATFORM_NAME]) < 2 || len(p.Devices) == 0 {
				t.Errorf("platform %d: %+v", i, p)
			}
			for k, d := range p.Devices {
				if noInPlace && d.InPlace || len(d.Info[cl.DEVICE_NAME]) < 2 || len(d.Info[cl.DEVICE_TYPE]) != 8 {
					t.Errorf("device %d of platform %d: in place %v, %d facts", k, i, d.InPlace, len(d.Info))
				}
			}
		}
		raw, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		var back []clwire.PlatformSnapshot
		if err := json.Unmarshal(raw, &back); err != nil || len(back) != len(list) ||
			!bytes.Equal(back[0].Devices[0].Info[cl.DEVICE_NAME], list[0].Devices[0].Info[cl.DEVICE_NAME]) {
			t.Errorf("%v, or it came back otherwise", err)
		}
	}
	if list, err := Snapshot(filepath.Join(t.TempDir(), "none.icd"), false); err == nil {
		t.Errorf("no driver: %+v", list)
	}
}
