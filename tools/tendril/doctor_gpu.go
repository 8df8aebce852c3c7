package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	host "tendril/forwarding/keeper"
	"tendril/forwarding/session"
	"tendril/store/object"
)

// What the doctor does with each GPU: an object is made, another process imports its memory and writes a text, a third
// one reads it, so does an OpenCL program, and the keeper copies it.
const (
	gpuCanary = "tendril doctor was here"
	gpuBytes  = 64 << 20
	gpuChild  = 30 * time.Second // for a child to load the driver, and more
)

// gpuRow is one way to one GPU, as a line of the table.
type gpuRow struct {
	gpu, way string
	took     time.Duration
	bytes    uint64 // that were copied in it; 0: none
	err      error
	missing  string // not tried, and why
	do       string
}

// checkGPUs tries every way to the memory of every GPU that objects may lie in, and measures each.
func (d *doctor) checkGPUs(ctx context.Context, conn *client.Conn) {
	list, err := conn.GPUs(ctx)
	switch {
	case errors.Is(err, object.ErrUnsupported):
		d.note("memory of GPUs", good, "", "not used: %s", bare(err, object.ErrUnsupported))
		return
	case err != nil:
		_, do := classify(err)
		d.note("memory of GPUs", faulty, do, "%v", err)
		return
	case len(list) == 0:
		d.note("memory of GPUs", notable, "The CUDA driver shows none to the daemon: see --devices, and CUDA_VISIBLE_DEVICES of its environment.",
			"no GPU is offered")
		return
	}
	driver := d.gpuDriver(ctx, conn)
	rows := [][]string{}
	for i, g := range list {
		name := fmt.Sprintf("cuda:%d %s", g.Index, g.Name)
		if g.Mode != "" {
			d.note(name, notable, "Objects cannot lie there, because the keeper of its memory is a process beside those that "+
				"use them. nvidia-smi --compute-mode 0 allows any number.", "its compute mode is %s", g.Mode)
			continue
		}
		if !g.Shares {
			d.note(name, notable, "Objects cannot lie there: the driver is too old, or is a virtual machine's.",
				"its memory cannot be passed as a descriptor")
			continue
		}
		done := d.c.doing(name + ": objects in its memory")
		next := object.Device{}
		if i+1 < len(list) {
			next = list[i+1].UUID
		}
		ways := gpuWays(ctx, conn, driver, g.UUID, next)
		done()
		for _, x := range ways {
			x.gpu = name
			d.noteGPU(x)
			rows = append(rows, x.cells())
		}
	}
	if !d.c.json && d.err == nil {
		d.err = table(d.c.term.out, d.c.term.screen, "GPU | WAY | RESULT | TIME | RATE", rows)
	}
}

// gpuDriver names the driver that the daemon's keeper has.
func (d *doctor) gpuDriver(ctx context.Context, conn *client.Conn) string {
	if s, err := nodeStatus(ctx, conn); err == nil && s.Keeper != nil && s.Keeper.Driver != "" {
		return s.Keeper.Driver
	}
	return defaultCUDADriver
}

func (x gpuRow) rate() (gb float64) {
	if x.bytes == 0 || x.took <= 0 {
		return 0
	}
	return float64(x.bytes) / 1e9 / x.took.Seconds()
}

func (x gpuRow) cells() []string {
	result, took, rate := "ok", "-", "-"
	switch {
	case x.err != nil:
		result = "failed"
	case x.missing != "":
		result = "not there"
	default:
		took = fmt.Sprintf("%.2f ms", x.took.Seconds()*1000)
	}
	if gb := x.rate(); gb > 0 {
		rate = fmt.Sprintf("%.1f GB/s", gb)
	}
	return []string{x.gpu, x.way, result, took, rate}
}

// noteGPU makes a way a finding; one that is good stands in the table alone.
func (d *doctor) noteGPU(x gpuRow) {
	f := finding{Check: x.gpu + ": " + x.way, State: good, GPU: x.gpu, Way: x.way, Do: x.do}
	switch {
	case x.err != nil:
		f.State, f.Found = faulty, x.err.Error()
	case x.missing != "":
		f.State, f.Found = notable, x.missing
	default:
		f.Found = fmt.Sprintf("%.2f ms", x.took.Seconds()*1000)
		f.MS, f.GBPerSecond, f.Do = x.took.Seconds()*1000, x.rate(), ""
	}
	f.Found = plain(f.Found)
	d.found = append(d.found, f)
	if f.State != good && !d.c.json && d.err == nil {
		d.err = d.print(f)
	}
}

// What to do where a way is not there.
const (
	doKeeper = "See the daemon's log; nvidia-smi shows whether the GPU works, and dmesg what its driver says."
	doChild  = "Programs here cannot use the GPU that the daemon uses: in a container, give the container the driver (compute capability) and the same GPUs."
	doOpenCL = "Objects reach OpenCL programs through host memory: install the vendor's OpenCL driver, of a release with cl_khr_external_memory_opaque_fd, and offer the GPU with it (--devices)."
)

// gpuWays tries each way to the memory of a GPU; other is another GPU, or zero.
func gpuWays(ctx context.Context, conn *client.Conn, driver string, gpu, other object.Device) (rows []gpuRow) {
	began := time.Now()
	buf, err := conn.CreateDevice(ctx, gpu, gpuBytes, client.CreateOptions{})
	rows = append(rows, gpuRow{way: "make an object", took: time.Since(began), err: err, do: doKeeper})
	if errors.Is(err, object.ErrQuota) || errors.Is(err, object.ErrFull) {
		_, rows[0].do = classify(err)
		rows[0].err, rows[0].missing = nil, err.Error()
	}
	if err != nil {
		return rows
	}
	defer buf.Abort(ctx)
	found, err := importGPU(driver, &buf.Memory, "--write", gpuCanary)
	rows = append(rows, gpuRow{way: "another process imports it, and writes", took: time.Duration(found.ImportNS), err: err,
		do: doChild})
	if err != nil {
		return rows
	}
	obj, err := buf.Seal(ctx)
	if err != nil {
		return append(rows, gpuRow{way: "seal it", err: err, do: doKeeper})
	}
	defer obj.Release()
	rows = append(rows, readGPU(conn, driver, obj.ID()), openCLGPU(conn, gpu, obj.ID()))
	rows = append(rows, copyGPU(ctx, conn, gpu, obj.ID())...)
	if !other.IsZero() {
		rows = append(rows, copyAcross(ctx, conn, other, obj.ID()))
	}
	return rows
}

// readGPU has a third process get the object, and compares what is in it.
func readGPU(conn *client.Conn, driver string, id object.ID) gpuRow {
	row := gpuRow{way: "a third process reads it", do: doChild}
	again, err := conn.GetDevice(context.Background(), id, "", 0)
	if err != nil {
		row.err = err
		return row
	}
	defer again.Release()
	found, err := importGPU(driver, &again.Memory, "--read", strconv.Itoa(len(gpuCanary)))
	if err == nil && found.Text != gpuCanary {
		err = fmt.Errorf("it holds %q, but %q was written", found.Text, gpuCanary)
	}
	row.took, row.err = time.Duration(found.ImportNS), err
	return row
}

// copyGPU has the keeper copy the object to host memory and back, until it goes at its best: the first copy of a
// segment pins nothing, the second pins it.
func copyGPU(ctx context.Context, conn *client.Conn, gpu object.Device, id object.ID) []gpuRow {
	out := gpuRow{way: "the keeper copies it to host memory", bytes: gpuBytes, do: doKeeper}
	in := gpuRow{way: "the keeper copies host memory to it", bytes: gpuBytes, do: doKeeper}
	stage, err := conn.Create(ctx, gpuBytes, client.CreateOptions{Own: true})
	if err != nil {
		_, out.do = classify(err)
		out.missing = "there is no host memory for it: " + err.Error()
		return []gpuRow{out}
	}
	out.took, out.err = thirdTime(func() error { return conn.CopyObject(ctx, stage.ID(), 0, id, "", 0, gpuBytes) })
	if out.err == nil && !bytes.HasPrefix(stage.Bytes(), []byte(gpuCanary)) {
		out.err = fmt.Errorf("it returned %q, but %q was written", stage.Bytes()[:len(gpuCanary)], gpuCanary)
	}
	if out.err != nil {
		return []gpuRow{out, {way: in.way, err: errors.Join(errors.New("not tried"), stage.Abort(ctx)), do: doKeeper}}
	}
	from, err := stage.Seal(ctx)
	if err != nil {
		in.err = err
		return []gpuRow{out, in}
	}
	defer from.Release()
	back, err := conn.CreateDevice(ctx, gpu, gpuBytes, client.CreateOptions{})
	if err != nil {
		in.err = err
		return []gpuRow{out, in}
	}
	defer back.Abort(ctx)
	in.took, in.err = thirdTime(func() error { return conn.CopyObject(ctx, back.ID(), 0, from.ID(), "", 0, gpuBytes) })
	return []gpuRow{out, in}
}

// copyAcross has the keeper copy the object to another GPU.
func copyAcross(ctx context.Context, conn *client.Conn, other object.Device, id object.ID) gpuRow {
	row := gpuRow{way: "the keeper copies it to GPU " + other.String(), bytes: gpuBytes, do: doKeeper}
	buf, err := conn.CreateDevice(ctx, other, gpuBytes, client.CreateOptions{})
	if err != nil {
		row.err = err
		return row
	}
	defer buf.Abort(ctx)
	row.took, row.err = thirdTime(func() error { return conn.CopyObject(ctx, buf.ID(), 0, id, "", 0, gpuBytes) })
	return row
}

// thirdTime says how long f takes the third time.
func thirdTime(f func() error) (took time.Duration, err error) {
	for range 3 {
		began := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		took = time.Since(began)
	}
	return took, nil
}

// openCLGPU opens the object as a buffer of the OpenCL device that is the same GPU, as a program does, and reads it.
func openCLGPU(conn *client.Conn, gpu object.Device, id object.ID) gpuRow {
	row := gpuRow{way: "an OpenCL program reads it", do: doOpenCL}
	var why string
	cfg := doctorSession(conn.Socket())
	cfg.Log = func(line string) { why = line }
	driver, err := session.New(cfg)
	if err != nil {
		row.err = err
		return row
	}
	defer driver.Close()
	for _, platform := range driver.Platforms() {
		devices, _ := driver.DeviceIDs(platform, cl.DEVICE_TYPE_ALL) // none is no device
		for _, device := range devices {
			if uuid, _ := driver.DeviceInfo(device, cl.DEVICE_UUID_KHR); !bytes.Equal(uuid, gpu[:]) {
				continue
			}
			text, took, at, status := readAsBuffer(driver, device, id)
			row.took = took
			switch {
			case at == "clCreateBufferFromObjectTENDRIL" && status == cl.INVALID_OPERATION:
				row.missing = strings.TrimPrefix(why, "tendril: ")
			case status != cl.SUCCESS:
				row.err = fmt.Errorf("%s: status %d %s", at, status, why)
			case string(text) != gpuCanary:
				row.err = fmt.Errorf("the buffer holds %q, but %q was written", text, gpuCanary)
			}
			return row
		}
	}
	row.missing = "no OpenCL device is this GPU"
	return row
}

// readAsBuffer opens an object as a buffer and reads its first bytes. at names the call that failed.
func readAsBuffer(driver *session.Driver, device uintptr, id object.ID) (text []byte, took time.Duration, at string,
	status api.Status) {
	ctx, status := driver.CreateContext(nil, []uintptr{device}, nil)
	if status != cl.SUCCESS {
		return nil, 0, "clCreateContext", status
	}
	defer driver.ReleaseContext(ctx)
	queue, status := driver.CreateQueue(ctx, device, 0)
	if status != cl.SUCCESS {
		return nil, 0, "clCreateCommandQueue", status
	}
	defer driver.ReleaseQueue(queue)
	text = make([]byte, len(gpuCanary))
	if status := driver.Finish(queue); status != cl.SUCCESS { // the worker is there
		return nil, 0, "clFinish", status
	}
	began := time.Now()
	buffer, status := driver.OpenObject(ctx, id, "")
	if status != cl.SUCCESS {
		return nil, 0, "clCreateBufferFromObjectTENDRIL", status
	}
	defer driver.ReleaseMemObject(buffer)
	_, status = driver.EnqueueRead(queue, buffer, true, 0, uint64(len(text)), api.HostBytes(text), api.Waits{})
	return text, time.Since(began), "clEnqueueReadBuffer", status
}

// importGPU runs a process that imports memory of a GPU.
func importGPU(driver string, memory *client.DeviceMemory, args ...string) (found host.Checked, err error) {
	file := memory.TakeFile()
	if file == nil {
		return found, errors.New("the daemon gave no descriptor")
	}
	defer file.Close()
	ctx, cancel := context.WithTimeout(context.Background(), gpuChild)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"import-gpu", "--driver", driver, "--device",
		memory.Device.String(), "--bytes", strconv.FormatUint(memory.Bytes, 10)}, args...)...)
	cmd.ExtraFiles = []*os.File{file}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("it did not end within %v", gpuChild)
	}
	if err != nil {
		return found, fmt.Errorf("a process of its own: %w: %.300s", err, strings.TrimSpace(said.String()))
	}
	return found, nil
}

func importGPUVerb() *cobra.Command {
	o := &host.CheckOptions{}
	cmd := &cobra.Command{Use: "import-gpu", Short: "Import memory of a GPU, for tendril doctor", Hidden: true,
		Args: cobra.NoArgs}
	cmd.Flags().StringVar(&o.Driver, "driver", defaultCUDADriver, "the CUDA driver")
	cmd.Flags().StringVar(&o.Device, "device", "", "UUID of the GPU")
	cmd.Flags().Uint64Var(&o.Bytes, "bytes", 0, "size of the allocation")
	cmd.Flags().StringVar(&o.Write, "write", "", "text to write at its beginning")
	cmd.Flags().IntVar(&o.Read, "read", 0, "how many bytes to read at its beginning")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Memory, err = control(); err != nil {
			return err
		}
		return host.Check(*o, cmd.OutOrStdout())
	}
	return cmd
}
