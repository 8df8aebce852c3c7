package span

import "tendril/forwarding/api"

// The compiler holds the list of entry points: one that is missing here does not build, where it would be answered by
// the Base without a look at this package's objects.
var _ api.Driver = (*Driver)(nil)

// Devices are the Base's, also those of a platform that spans.

// CreateSubDevices is clCreateSubDevices (§4.3).
func (d *Driver) CreateSubDevices(h uintptr, properties []uint64, room uint32) (made []uintptr, count uint32,
	status api.Status) {
	return d.base.CreateSubDevices(h, properties, room)
}

// RetainDevice is clRetainDevice.
func (d *Driver) RetainDevice(h uintptr) api.Status { return d.base.RetainDevice(h) }

// ReleaseDevice is clReleaseDevice.
func (d *Driver) ReleaseDevice(h uintptr) api.Status { return d.base.ReleaseDevice(h) }

// DeviceTimer is clGetDeviceAndHostTimer (§4.3).
func (d *Driver) DeviceTimer(h uintptr) (device, host uint64, status api.Status) {
	return d.base.DeviceTimer(h)
}

// HostTimer is clGetHostTimer (§4.3).
func (d *Driver) HostTimer(h uintptr) (uint64, api.Status) { return d.base.HostTimer(h) }
