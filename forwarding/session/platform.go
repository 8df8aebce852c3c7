package session

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/conn"
	"tendril/forwarding/handle"
	"tendril/forwarding/session/devices"
	"tendril/forwarding/session/node"
)

// Platform is one native platform, shown as Tendril's. A context never spans two.
type Platform struct {
	d       *Driver
	control node.Control // immutable: of the node that has the devices
	keeps   bool         // immutable: its session outlives its connections
	handle  uintptr
	index   uint32 // in the snapshot
	info    map[uint32][]byte
	devices []*Device // immutable once shown
	subs    firsts

	mu      sync.Mutex             // held while a worker is started
	current atomic.Pointer[worker] // serves new contexts; nil before the first and at the end; written under mu
	closed  bool                   // takeWorker was here
}

// Device is one native device, or a part of one. Root devices live as long as the process; retain and release count
// nothing for them (OpenCL 3.0 §4.3: a root device's count is 1).
type Device struct {
	refs     handle.Refs // of a sub-device
	made     *partition  // nil: a root device
	platform *Platform
	handle   uintptr
	index    uint32 // in the platform's snapshot
	inPlace  bool   // computes on shared segments
	images   bool   // has images and samplers
	uuid     string // 32 hexadecimal digits
	imports  string // its UUID, if its driver makes buffers of a GPU's memory by descriptor
	most     uint64 // of so many bytes at most; 0: any number
	info     map[uint32][]byte
	limits   devices.Limits
}

func newPlatform(d *Driver, control node.Control, keeps bool, index uint32,
	snapshot *clwire.PlatformSnapshot) *Platform {
	return &Platform{d: d, control: control, keeps: keeps, index: index, info: devices.MaskPlatform(snapshot)}
}

func (p *Platform) addDevice(index uint32, snapshot clwire.DeviceSnapshot) error {
	dev := &Device{platform: p, index: index, inPlace: snapshot.InPlace, info: devices.Mask(snapshot),
		most: snapshot.ImportMost, uuid: strings.ToLower(strings.ReplaceAll(snapshot.UUID, "-", ""))}
	dev.info[cl.DEVICE_PLATFORM] = answers.Size(p.handle)
	dev.images = answers.Number(snapshot.Info[cl.DEVICE_IMAGE_SUPPORT]) != 0
	if slices.Contains(strings.Fields(strings.Trim(string(snapshot.Info[cl.DEVICE_EXTENSIONS]), "\x00")), externalMemory) {
		dev.imports = dev.uuid
	}
	dev.limits = devices.LimitsOf(dev.info)
	h, err := p.d.devices.Put(dev)
	if err != nil {
		return fmt.Errorf("device %d: %w", index, err)
	}
	dev.handle = h
	p.devices = append(p.devices, dev)
	return nil
}

// PlatformInfo is clGetPlatformInfo (OpenCL 3.0 §4.1).
func (d *Driver) PlatformInfo(h uintptr, param uint32) ([]byte, api.Status) {
	p := d.platforms.Get(h)
	if p == nil {
		return nil, cl.INVALID_PLATFORM
	}
	if value, ok := p.info[param]; ok {
		return value, cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// DeviceIDs is clGetDeviceIDs (§4.2): the matching devices' handles.
func (d *Driver) DeviceIDs(platform uintptr, kind uint64) ([]uintptr, api.Status) {
	p := d.platforms.Get(platform)
	if p == nil {
		return nil, cl.INVALID_PLATFORM
	}
	if kind&cl.DEVICE_TYPE_ALL != cl.DEVICE_TYPE_ALL && (kind == 0 || kind&^deviceTypeKnown != 0) {
		return nil, cl.INVALID_DEVICE_TYPE
	}
	found := p.devicesOf(kind)
	if len(found) == 0 {
		return nil, cl.DEVICE_NOT_FOUND
	}
	hs := make([]uintptr, len(found))
	for i, dev := range found {
		hs[i] = dev.handle
	}
	return hs, cl.SUCCESS
}

// devicesOf returns the devices of a type. The default device is the first shown, whatever the node's default was: the
// selector's order is the user's word.
func (p *Platform) devicesOf(kind uint64) (found []*Device) {
	for i, dev := range p.devices {
		isDefault := kind&cl.DEVICE_TYPE_DEFAULT != 0 && i == 0
		if kind&cl.DEVICE_TYPE_ALL == cl.DEVICE_TYPE_ALL ||
			dev.limits.Kind&kind&^cl.DEVICE_TYPE_DEFAULT != 0 || isDefault {
			found = append(found, dev)
		}
	}
	return found
}

// DeviceInfo is clGetDeviceInfo (§4.2).
func (d *Driver) DeviceInfo(h uintptr, param uint32) ([]byte, api.Status) {
	dev := d.devices.Get(h)
	if dev == nil {
		return nil, cl.INVALID_DEVICE
	}
	if param == cl.DEVICE_REFERENCE_COUNT && dev.made != nil {
		return answers.U32(dev.refs.Count()), cl.SUCCESS
	}
	if value, ok := dev.info[param]; ok {
		return value, cl.SUCCESS
	}
	return nil, cl.INVALID_VALUE
}

// HostTimer is clGetHostTimer and the host half of clGetDeviceAndHostTimer (§4.3): ns of CLOCK_MONOTONIC, which is
// also what devices in place stamp their profiles with.
func (d *Driver) HostTimer(h uintptr) (uint64, api.Status) {
	dev := d.devices.Get(h)
	if dev == nil {
		return 0, cl.INVALID_DEVICE
	}
	if answers.Number(dev.platform.info[cl.PLATFORM_HOST_TIMER_RESOLUTION]) == 0 {
		return 0, cl.INVALID_OPERATION
	}
	return monotonic(), cl.SUCCESS
}

func monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// DeviceTimer is clGetDeviceAndHostTimer. In place both are this machine's clock; another device's driver is asked, and
// the host's time is taken in the middle of the question.
func (d *Driver) DeviceTimer(h uintptr) (device, host uint64, status api.Status) {
	before, status := d.HostTimer(h)
	if status != cl.SUCCESS {
		return 0, 0, status
	}
	dev := d.devices.Get(h)
	if dev.inPlace {
		return before, before, cl.SUCCESS
	}
	w, err := dev.platform.worker()
	if err != nil {
		return 0, 0, cl.OUT_OF_RESOURCES
	}
	if status := w.ensurePartition(dev.made); status != cl.SUCCESS {
		return 0, 0, status
	}
	data, status := w.ask(&clwire.Query{Kind: clwire.QueryDeviceTimer, Device: dev.index})
	switch {
	case status != cl.SUCCESS:
		return 0, 0, status
	case len(data) != 16:
		return 0, 0, cl.OUT_OF_RESOURCES
	}
	return le.Uint64(data), before + (monotonic()-before)/2, cl.SUCCESS
}

// UnloadPlatformCompiler is clUnloadPlatformCompiler: a hint that is not forwarded.
func (d *Driver) UnloadPlatformCompiler(h uintptr) api.Status {
	if d.platforms.Get(h) == nil {
		return cl.INVALID_PLATFORM
	}
	return cl.SUCCESS
}

// worker returns the platform's worker, starting one where there is none alive.
func (p *Platform) worker() (*worker, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.current.Load(); w != nil && !w.Dead() {
		return w, nil
	}
	if p.closed {
		return nil, conn.ErrDead
	}
	w, err := startWorker(p)
	if err != nil {
		return nil, err
	}
	p.current.Store(w)
	return w, nil
}

// takeWorker returns the platform's worker, nil where it has none, and has the platform forget it and start no other.
func (p *Platform) takeWorker() *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return p.current.Swap(nil)
}

// indices returns the devices' positions in the snapshot.
func indices(devices []*Device) []uint32 {
	list := make([]uint32, len(devices))
	for i, dev := range devices {
		list[i] = dev.index
	}
	return list
}

func handlesOf(devices []*Device) []uintptr {
	hs := make([]uintptr, len(devices))
	for i, dev := range devices {
		hs[i] = dev.handle
	}
	return hs
}

// lookUp resolves device handles; nil when one is none of ours.
func (d *Driver) lookUp(hs []uintptr) []*Device {
	devices := make([]*Device, 0, len(hs))
	for _, h := range hs {
		dev := d.devices.Get(h)
		if dev == nil {
			return nil
		}
		if !slices.Contains(devices, dev) {
			devices = append(devices, dev)
		}
	}
	return devices
}
