//go:build cgo

package worker

import (
	"encoding/json"
	"fmt"
	"sync"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/opencl"
	"tendril/forwarding/worker/snapshot"
)

// device finds a device of the snapshot, or a sub-device; 0 if there is none.
func (s *session) device(i uint32) opencl.Device {
	if i < uint32(len(s.devices)) {
		return s.devices[i]
	}
	return s.subs.get(i)
}

// subDevices are the session's, by the client's index: the reader's, but builds look devices up as well.
type subDevices struct {
	mu   sync.RWMutex // leaf
	byID map[uint32]opencl.Device
}

func (m *subDevices) get(i uint32) opencl.Device {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.byID[i]
}

// put takes a device over; 0 takes the one that is there away, and returns it.
func (m *subDevices) put(i uint32, d opencl.Device) (old opencl.Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old = m.byID[i]
	if m.byID == nil {
		m.byID = map[uint32]opencl.Device{}
	}
	if m.byID[i] = d; d == 0 {
		delete(m.byID, i)
	}
	return old
}

func (m *subDevices) count() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.byID)
}

func (s *session) releaseSubDevice(m *clwire.ReleaseSubDevice) error {
	// Only its number goes: PoCL 3.1 crashes where an event that the engine still holds outlives its device.
	s.subs.put(m.Device, 0)
	return nil
}

func (s *session) specConstant(h clwire.Header, m *clwire.SpecConstant) error {
	program, err := lookup[*program](s, m.Program)
	if err != nil {
		return err
	}
	status := program.status
	switch {
	case program.building():
		status = cl.INVALID_OPERATION
	case status == cl.SUCCESS && len(m.Value) > 0:
		status = program.native.SetSpecConstant(m.ID, m.Value)
	}
	s.outcome(h, m.Program, status, "clSetProgramSpecializationConstant")
	return nil
}

// createSubDevices asks the driver in the reader: it makes descriptions and moves nothing.
func (s *session) createSubDevices(h clwire.Header, m *clwire.CreateSubDevices) error {
	parent := s.device(m.Device)
	if parent == 0 || m.First < clwire.SubDeviceBase || m.First > 1<<31 || h.Request == 0 {
		return fmt.Errorf("%w: sub-devices %d of device %d", errRecord, m.First, m.Device)
	}
	properties := make([]uintptr, 0, len(m.Properties)+2)
	for _, v := range m.Properties {
		properties = append(properties, uintptr(v))
	}
	properties = append(properties, 0, 0) // a list that the client did not end
	var answer clwire.SubDevices
	n, status := parent.CountSubDevices(properties)
	switch {
	case status != cl.SUCCESS:
	case n > clwire.MaxSubDevices || uint64(s.subs.count())+uint64(n) > clwire.MaxSubDevices:
		status = cl.OUT_OF_RESOURCES
	case m.Room != 0 && n > m.Room:
		status = cl.INVALID_VALUE
	case m.Room != 0:
		answer, status = s.makeSubDevices(parent, properties, m.First, n)
	}
	if status != cl.SUCCESS {
		s.reply(h.Request, status, nil)
		return nil
	}
	answer.Count = n
	out, err := json.Marshal(&answer)
	if err != nil {
		return err
	}
	s.reply(h.Request, status, out)
	return nil
}

func (s *session) makeSubDevices(parent opencl.Device, properties []uintptr, first, n uint32) (answer clwire.SubDevices,
	status opencl.Status) {
	for i := range n {
		if s.subs.get(first+i) != 0 {
			return answer, cl.INVALID_VALUE
		}
	}
	devices, status := parent.CreateSubDevices(properties, n)
	for i, d := range devices {
		s.subs.put(first+uint32(i), d)
		answer.Devices = append(answer.Devices, snapshot.Device(d))
	}
	return answer, status
}

// timers is clGetDeviceAndHostTimer.
func (s *session) timers(h clwire.Header, device uint32) error {
	d := s.device(device)
	if d == 0 {
		return fmt.Errorf("%w: device %d of %d", errRecord, device, len(s.devices))
	}
	now, host, status := d.Timers()
	s.reply(h.Request, status, nativeOrder.AppendUint64(nativeOrder.AppendUint64(nil, now), host))
	return nil
}
