//go:build cgo

package worker

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/fixed"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/snapshot"
)

// Probe is the process `tendril probe`: inside the same sandbox as a worker it
// loads the driver and writes one clwire.ProbeResult, with every platform of
// the driver, to o.Control. o.Platform is not looked at.
func Probe(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if _, inside := os.LookupEnv(stageVariable); !inside {
		return enter(&o)
	}
	if err := harden(); err != nil {
		return err
	}
	var r clwire.ProbeResult
	var err error
	if r.Fallbacks, err = sandboxFallbacks(); err != nil {
		return err
	}
	if _, err := redirect(); err != nil { // drivers greet on standard output
		return fmt.Errorf("standard output: %w", err)
	}
	if o.Import != "" {
		return tryImport(o.ICD, o.Import, o.Memory, clwire.LargeImport)
	}
	if r.Platforms, err = snapshot.Platforms(o.ICD, o.NoInPlace); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := json.NewEncoder(o.Control).Encode(&r); err != nil {
		return fmt.Errorf("write the probe's result: %w", err)
	}
	return nil
}

// tryImport has the driver make a buffer of so many bytes of a GPU's memory and read some of it. NVIDIA's driver 580
// ends the process at that, from 512 MiB on, on hosts with two GPUs. The keeper made the memory, as it does a worker's:
// CUDA does not start in the sandbox, where it can neither name its threads in /proc nor listen on a socket.
func tryImport(icd, uuid string, memory *os.File, size uint64) error {
	lib, err := opencl.Open(icd)
	if err != nil {
		return err
	}
	platforms, err := lib.Platforms()
	if err != nil {
		return err
	}
	for _, p := range platforms {
		devices, err := p.Devices()
		if err != nil {
			return err
		}
		for _, d := range devices {
			if own, _ := d.Info(cl.DEVICE_UUID_KHR); hex.EncodeToString(own) != uuid {
				continue
			}
			if extensions, _ := d.Info(cl.DEVICE_EXTENSIONS); bytes.Contains(extensions, []byte(externalMemory)) {
				return tryImportOn(p, d, memory, size)
			}
		}
	}
	return fmt.Errorf("%s has no GPU %s that imports memory", icd, uuid)
}

// tryImportOn is tryImport on one device. What it makes ends with the process.
func tryImportOn(p opencl.Platform, d opencl.Device, memory *os.File, size uint64) error {
	c, s := p.CreateContext([]opencl.Device{d})
	if s != cl.SUCCESS {
		return s.Err("clCreateContext")
	}
	q, s := c.CreateQueue(d, 0)
	if s != cl.SUCCESS {
		return s.Err("clCreateCommandQueue")
	}
	fd, err := unix.FcntlInt(memory.Fd(), unix.F_DUPFD_CLOEXEC, 3) // the driver's own
	if err != nil {
		return fmt.Errorf("duplicate the memory's descriptor: %w", err)
	}
	m, s := c.ImportBuffer(d, cl.MEM_READ_WRITE, size, fd)
	if s != cl.SUCCESS {
		return s.Err("clCreateBufferWithProperties")
	}
	host := make([]byte, 64)
	if _, s = q.Transfer(true, m, size-uint64(len(host)), uint64(len(host)), fixed.Address(host),
		opencl.After{}); s != cl.SUCCESS {
		return s.Err("clEnqueueReadBuffer")
	}
	return q.Finish().Err("clFinish")
}
