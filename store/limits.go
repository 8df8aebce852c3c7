package store

// TenantLimits bounds what one tenant has; 0 is what Options have for all.
type TenantLimits struct {
	Bytes       uint64 // as Options.TenantBytes
	SpillBytes  uint64 // as Options.TenantSpillBytes
	DeviceBytes uint64 // as Options.TenantDeviceBytes
}

// SetTenantLimits gives the tenants of limits bounds of their own, and all others those of Options. What a tenant has
// beyond a bound it keeps: it gets no more.
func (s *Store) SetTenantLimits(limits map[string]TenantLimits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = limits
	for _, t := range s.tenants {
		t.limits = limits[t.name]
	}
}

// mostBytes is what t may be charged; 0: only the capacity bounds it. mu is held.
func (s *Store) mostBytes(t *tenant) uint64 {
	switch n := t.limits.Bytes; {
	case n == 0:
		return s.opts.TenantBytes
	case n >= s.opts.CapacityBytes:
		return 0
	default:
		return n
	}
}

// mostOnDisk is what t may have on disk; 0: only the disk bounds it. mu is held.
func (s *Store) mostOnDisk(t *tenant) uint64 {
	if n := t.limits.SpillBytes; n > 0 {
		return n
	}
	return s.opts.TenantSpillBytes
}

// mostOnDevice is what t's objects may take of a GPU's memory; 0: no bound. mu is held.
func (s *Store) mostOnDevice(t *tenant) uint64 {
	if n := t.limits.DeviceBytes; n > 0 {
		return n
	}
	return s.opts.TenantDeviceBytes
}
