package session

import (
	"encoding/json"
	"sync/atomic"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/devices"
)

// partition is one clCreateSubDevices: what makes the same sub-devices again on another worker.
type partition struct {
	parent     *Device
	properties []uint64
	first, n   uint32 // indices of the sub-devices
}

// firsts gives out indices of sub-devices, one sequence a platform.
type firsts struct{ next atomic.Uint32 }

func (f *firsts) take(n uint32) uint32 { return clwire.SubDeviceBase + f.next.Add(n) - n }

// CreateSubDevices is clCreateSubDevices (§4.3): with room for none it counts. The driver judges the properties.
func (d *Driver) CreateSubDevices(h uintptr, properties []uint64, room uint32) (made []uintptr, count uint32,
	status api.Status) {
	parent := d.devices.Get(h)
	if parent == nil {
		return nil, 0, cl.INVALID_DEVICE
	}
	if len(properties) == 0 || len(properties) > clwire.MaxPartitioning {
		return nil, 0, cl.INVALID_VALUE
	}
	w, err := parent.platform.worker()
	if err != nil {
		d.cfg.Log("tendril: " + err.Error())
		return nil, 0, cl.OUT_OF_RESOURCES
	}
	if status := w.ensurePartition(parent.made); status != cl.SUCCESS {
		return nil, 0, status
	}
	p := &partition{parent: parent, properties: properties}
	answer, status := w.divide(p, 0)
	if status != cl.SUCCESS || room == 0 {
		return nil, answer.Count, status
	}
	if answer.Count > room {
		return nil, 0, cl.INVALID_VALUE
	}
	p.n = answer.Count
	p.first = parent.platform.subs.take(p.n)
	if answer, status = w.divide(p, p.n); status != cl.SUCCESS {
		return nil, 0, status
	}
	w.mu.Lock()
	w.partitions[p] = struct{}{}
	w.mu.Unlock()
	for i, snapshot := range answer.Devices {
		h, status := d.showSubDevice(p, uint32(i), snapshot)
		if status != cl.SUCCESS {
			return nil, 0, status
		}
		made = append(made, h)
	}
	return made, answer.Count, cl.SUCCESS
}

func (d *Driver) showSubDevice(p *partition, i uint32, snapshot clwire.DeviceSnapshot) (uintptr, api.Status) {
	snapshot.InPlace = p.parent.inPlace
	dev := &Device{platform: p.parent.platform, index: p.first + i, inPlace: snapshot.InPlace,
		info: devices.Mask(snapshot), made: p}
	dev.info[cl.DEVICE_PLATFORM] = answers.Size(dev.platform.handle)
	dev.info[cl.DEVICE_PARENT_DEVICE] = answers.Size(p.parent.handle)
	if _, ok := p.parent.info[cl.DEVICE_HOST_UNIFIED_MEMORY]; ok {
		dev.info[cl.DEVICE_HOST_UNIFIED_MEMORY] = p.parent.info[cl.DEVICE_HOST_UNIFIED_MEMORY]
	}
	dev.limits = devices.LimitsOf(dev.info)
	dev.refs.Set(1)
	h, err := d.devices.Put(dev)
	if err != nil {
		return 0, cl.OUT_OF_HOST_MEMORY
	}
	dev.handle = h
	p.parent.hold()
	return h, cl.SUCCESS
}

// divide asks the worker; room 0 counts.
func (w *worker) divide(p *partition, room uint32) (answer clwire.SubDevices, status api.Status) {
	m := &clwire.CreateSubDevices{Device: p.parent.index, First: max(p.first, clwire.SubDeviceBase), Room: room,
		Properties: p.properties}
	data, status := w.ask(m)
	if status != cl.SUCCESS {
		return answer, status
	}
	if err := json.Unmarshal(data, &answer); err != nil || room != 0 && len(answer.Devices) != int(room) {
		return answer, cl.OUT_OF_RESOURCES
	}
	return answer, cl.SUCCESS
}

// ensurePartition makes sub-devices known to a worker that did not make them: a new one, after another's death.
func (w *worker) ensurePartition(p *partition) api.Status {
	if p == nil {
		return cl.SUCCESS
	}
	w.mu.Lock()
	_, known := w.partitions[p]
	w.mu.Unlock()
	if known {
		return cl.SUCCESS
	}
	if status := w.ensurePartition(p.parent.made); status != cl.SUCCESS {
		return status
	}
	if _, status := w.divide(p, p.n); status != cl.SUCCESS {
		return status
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.partitions[p] = struct{}{}
	return cl.SUCCESS
}

// parent is the device that this one is a part of; nil: none, it is a root device.
func (dev *Device) parent() *Device {
	if dev.made == nil {
		return nil
	}
	return dev.made.parent
}

// root is the device that this one is a part of, or of a part of; itself if it is no part.
func (dev *Device) root() *Device {
	for dev.made != nil {
		dev = dev.made.parent
	}
	return dev
}

// hold and letGo count uses of a sub-device; a root device counts nothing (§4.3).
func (dev *Device) hold() {
	if dev.made != nil {
		dev.refs.Retain()
	}
}

func (dev *Device) letGo() bool {
	if dev.made == nil {
		return true
	}
	ok, last := dev.refs.Release()
	if !last {
		return ok
	}
	p := dev.platform
	p.d.devices.Remove(dev.handle)
	if w := p.current.Load(); w != nil {
		w.SendOneWay(&clwire.ReleaseSubDevice{Device: dev.index})
	}
	dev.made.parent.letGo()
	return true
}

// RetainDevice is clRetainDevice.
func (d *Driver) RetainDevice(h uintptr) api.Status {
	dev := d.devices.Get(h)
	if dev == nil || dev.made != nil && !dev.refs.Retain() {
		return cl.INVALID_DEVICE
	}
	return cl.SUCCESS
}

// ReleaseDevice is clReleaseDevice.
func (d *Driver) ReleaseDevice(h uintptr) api.Status {
	if dev := d.devices.Get(h); dev == nil || !dev.letGo() {
		return cl.INVALID_DEVICE
	}
	return cl.SUCCESS
}
