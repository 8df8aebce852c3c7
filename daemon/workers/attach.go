package workers

import (
	"encoding/json"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// Attach gives a worker a segment to read, or memory of a GPU where device is not zero; fd stays the caller's. It
// answers the number under which the worker knows it, which no segment of its client's has. ErrNotFound when the
// session has no such worker.
func (p *Pool) Attach(session, id, bytes uint64, device object.Device, fd int) (number uint64, err error) {
	s, err := p.find(session, id)
	if err != nil {
		return 0, err
	}
	number = clwire.AttachedSegment | p.attached.Add(1)
	m := clwire.WorkerAttach{Segment: number, Bytes: bytes}
	if !device.IsZero() {
		number |= clwire.AttachedDevice
		m.Segment, m.Device = number, device.String()
	}
	raw, err := json.Marshal(clwire.DaemonMessage{Attach: &m})
	if err != nil {
		return 0, err
	}
	return number, s.w.tell(raw, fd)
}
