package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tendril/forwarding/clwire"
)

func TestSelector(t *testing.T) {
	device := func(kind, gib uint64, name, uuid string) clwire.DeviceSnapshot {
		return clwire.DeviceSnapshot{UUID: uuid, Info: map[uint32][]byte{devType: infoU64(kind), devGlobalMemSize: infoU64(gib << 30), devName: infoString(name)}}
	}
	snapshot := &clwire.Snapshot{Platforms: []clwire.PlatformSnapshot{
		{Info: map[uint32][]byte{platformName: infoString("Portable")}, Devices: []clwire.DeviceSnapshot{device(2, 4, "cpu", "00000000-aaaa")}},
		{Info: map[uint32][]byte{platformName: infoString("NVIDIA CUDA")}, Devices: []clwire.DeviceSnapshot{device(4, 80, "H100", "deadbeef-1111"), device(4, 140, "H200", "deadbeef-2222")}},
	}}
	cases := []struct{ text, want string }{
		{"", "[{0 0} {1 0} {1 1}]"}, {"1", "[{1 0}]"}, {"2;0", "[{1 1} {0 0}]"}, {"type=gpu", "[{1 0} {1 1}]"}, {"type=gpu,mem>=100G", "[{1 1}]"},
		{"mem<=4GiB", "[{0 0}]"}, {"deadbeef2", "[{1 1}]"}, {"DEADBEEF-1111", "[{1 0}]"}, {"name=h2", "[{1 1}]"}, {"platform=portable ; type=gpu", "[{0 0} {1 0} {1 1}]"},
		{"7", "[]"}, {"type=gpu;0;1", "[{1 0} {1 1} {0 0}]"},
	}
	for _, c := range cases {
		s, err := ParseSelector(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if got := fmt.Sprint(s.Select(snapshot)); got != c.want {
			t.Errorf("%q chooses %s, want %s", c.text, got, c.want)
		}
	}
	for _, bad := range []string{"gpu", "type=tpu", "mem>=lots", "mem=8G", ";", "1,", "name=", "beef", "-1", "color=red"} {
		if _, err := ParseSelector(bad); !errors.Is(err, ErrSelector) || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzSelector(f *testing.F) {
	for _, seed := range []string{"", "0;1", "type=gpu,mem>=8G", "deadbeef", "name=x;platform=y"} {
		f.Add(seed)
	}
	snapshot := fakeSnapshot(true)
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseSelector(text); err == nil {
			chosen := s.Select(&snapshot)
			for i, c := range chosen {
				if slices.Contains(chosen[:i], c) {
					t.Errorf("%q chooses %v twice", text, c)
				}
			}
		}
	})
}

func TestMask(t *testing.T) {
	features := infoNameVersions([]nameVersion{{3 << 22, "__opencl_c_pipes"}, {3 << 22, "__opencl_c_images"}, {3 << 22, "__opencl_c_fp64"}})
	info := maskDevice(clwire.DeviceSnapshot{Info: map[uint32][]byte{
		devImageSupport: infoU32(1), 0x1011: infoSize(16384), devSVM: infoU64(15), devPipeSupport: infoU32(1), devPartitionMax: infoU32(2),
		devExecCapabilities: infoU64(3), devILVersion: infoString("SPIR-V_1.2"), devILsVersions: infoNameVersions([]nameVersion{{1 << 22, "SPIR-V"}}),
		devExtensions: infoString("cl_khr_fp64 cl_khr_gl_event  cl_khr_subgroup_ballot cl_khr_gl_sharing "), devOpenCLCFeatures: features,
		devBuiltInKernels: infoString("pocl.add"), devName: infoString("native"),
	}})
	for param, want := range map[uint32][]byte{
		devImageSupport: infoU32(1), 0x1011: infoSize(16384), devSVM: infoU64(0), devPipeSupport: infoU32(0), devPartitionMax: infoU32(2),
		devExecCapabilities: infoU64(1), devILVersion: infoString("SPIR-V_1.2"), devILsVersions: infoNameVersions([]nameVersion{{1 << 22, "SPIR-V"}}), devExtensions: infoString("cl_khr_fp64  cl_khr_subgroup_ballot cl_khr_command_buffer"),
		devOpenCLCFeatures: infoNameVersions([]nameVersion{{3 << 22, "__opencl_c_images"}, {3 << 22, "__opencl_c_fp64"}}), devBuiltInKernels: infoString("pocl.add"), devName: infoString("native"),
		devParent: infoSize(0), devReferenceCount: infoU32(1),
	} {
		if !slices.Equal(info[param], want) {
			t.Errorf("%#x: %q, want %q", param, info[param], want)
		}
	}
}

// TestBufferFlags: one row a rule of §5.2.1.
func TestBufferFlags(t *testing.T) {
	r := newRig(t, true)
	host := pattern(64, 0)
	cases := []struct {
		flags uint64
		host  bool
		size  uint64
		want  Status
	}{
		{0, false, 64, Success}, {memReadOnly | memHostReadOnly, false, 64, Success}, {memReadWrite | memReadOnly, false, 64, InvalidValue},
		{memHostReadOnly | memHostNoAccess, false, 64, InvalidValue}, {1 << 20, false, 64, InvalidValue}, {memUseHostPtr | memCopyHostPtr, true, 64, InvalidValue},
		{memUseHostPtr | memAllocHostPtr, true, 64, InvalidValue}, {memAllocHostPtr | memCopyHostPtr, true, 64, Success}, {memUseHostPtr, false, 64, InvalidHostPtr},
		{memCopyHostPtr, false, 64, InvalidHostPtr}, {0, true, 64, InvalidHostPtr}, {0, false, 0, InvalidBufferSize}, {0, false, 1<<30 + 1, InvalidBufferSize},
	}
	for _, c := range cases {
		var p HostPtr
		if c.host {
			p = ptr(host)
		}
		h, got := r.d.CreateBuffer(r.ctx, nil, c.flags, c.size, p)
		if got != c.want {
			t.Errorf("flags %#x, host %v, size %d: %d, want %d", c.flags, c.host, c.size, got, c.want)
		}
		if got == Success {
			r.ok(r.d.ReleaseMemObject(h))
		}
	}
	_, status := r.d.CreateBuffer(r.ctx, []uint64{1, 2, 0}, 0, 64, HostPtr{})
	r.is(status, InvalidProperty)
	_, status = r.d.CreateBuffer(r.ctx+8, nil, 0, 64, HostPtr{})
	r.is(status, InvalidContext)
}
