//go:build cgo

package snapshot

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// TestSnapshotOfADriver: what a probe tells of a driver is the driver's own answer, travels as JSON, and says of no
// device that it computes on segments where that is forbidden.
func TestSnapshotOfADriver(t *testing.T) {
	icd := os.Getenv("TENDRIL_TEST_ICD")
	if icd == "" {
		icd = "/etc/OpenCL/vendors/pocl.icd"
	}
	if _, err := os.Stat(icd); err != nil {
		t.Skip("no OpenCL driver: install pocl-opencl-icd, or set TENDRIL_TEST_ICD: ", err)
	}
	for _, noInPlace := range []bool{false, true} {
		list, err := Platforms(icd, noInPlace)
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
	if list, err := Platforms(filepath.Join(t.TempDir(), "none.icd"), false); err == nil {
		t.Errorf("no driver: %+v", list)
	}
}
