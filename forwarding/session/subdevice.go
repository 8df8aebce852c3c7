package session

import (
	"encoding/json"
	"sync/atomic"

	"tendril/forwarding/clwire"
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
func (d *Driver) CreateSubDevices(h uintptr, properties []uint64, room uint32) (made []uintptr, count uint32, status Status) {
	parent := d.devices.Get(h)
	if parent == nil {
		return nil, 0, InvalidDevice
	}
	if len(properties) == 0 || len(properties) > clwire.MaxPartitioning {
		return nil, 0, InvalidValue
	}
	w, err := parent.platform.worker()
	if err != nil {
		d.cfg.Log("tendril: " + err.Error())
		return nil, 0, OutOfResources
	}
	if status := w.ensurePartition(parent.made); status != Success {
		return nil, 0, status
	}
	p := &partition{parent: parent, properties: properties}
	answer, status := w.divide(p, 0)
	if status != Success || room == 0 {
		return nil, answer.Count, status
	}
	if answer.Count > room {
		return nil, 0, InvalidValue
	}
	p.n = answer.Count
	p.first = parent.platform.subs.take(p.n)
	if answer, status = w.divide(p, p.n); status != Success {
		return nil, 0, status
	}
	w.mu.Lock()
	w.partitions[p] = struct{}{}
	w.mu.Unlock()
	for i, snapshot := range answer.Devices {
		h, status := d.showSubDevice(p, uint32(i), snapshot)
		if status != Success {
			return nil, 0, status
		}
		made = append(made, h)
	}
	return made, answer.Count, Success
}

func (d *Driver) showSubDevice(p *partition, i uint32, snapshot clwire.DeviceSnapshot) (uintptr, Status) {
	snapshot.InPlace = p.parent.inPlace
	dev := &Device{platform: p.parent.platform, index: p.first + i, inPlace: snapshot.InPlace, info: maskDevice(snapshot), made: p}
	dev.info[devPlatform] = infoSize(dev.platform.handle)
	dev.info[devParent] = infoSize(p.parent.handle)
	if _, ok := p.parent.info[devHostUnifiedMemory]; ok {
		dev.info[devHostUnifiedMemory] = p.parent.info[devHostUnifiedMemory]
	}
	dev.limits = limitsOf(dev.info)
	dev.refs.Set(1)
	h, err := d.devices.Put(dev)
	if err != nil {
		return 0, OutOfHostMemory
	}
	dev.handle = h
	p.parent.hold()
	return h, Success
}

// divide asks the worker; room 0 counts.
func (w *worker) divide(p *partition, room uint32) (answer clwire.SubDevices, status Status) {
	m := &clwire.CreateSubDevices{Device: p.parent.index, First: max(p.first, clwire.SubDeviceBase), Room: room, Properties: p.properties}
	c, err := w.ask(m)
	if err != nil {
		return answer, OutOfResources
	}
	if c.status != Success {
		return answer, c.status
	}
	if err := json.Unmarshal(c.data, &answer); err != nil || room != 0 && len(answer.Devices) != int(room) {
		return answer, OutOfResources
	}
	return answer, Success
}

// ensurePartition makes sub-devices known to a worker that did not make them: a new one, after another's death.
func (w *worker) ensurePartition(p *partition) Status {
	if p == nil {
		return Success
	}
	w.mu.Lock()
	_, known := w.partitions[p]
	w.mu.Unlock()
	if known {
		return Success
	}
	if status := w.ensurePartition(p.parent.made); status != Success {
		return status
	}
	if _, status := w.divide(p, p.n); status != Success {
		return status
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.partitions[p] = struct{}{}
	return Success
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
	p.mu.Lock()
	w := p.current
	p.mu.Unlock()
	if w != nil {
		w.tell(&clwire.ReleaseSubDevice{Device: dev.index})
	}
	dev.made.parent.letGo()
	return true
}

// RetainDevice is clRetainDevice.
func (d *Driver) RetainDevice(h uintptr) Status {
	dev := d.devices.Get(h)
	if dev == nil || dev.made != nil && !dev.refs.Retain() {
		return InvalidDevice
	}
	return Success
}

// ReleaseDevice is clReleaseDevice.
func (d *Driver) ReleaseDevice(h uintptr) Status {
	if dev := d.devices.Get(h); dev == nil || !dev.letGo() {
		return InvalidDevice
	}
	return Success
}
