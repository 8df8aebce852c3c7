package session

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
	"tendril/forwarding/session/handle"
)

// Platform is one native platform, shown as Tendril's. A context never spans two.
type Platform struct {
	d       *Driver
	control Control // immutable: of the node that has the devices
	handle  uintptr
	index   uint32 // in the snapshot
	info    map[uint32][]byte
	devices []*Device // immutable once shown
	subs    firsts

	mu      sync.Mutex
	current *worker // serves new contexts; nil before the first and after a death
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
	info     map[uint32][]byte
	limits   deviceLimits
}

// deviceLimits are the numbers that every command looks at.
type deviceLimits struct {
	kind         uint64 // cl_device_type
	dimensions   uint64
	groupSize    uint64
	itemSizes    [3]uint64
	maxAlloc     uint64 // bytes
	globalBytes  uint64 // of the device's memory
	alignBytes   uint64 // of a buffer's base address
	localBytes   uint64
	addressBytes uint64
	queueProps   uint64
}

func newPlatform(d *Driver, control Control, index uint32, snapshot *clwire.PlatformSnapshot) *Platform {
	p := &Platform{d: d, control: control, index: index, info: map[uint32][]byte{}}
	for param, value := range snapshot.Info {
		p.info[param] = value
	}
	p.info[platformName] = infoString("Tendril (" + text(snapshot.Info[platformName]) + ")")
	p.info[platformVendor] = infoString("Tendril")
	p.info[platformICDSuffix] = infoString("TENDRIL")
	p.info[platformExtensions] = infoString("cl_khr_icd cl_tendril_store cl_pocl_content_size")
	if _, ok := p.info[platformExtensionsVersions]; ok {
		p.info[platformExtensionsVersions] = infoNameVersions([]nameVersion{{1 << 22, "cl_khr_icd"}, {storeVersion, "cl_tendril_store"}, {contentVersion, "cl_pocl_content_size"}})
	}
	return p
}

func (p *Platform) addDevice(index uint32, snapshot clwire.DeviceSnapshot) error {
	dev := &Device{platform: p, index: index, inPlace: snapshot.InPlace, info: maskDevice(snapshot)}
	dev.info[devPlatform] = infoSize(p.handle)
	dev.images = number(snapshot.Info[devImageSupport]) != 0
	dev.limits = limitsOf(dev.info)
	h, err := p.d.devices.Put(dev)
	if err != nil {
		return fmt.Errorf("device %d: %w", index, err)
	}
	dev.handle = h
	p.devices = append(p.devices, dev)
	return nil
}

func limitsOf(info map[uint32][]byte) deviceLimits {
	l := deviceLimits{
		kind: number(info[devType]), dimensions: number(info[devMaxDimensions]), groupSize: number(info[devMaxWorkGroupSize]),
		maxAlloc: number(info[devMaxMemAlloc]), globalBytes: number(info[devGlobalMemSize]), localBytes: number(info[devLocalMemSize]),
		alignBytes: max(number(info[devMemBaseAddrAlign])/8, 1), addressBytes: max(number(info[devAddressBits])/8, 4),
		queueProps: number(info[devQueueProperties]),
	}
	for i := range l.itemSizes {
		l.itemSizes[i] = ^uint64(0)
		if b := info[devMaxWorkItemSizes]; len(b) >= 8*(i+1) {
			l.itemSizes[i] = le.Uint64(b[8*i:])
		}
	}
	return l
}

// PlatformInfo is clGetPlatformInfo (OpenCL 3.0 §4.1).
func (d *Driver) PlatformInfo(h uintptr, param uint32) ([]byte, Status) {
	p := d.platforms.Get(h)
	if p == nil {
		return nil, InvalidPlatform
	}
	if value, ok := p.info[param]; ok {
		return value, Success
	}
	return nil, InvalidValue
}

// DeviceIDs is clGetDeviceIDs (§4.2): the matching devices' handles.
func (d *Driver) DeviceIDs(platform uintptr, kind uint64) ([]uintptr, Status) {
	p := d.platforms.Get(platform)
	if p == nil {
		return nil, InvalidPlatform
	}
	if kind&deviceTypeAll != deviceTypeAll && (kind == 0 || kind&^deviceTypeKnown != 0) {
		return nil, InvalidDeviceType
	}
	found := p.devicesOf(kind)
	if len(found) == 0 {
		return nil, DeviceNotFound
	}
	hs := make([]uintptr, len(found))
	for i, dev := range found {
		hs[i] = dev.handle
	}
	return hs, Success
}

// devicesOf returns the devices of a type. The default device is the first shown, whatever the node's default was: the
// selector's order is the user's word.
func (p *Platform) devicesOf(kind uint64) (found []*Device) {
	for i, dev := range p.devices {
		isDefault := kind&deviceTypeDefault != 0 && i == 0
		if kind&deviceTypeAll == deviceTypeAll || dev.limits.kind&kind&^deviceTypeDefault != 0 || isDefault {
			found = append(found, dev)
		}
	}
	return found
}

// DeviceInfo is clGetDeviceInfo (§4.2).
func (d *Driver) DeviceInfo(h uintptr, param uint32) ([]byte, Status) {
	dev := d.devices.Get(h)
	if dev == nil {
		return nil, InvalidDevice
	}
	if param == devReferenceCount && dev.made != nil {
		return infoU32(dev.refs.Count()), Success
	}
	if value, ok := dev.info[param]; ok {
		return value, Success
	}
	return nil, InvalidValue
}

// HostTimer is clGetHostTimer and the host half of clGetDeviceAndHostTimer (§4.3): ns of CLOCK_MONOTONIC, which is
// also what devices in place stamp their profiles with.
func (d *Driver) HostTimer(h uintptr) (uint64, Status) {
	dev := d.devices.Get(h)
	if dev == nil {
		return 0, InvalidDevice
	}
	if number(dev.platform.info[platformHostTimerResolution]) == 0 {
		return 0, InvalidOperation
	}
	return monotonic(), Success
}

func monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// DeviceTimer is clGetDeviceAndHostTimer. In place both are this machine's clock; another device's driver is asked, and the
// host's time is taken in the middle of the question.
func (d *Driver) DeviceTimer(h uintptr) (device, host uint64, status Status) {
	before, status := d.HostTimer(h)
	if status != Success {
		return 0, 0, status
	}
	dev := d.devices.Get(h)
	if dev.inPlace {
		return before, before, Success
	}
	w, err := dev.platform.worker()
	if err != nil {
		return 0, 0, OutOfResources
	}
	if status := w.ensurePartition(dev.made); status != Success {
		return 0, 0, status
	}
	c, err := w.ask(&clwire.Query{Kind: clwire.QueryDeviceTimer, Device: dev.index})
	if err != nil || c.status == Success && len(c.data) != 16 {
		return 0, 0, OutOfResources
	}
	if c.status != Success {
		return 0, 0, c.status
	}
	return le.Uint64(c.data), before + (monotonic()-before)/2, Success
}

// UnloadPlatformCompiler is clUnloadPlatformCompiler: a hint that is not forwarded.
func (d *Driver) UnloadPlatformCompiler(h uintptr) Status {
	if d.platforms.Get(h) == nil {
		return InvalidPlatform
	}
	return Success
}

// worker returns the platform's worker, starting one where there is none alive.
func (p *Platform) worker() (*worker, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil && !p.current.dead.Load() {
		return p.current, nil
	}
	w, err := startWorker(p)
	if err != nil {
		return nil, err
	}
	p.current = w
	return w, nil
}

func (p *Platform) closeWorker() {
	p.mu.Lock()
	w := p.current
	p.current = nil
	p.mu.Unlock()
	if w != nil {
		w.close()
	}
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
