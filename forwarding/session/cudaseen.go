package session

import (
	"bytes"
	"os"
)

// warnOfCUDA tells the person at the terminal of a program that has CUDA's driver loaded beside OpenCL: what it does
// with that is not forwarded. It is asked with the first context.
func (d *Driver) warnOfCUDA() {
	if hasCUDA("/proc/self/maps") {
		d.cfg.Log("tendril: this program has loaded CUDA (libcuda.so), which is not forwarded: only its OpenCL calls are")
	}
}

// hasCUDA says whether a process with these mappings has loaded CUDA's driver.
func hasCUDA(maps string) bool {
	b, err := os.ReadFile(maps)
	return err == nil && bytes.Contains(b, []byte("/libcuda.so"))
}
