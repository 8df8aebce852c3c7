package main

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/session"
	sessionnode "tendril/forwarding/session/node"
	"tendril/forwarding/session/settings"
)

// doctorSource is the kernel that the doctor runs on each device; what it prints is what it computed.
const (
	doctorSource = `kernel void check(void) { printf("check %d\\n", (int)get_global_id(0) * 5 + 2); }`
	doctorPrints = "check 42"
	doctorOffset = 8 // of the one work item
)

const doctorPrintTime = 10 * time.Second // for what a kernel prints to arrive, by a worker that may have no processor

// doctorSession is how the doctor has a session.
func doctorSession(socket string) session.Config {
	return session.Config{Program: "tendril doctor", Version: version, Spin: settings.DefaultSpin,
		Dial: func() (sessionnode.Control, error) { return sessionnode.Dial(socket, "tendril doctor") }}
}

// checkDevices runs a kernel on each device, through a session as a program has one.
func (d *doctor) checkDevices(socket string) {
	var mu sync.Mutex
	var printed bytes.Buffer
	var why string
	cfg := doctorSession(socket)
	cfg.Log = func(line string) { mu.Lock(); defer mu.Unlock(); why = line }
	cfg.Print = func(data []byte) { mu.Lock(); defer mu.Unlock(); printed.Write(data) }
	driver, err := session.New(cfg)
	if err != nil {
		d.note("devices", faulty, "", "%v", err)
		return
	}
	defer driver.Close()
	devices := 0
	for _, platform := range driver.Platforms() {
		list, _ := driver.DeviceIDs(platform, cl.DEVICE_TYPE_ALL) // none is no device
		for _, device := range list {
			devices++
			name, _ := driver.DeviceInfo(device, cl.DEVICE_NAME)
			done := d.c.doing("a first kernel is built and run on " + text(name))
			began := time.Now()
			err := runCheck(driver, device)
			took := time.Since(began)
			came := func() bool {
				mu.Lock()
				defer mu.Unlock()
				return bytes.Contains(printed.Bytes(), []byte(doctorPrints))
			}
			for end := time.Now().Add(doctorPrintTime); err == nil && !came() && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			done()
			switch {
			case err != nil:
				d.note("device", faulty, "See tendril status, and the daemon's log.",
					"%s: a kernel could not be run: %v", text(name), err)
			case !came():
				d.note("device", notable, "", "%s: a kernel ran in %v, but its printed output did not arrive", text(name),
					took.Round(time.Millisecond))
			default:
				d.note("device", good, "", "%s: a kernel was built and ran in %v", text(name),
					took.Round(time.Millisecond))
			}
			mu.Lock()
			printed.Reset()
			mu.Unlock()
		}
	}
	if mu.Lock(); devices == 0 {
		d.note("devices", notable, "Install a driver: see above.", "none%s", why)
	}
	mu.Unlock()
}

// runCheck builds the kernel for a device and runs it.
func runCheck(driver *session.Driver, device uintptr) error {
	at := ""
	status := api.Status(0)
	step := func(name string, s api.Status) bool {
		at, status = name, s
		return s == 0
	}
	fault := func() error { return fmt.Errorf("%s: status %d", at, status) }
	context, s := driver.CreateContext(nil, []uintptr{device}, nil)
	if !step("clCreateContext", s) {
		return fault()
	}
	defer driver.ReleaseContext(context)
	queue, s := driver.CreateQueue(context, device, 0)
	if !step("clCreateCommandQueue", s) {
		return fault()
	}
	defer driver.ReleaseQueue(queue)
	program, s := driver.CreateProgramWithSource(context, []string{doctorSource})
	if !step("clCreateProgramWithSource", s) {
		return fault()
	}
	defer driver.ReleaseProgram(program)
	if !step("clBuildProgram", driver.Build(program, true, []uintptr{device}, "", nil)) {
		return fault()
	}
	kernel, s := driver.CreateKernel(program, "check")
	if !step("clCreateKernel", s) {
		return fault()
	}
	defer driver.ReleaseKernel(kernel)
	r := api.Range{Dims: 1, HasOffset: true}
	r.Offset[0], r.Global[0] = doctorOffset, 1
	if _, s := driver.EnqueueNDRange(queue, kernel, &r, api.Waits{}); !step("clEnqueueNDRangeKernel", s) {
		return fault()
	}
	if !step("clFinish", driver.Finish(queue)) {
		return fault()
	}
	return nil
}
