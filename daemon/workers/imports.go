package workers

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// NVIDIA's OpenCL driver 580 ends the process that imports an allocation of 512 MiB or more on a host with two GPUs,
// also where only one is visible; on a host with one it does not. So there a process of its own tries it once. Where
// that does not end well, objects of more than clwire.SmallImport bytes become buffers by a copy through host memory.

// externalMemory is the extension with which a driver makes a buffer of memory that another one allocated.
const externalMemory = "cl_khr_external_memory_opaque_fd"

// nvidiaGPUs counts this machine's NVIDIA GPUs by their device nodes, whether they are visible or not.
func nvidiaGPUs() int {
	nodes, _ := filepath.Glob("/dev/nvidia[0-9]*")
	return len(nodes)
}

func importsMemory(d clwire.DeviceSnapshot) bool {
	return bytes.Contains(d.Info[cl.DEVICE_EXTENSIONS], []byte(externalMemory))
}

// boundImports has a process try whether a driver imports much memory, where that is in doubt, and bounds what its
// devices import where it does not. A GPU without so much memory free is bounded, too.
func (p *Pool) boundImports(d Driver, tenant string, platforms []*Platform) {
	count := p.opts.gpus
	if count == nil {
		count = nvidiaGPUs
	}
	if !slices.ContainsFunc(platforms, func(pl *Platform) bool {
		return slices.ContainsFunc(pl.Snapshot.Devices, importsMemory)
	}) || count() < 2 {
		return
	}
	_, err := p.runProbe(d, tenant, "--import")
	if err == nil || p.ctx.Err() != nil {
		return
	}
	for _, pl := range platforms {
		for i := range pl.Snapshot.Devices {
			if importsMemory(pl.Snapshot.Devices[i]) {
				pl.Snapshot.Devices[i].ImportMost = clwire.SmallImport
			}
		}
	}
	p.noteFallbacks([]clwire.Fallback{{
		What: "buffers that are objects of more than 510 MiB in the memory of a GPU, without a copy",
		Why:  fmt.Sprintf("%s was tried with 512 MiB in a process of its own: %v", d.Library, err)}})
}
