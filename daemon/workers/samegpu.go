package workers

import (
	"encoding/binary"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// One GPU may be a device of several platforms: of its vendor's OpenCL, of PoCL's, and of CUDA. What is charged is
// charged by the device's UUID, so these must be one UUID. Drivers that have the extension cl_khr_device_uuid agree on
// it. One that does not is known by its place on the PCI bus (cl_khr_pci_bus_info).

// pciAddress is where a device sits: domain, bus, device and function. false: its driver does not say.
func pciAddress(d *clwire.DeviceSnapshot) (at [4]uint32, known bool) {
	raw := d.Info[cl.DEVICE_PCI_BUS_INFO_KHR]
	if len(raw) != 16 {
		return at, false
	}
	for i := range at {
		at[i] = binary.NativeEndian.Uint32(raw[4*i:])
	}
	return at, true
}

// shareUUIDs gives each device without a UUID of its own that of the device at the same place, if there is one and no
// other: parts of a GPU have several. derived says whether a device's UUID is none of its driver's.
func shareUUIDs(platforms []*clwire.PlatformSnapshot, derived func(s *clwire.PlatformSnapshot, i int) bool) {
	own := map[[4]uint32]string{} // "": several
	without := map[*clwire.DeviceSnapshot][4]uint32{}
	for _, s := range platforms {
		for i := range s.Devices {
			d := &s.Devices[i]
			at, known := pciAddress(d)
			switch before, is := own[at]; {
			case !known:
			case derived(s, i):
				without[d] = at
			case is && before != d.UUID:
				own[at] = ""
			default:
				own[at] = d.UUID
			}
		}
	}
	for d, at := range without {
		if own[at] != "" {
			d.UUID = own[at]
		}
	}
}
