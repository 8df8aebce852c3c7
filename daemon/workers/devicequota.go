package workers

import (
	"encoding/json"
	"fmt"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// Reserve lets the buffers of a session's worker take bytes of its devices' own memory in all, less than before or
// more, and tells the worker where there is a quota: it holds its client to it. Memory of segments is the store's and
// charged there.
//
// Errors: ErrNotFound when the session has no such worker; ErrQuota when its tenant's workers would have more than
// Options.DeviceBytes together, and then what was reserved stays.
func (p *Pool) Reserve(session, id, bytes uint64) error {
	s, err := p.find(session, id)
	if err != nil {
		return err
	}
	s.reserving.Lock()
	defer s.reserving.Unlock()
	if err := p.book(s, bytes); err != nil || p.mostOnDevices(s.w.key.tenant) == 0 {
		return err
	}
	raw, err := json.Marshal(clwire.DaemonMessage{DeviceLimit: &clwire.DeviceLimit{Bytes: bytes}})
	if err != nil {
		return err
	}
	return s.w.tell(raw)
}

func (p *Pool) mostOnDevices(tenant string) uint64 {
	if p.opts.DeviceBytes == nil {
		return 0
	}
	return p.opts.DeviceBytes(tenant)
}

// book changes what s has reserved.
func (p *Pool) book(s *assigned, bytes uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	tenant := s.w.key.tenant
	limit := p.mostOnDevices(tenant)
	if limit > 0 && bytes > s.deviceBytes {
		var others uint64
		for _, other := range p.serving {
			if other != s && other.w.key.tenant == tenant && !other.w.ended() {
				others += other.deviceBytes
			}
		}
		if others > limit || bytes > limit-others {
			return fmt.Errorf("%w: tenant %s has %d of %d bytes of devices' memory, %d of them for this program, which asks for %d: release buffers, end other programs, or raise --quota-device",
				object.ErrQuota, tenant, others+s.deviceBytes, limit, s.deviceBytes, bytes)
		}
	}
	s.deviceBytes = bytes
	return nil
}
