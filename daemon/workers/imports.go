package workers

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// NVIDIA's OpenCL driver 580 ends the process that imports an allocation of 512 MiB or more on a host with two GPUs,
// also where only one is visible; on a host with one it does not. So there a process of its own tries it once. Where
// that does not end well, objects of more than clwire.SmallImport bytes become buffers by copies on the GPU, in pieces.

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
// devices import where it does not, or where no GPU has so much memory free: it gives what `tendril status` says then.
func (p *Pool) boundImports(d Driver, tenant string, platforms []*Platform) *clwire.Fallback {
	count := p.opts.gpus
	if count == nil {
		count = nvidiaGPUs
	}
	var devices []*clwire.DeviceSnapshot
	for _, pl := range platforms {
		for i := range pl.Snapshot.Devices {
			if importsMemory(pl.Snapshot.Devices[i]) {
				devices = append(devices, &pl.Snapshot.Devices[i])
			}
		}
	}
	if len(devices) == 0 || p.opts.GPUMemory == nil || count() < 2 {
		return nil
	}
	err := p.tryImport(d, tenant, devices)
	if err == nil || p.ctx.Err() != nil {
		return nil
	}
	for _, x := range devices {
		x.ImportMost = clwire.SmallImport
	}
	return &clwire.Fallback{What: "objects of more than 510 MiB on a GPU as buffers, without a copy",
		Why: fmt.Sprintf("%s does not import 512 MiB: %.*s", filepath.Base(d.Library), mostSaid, err)}
}

// mostSaid bounds what `tendril status` says of a probe's end, in bytes.
const mostSaid = 160

// tryImport has a process import memory of the first of the devices on which there is some. nil, too, where there are
// no objects on any.
func (p *Pool) tryImport(d Driver, tenant string, devices []*clwire.DeviceSnapshot) (err error) {
	for _, x := range devices {
		memory, fault := p.opts.GPUMemory(x.UUID, clwire.LargeImport)
		if fault == nil {
			_, err = p.runProbe(d, tenant, memory, "--import", x.UUID)
			memory.Close()
			return err
		}
		if !errors.Is(fault, object.ErrUnsupported) {
			err = fault
		}
	}
	return err
}

// computeModes puts the compute modes of NVIDIA's GPUs into their snapshots, where CUDA says them: OpenCL has no word
// for them.
func (p *Pool) computeModes(platforms []*Platform) {
	nvidia := func(pl *Platform) bool { return strings.Contains(pl.Name, "NVIDIA") }
	if p.opts.GPUs == nil || !slices.ContainsFunc(platforms, nvidia) {
		return
	}
	known, err := p.opts.GPUs()
	if err != nil && !errors.Is(err, object.ErrUnsupported) {
		p.opts.Log.WithError(err).Warn("the compute modes of GPUs are not known")
	}
	for _, pl := range platforms {
		for i := range pl.Snapshot.Devices {
			for _, d := range known {
				if d.UUID == pl.Snapshot.Devices[i].UUID {
					pl.Snapshot.Devices[i].Mode = d.Mode
				}
			}
		}
	}
}
