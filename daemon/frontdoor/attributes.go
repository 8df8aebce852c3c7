package frontdoor

import (
	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store"
)

func (c *connection) createWith(f *ipc.Frame, m wire.CreateWithRequest) error {
	return c.createAs(f, store.Spec{
		SizeBytes: m.SizeBytes, Class: m.Class, Own: m.Flags&wire.CreateOwn != 0,
		Shared: m.Flags&wire.CreateShared != 0, Checksum: m.Flags&wire.CreateSummed != 0, Name: m.Name,
		Meta: m.Meta,
		TTL:  duration(m.TTLMS), Labels: m.Labels,
	})
}

func (c *connection) update(m wire.UpdateRequest) error {
	change := store.Change{Persist: m.Flags&wire.UpdatePersist != 0}
	if m.Flags&(wire.UpdatePin|wire.UpdateUnpin) != 0 {
		pinned := m.Flags&wire.UpdatePin != 0
		change.Pinned = &pinned
	}
	if m.Flags&wire.UpdateTTL != 0 {
		ttl := duration(m.TTLMS)
		change.TTL = &ttl
	}
	if m.Flags&wire.UpdateLabels != 0 {
		if change.Labels = m.Labels; change.Labels == nil {
			change.Labels = map[string]string{}
		}
	}
	return c.store.Update(m.ID, m.Name, change)
}
