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
// other: parts of a GPU have several. platforms are all that drivers have, in their order.
func shareUUIDs(node string, platforms []*Platform) {
	own := map[[4]uint32]string{} // "": several
	derived := map[*clwire.DeviceSnapshot][4]uint32{}
	for _, p := range platforms {
		for i := range p.Snapshot.Devices {
			d := &p.Snapshot.Devices[i]
			at, known := pciAddress(d)
			switch before, is := own[at]; {
			case !known:
			case d.UUID == derivedUUID(node, p.Snapshot, i):
				derived[d] = at
			case is && before != d.UUID:
				own[at] = ""
			default:
				own[at] = d.UUID
			}
		}
	}
	for d, at := range derived {
		if own[at] != "" {
			d.UUID = own[at]
		}
	}
}

// gpu is one GPU with memory of its own that a session on a platform has a context on.
type gpu struct {
	uuid  string
	bytes uint64
	mode  clwire.ComputeMode
}

// gpusOf gives them, each once: a worker is one process with one context on each, however often its platform shows one.
func gpusOf(pl *Platform) (list []gpu) {
	seen := map[string]bool{}
	for _, d := range pl.Snapshot.Devices {
		if bytes := ownMemory(d); bytes > 0 && !seen[d.UUID] {
			seen[d.UUID] = true
			list = append(list, gpu{d.UUID, bytes, d.Mode})
		}
	}
	return list
}
