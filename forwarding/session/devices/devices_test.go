package devices

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

func TestSelector(t *testing.T) {
	device := func(kind, gib uint64, name, uuid string) clwire.DeviceSnapshot {
		return clwire.DeviceSnapshot{UUID: uuid, Info: map[uint32][]byte{cl.DEVICE_TYPE: answers.U64(kind),
			cl.DEVICE_GLOBAL_MEM_SIZE: answers.U64(gib << 30), cl.DEVICE_NAME: answers.String(name)}}
	}
	snapshot := &clwire.Snapshot{Platforms: []clwire.PlatformSnapshot{
		{Info: map[uint32][]byte{cl.PLATFORM_NAME: answers.String("Portable")},
			Devices: []clwire.DeviceSnapshot{device(2, 4, "cpu", "00000000-aaaa")}},
		{Info: map[uint32][]byte{cl.PLATFORM_NAME: answers.String("NVIDIA CUDA")},
			Devices: []clwire.DeviceSnapshot{device(4, 80, "H100", "deadbeef-1111"),
				device(4, 140, "H200", "deadbeef-2222")}},
	}}
	cases := []struct{ text, want string }{
		{"", "[{0 0} {1 0} {1 1}]"}, {"1", "[{1 0}]"}, {"2;0", "[{1 1} {0 0}]"}, {"type=gpu", "[{1 0} {1 1}]"},
		{"type=gpu,mem>=100G", "[{1 1}]"},
		{"mem<=4GiB", "[{0 0}]"}, {"deadbeef2", "[{1 1}]"}, {"DEADBEEF-1111", "[{1 0}]"}, {"name=h2", "[{1 1}]"},
		{"platform=portable ; type=gpu", "[{0 0} {1 0} {1 1}]"},
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
	for _, bad := range []string{"gpu", "type=tpu", "mem>=lots", "mem=8G", ";", "1,", "name=", "beef", "-1",
		"color=red"} {
		if _, err := ParseSelector(bad); !errors.Is(err, ErrSelector) || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzSelector(f *testing.F) {
	for _, seed := range []string{"", "0;1", "type=gpu,mem>=8G", "deadbeef", "name=x;platform=y"} {
		f.Add(seed)
	}
	device := clwire.DeviceSnapshot{UUID: "0123456789abcdef", Info: map[uint32][]byte{
		cl.DEVICE_TYPE: answers.U64(cl.DEVICE_TYPE_CPU), cl.DEVICE_GLOBAL_MEM_SIZE: answers.U64(8 << 30),
		cl.DEVICE_NAME: answers.String("fake device")}}
	platform := clwire.PlatformSnapshot{Info: map[uint32][]byte{cl.PLATFORM_NAME: answers.String("Fake")},
		Devices: []clwire.DeviceSnapshot{device}}
	snapshot := clwire.Snapshot{Platforms: []clwire.PlatformSnapshot{platform, platform}}
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
	features := answers.NameVersions([]answers.NameVersion{
		{Version: 3 << 22, Name: "__opencl_c_pipes"}, {Version: 3 << 22, Name: "__opencl_c_images"},
		{Version: 3 << 22, Name: "__opencl_c_fp64"}})
	info := Mask(clwire.DeviceSnapshot{Info: map[uint32][]byte{
		cl.DEVICE_IMAGE_SUPPORT: answers.U32(1), cl.DEVICE_IMAGE2D_MAX_WIDTH: answers.Size(16384),
		cl.DEVICE_SVM_CAPABILITIES: answers.U64(15), cl.DEVICE_PIPE_SUPPORT: answers.U32(1),
		cl.DEVICE_PARTITION_MAX_SUB_DEVICES: answers.U32(2),
		cl.DEVICE_EXECUTION_CAPABILITIES:    answers.U64(3), cl.DEVICE_IL_VERSION: answers.String("SPIR-V_1.2"),
		cl.DEVICE_ILS_WITH_VERSION:  answers.NameVersions([]answers.NameVersion{{Version: 1 << 22, Name: "SPIR-V"}}),
		cl.DEVICE_EXTENSIONS:        answers.String("cl_khr_fp64 cl_khr_gl_event  cl_khr_subgroup_ballot cl_khr_gl_sharing "),
		cl.DEVICE_OPENCL_C_FEATURES: features,
		cl.DEVICE_BUILT_IN_KERNELS:  answers.String("pocl.add"), cl.DEVICE_NAME: answers.String("native"),
	}})
	for param, want := range map[uint32][]byte{
		cl.DEVICE_IMAGE_SUPPORT: answers.U32(1), cl.DEVICE_IMAGE2D_MAX_WIDTH: answers.Size(16384),
		cl.DEVICE_SVM_CAPABILITIES: answers.U64(1), cl.DEVICE_PIPE_SUPPORT: answers.U32(0),
		cl.DEVICE_PARTITION_MAX_SUB_DEVICES: answers.U32(2),
		cl.DEVICE_EXECUTION_CAPABILITIES:    answers.U64(1), cl.DEVICE_IL_VERSION: answers.String("SPIR-V_1.2"),
		cl.DEVICE_ILS_WITH_VERSION: answers.NameVersions([]answers.NameVersion{{Version: 1 << 22, Name: "SPIR-V"}}),
		cl.DEVICE_EXTENSIONS:       answers.String("cl_khr_fp64  cl_khr_subgroup_ballot cl_khr_command_buffer"),
		cl.DEVICE_OPENCL_C_FEATURES: answers.NameVersions([]answers.NameVersion{{Version: 3 << 22, Name: "__opencl_c_images"},
			{Version: 3 << 22, Name: "__opencl_c_fp64"}}), cl.DEVICE_BUILT_IN_KERNELS: answers.String("pocl.add"),
		cl.DEVICE_NAME:          answers.String("native"),
		cl.DEVICE_PARENT_DEVICE: answers.Size(0), cl.DEVICE_REFERENCE_COUNT: answers.U32(1),
	} {
		if !slices.Equal(info[param], want) {
			t.Errorf("%#x: %q, want %q", param, info[param], want)
		}
	}
}

// TestSharedVirtualMask: the fine grain where program and device have one memory, and nothing that the device has not.
func TestSharedVirtualMask(t *testing.T) {
	for _, c := range []struct {
		native  uint64
		inPlace bool
		want    uint64
	}{{15, true, 11}, {15, false, 1}, {1, true, 1}, {0, true, 0}, {2, false, 0}} {
		info := Mask(clwire.DeviceSnapshot{InPlace: c.inPlace, Info: map[uint32][]byte{
			cl.DEVICE_SVM_CAPABILITIES: answers.U64(c.native)}})
		if got := answers.Number(info[cl.DEVICE_SVM_CAPABILITIES]); got != c.want {
			t.Errorf("%d natively, in place %v: %d, want %d", c.native, c.inPlace, got, c.want)
		}
	}
}
