package session

import (
	"tendril/forwarding/session/node"
	"tendril/forwarding/trace"
)

// memoryOf is where a driver's shared memory comes from: the daemon of this node.
type memoryOf struct{ d *Driver }

func (m *memoryOf) AllocSegment(size uint64, spare func()) (*node.Segment, error) {
	began := m.d.began()
	defer func() { m.d.tripped(began, trace.CauseSegment, nil, "") }()
	return m.d.control.AllocSegment(size, spare)
}

func (m *memoryOf) FreeSegment(s *node.Segment) { m.d.control.FreeSegment(s) }

func (m *memoryOf) ForgetSegment(s *node.Segment) {
	for _, w := range m.d.workers() {
		w.DropSegment(s.ID)
	}
}

func (m *memoryOf) Log(line string) { m.d.cfg.Log(line) }

// workers gives the workers that serve the driver now. It takes no lock.
func (d *Driver) workers() (all []*worker) {
	for _, p := range d.connectedPlatforms() {
		if w := p.current.Load(); w != nil {
			all = append(all, w)
		}
	}
	return all
}
