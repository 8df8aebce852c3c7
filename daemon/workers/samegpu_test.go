package workers

import (
	"errors"
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// A GPU that two platforms show is one: by its UUID, or by its place on the bus where one of the drivers gives none.
// Its sessions are counted together, each worker once.
func TestOneGPUOfTwoPlatforms(t *testing.T) {
	p, platforms := fakeGPUs(t, func(o *Options) {
		o.SessionBytes = gpuBytes / 4
		o.Objects = func(_, uuid string, _ uint64) uint64 {
			if uuid != "00112233445566778899aabbccddeeff" {
				t.Errorf("objects of %q were asked for", uuid)
			}
			return gpuBytes / 4
		}
	}, "gpus-twice")
	if len(platforms) != 2 || len(platforms[1].Snapshot.Devices) != 2 {
		t.Fatalf("%d platforms", len(platforms))
	}
	for i, pl := range []*Platform{platforms[0], platforms[1], platforms[1]} {
		if err := begin(t, t.Context(), p, pl, uint64(i+1)); err != nil {
			t.Fatalf("session %d: %v", i+1, err)
		}
	}
	for i, pl := range platforms { // three sessions and the objects take all of it
		if err := begin(t, t.Context(), p, pl, 9); !errors.Is(err, object.ErrBusy) {
			t.Errorf("platform %d: %v", i, err)
		}
	}
	p.ReleaseSession(2)
	if err := begin(t, t.Context(), p, platforms[0], 4); err != nil {
		t.Errorf("after one on the other platform ended: %v", err)
	}
	for i := range uint64(4) {
		p.ReleaseSession(i + 1)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.admitted) != 0 {
		t.Errorf("all have ended, and %v are charged", p.admitted)
	}
}

// Whose UUID a device has.
func TestUUIDsOfOnePlace(t *testing.T) {
	const node = "n"
	at := func(bus byte) map[uint32][]byte {
		raw := make([]byte, 16)
		raw[4] = bus
		return map[uint32][]byte{cl.DEVICE_PCI_BUS_INFO_KHR: raw}
	}
	platform := func(index int, devices ...clwire.DeviceSnapshot) *clwire.PlatformSnapshot {
		s := clwire.PlatformSnapshot{ICD: "x", Index: index, Devices: devices}
		for i := range devices {
			if devices[i].UUID == "" {
				devices[i].UUID = derivedUUID(node, s, i)
			}
		}
		return &s
	}
	first := platform(0, clwire.DeviceSnapshot{Info: at(1)}, clwire.DeviceSnapshot{Info: at(2)},
		clwire.DeviceSnapshot{Info: at(3)}, clwire.DeviceSnapshot{})
	second := platform(1, clwire.DeviceSnapshot{UUID: "a", Info: at(1)}, clwire.DeviceSnapshot{UUID: "b", Info: at(2)},
		clwire.DeviceSnapshot{UUID: "c", Info: at(2)}, clwire.DeviceSnapshot{UUID: "d"})
	third := platform(2, clwire.DeviceSnapshot{UUID: "a", Info: at(1)})
	shareUUIDs([]*clwire.PlatformSnapshot{first, second, third}, func(s *clwire.PlatformSnapshot, i int) bool {
		return s.Devices[i].UUID == derivedUUID(node, *s, i)
	})
	for i, x := range []struct {
		uuid string
		why  string
	}{{"a", "at the same place"}, {derivedUUID(node, *first, 1), "the place of two parts"},
		{derivedUUID(node, *first, 2), "a place of its own"}, {derivedUUID(node, *first, 3), "no place"}} {
		if got := first.Devices[i].UUID; got != x.uuid {
			t.Errorf("%s: %q, want %q", x.why, got, x.uuid)
		}
	}
}
