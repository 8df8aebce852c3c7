package session

import (
	"slices"
	"strings"

	"tendril/forwarding/clwire"
)

// What a native device can and this library does not forward is not shown: a program that asks first never meets an
// error later. docs/OPENCL.md lists it.

// zeroed are scalar parameters answered as 0 of their native length.
var zeroed = []uint32{
	0x104E, 0x104F, 0x1050, 0x1051, 0x1052, devDeviceEnqueueCaps, // queues on the device
	devSVM, 0x1055, 0x1056, 0x1057, devPipeSupport,
	devParent,
}

// inKernel are the extensions that need nothing of the API but what is forwarded. A name that ends in * is a prefix.
var inKernel = []string{
	"cl_khr_fp16", "cl_khr_fp64", "cl_khr_byte_addressable_store", "cl_khr_select_fprounding_mode",
	"cl_khr_global_int32_*", "cl_khr_local_int32_*", "cl_khr_int64_*", "cl_khr_subgroup*",
	"cl_khr_integer_dot_product", "cl_khr_expect_assume", "cl_khr_extended_bit_ops", "cl_khr_extended_versioning",
	"cl_khr_work_group_uniform_arithmetic", "cl_khr_kernel_clock", "cl_khr_spir", "cl_khr_device_uuid", "cl_khr_pci_bus_info",
	"cl_ext_float_atomics", "cl_nv_compiler_options", "cl_nv_device_attribute_query", "cl_nv_pragma_unroll", "cl_nv_copy_opts",
	"cl_amd_device_attribute_query", "cl_amd_media_ops*", "cl_amd_printf", "cl_amd_fp64", "cl_intel_subgroups*",
	commandBufferExtension, "cl_khr_3d_image_writes", "cl_khr_depth_images", "cl_khr_image2d_from_buffer", "cl_khr_srgb_image_writes",
	"cl_intel_required_subgroup_size", "cl_intel_device_attribute_query", "cl_intel_bfloat16_conversions",
}

// apiFeatures are OpenCL C features that need objects which are not forwarded.
var apiFeatures = map[string]bool{
	"__opencl_c_pipes": true, "__opencl_c_device_enqueue": true,
}

func extensionShown(name string) bool {
	for _, pattern := range inKernel {
		if prefix, isPrefix := strings.CutSuffix(pattern, "*"); name == pattern || isPrefix && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// maskDevice returns a device's native answers without what is not forwarded.
func maskDevice(snapshot clwire.DeviceSnapshot) map[uint32][]byte {
	info := make(map[uint32][]byte, len(snapshot.Info)+4)
	for param, value := range snapshot.Info {
		info[param] = value
	}
	for _, param := range zeroed {
		if value, ok := info[param]; ok {
			info[param] = make([]byte, len(value))
		}
	}
	info[devParent] = infoSize(0)
	info[devReferenceCount] = infoU32(1)
	info[devExecCapabilities] = infoU64(number(info[devExecCapabilities]) & execKernel)
	maskNames(info)
	return info
}

func maskNames(info map[uint32][]byte) {
	info[devExtensions] = infoString(filterExtensions(text(info[devExtensions])))
	if value, ok := info[devExtensionsVersions]; ok {
		info[devExtensionsVersions] = filterNames(value, extensionShown)
	}
	addCommandBuffers(info)
	if value, ok := info[devOpenCLCFeatures]; ok {
		info[devOpenCLCFeatures] = filterNames(value, func(name string) bool { return !apiFeatures[name] })
	}
}

// addCommandBuffers shows the extension on every device, in the version that is here.
func addCommandBuffers(info map[uint32][]byte) {
	if names := text(info[devExtensions]); !slices.Contains(strings.Fields(names), commandBufferExtension) {
		info[devExtensions] = infoString(strings.TrimPrefix(names+" "+commandBufferExtension, " "))
	}
	if value, ok := info[devExtensionsVersions]; ok {
		list, here := parseNameVersions(value), nameVersion{commandBufferVersion, commandBufferExtension}
		if i := slices.IndexFunc(list, func(nv nameVersion) bool { return nv.name == commandBufferExtension }); i >= 0 {
			list[i] = here
		} else {
			list = append(list, here)
		}
		info[devExtensionsVersions] = infoNameVersions(list)
	}
	info[devCommandBufferCaps], info[devCommandBufferQueueProps] = infoU64(commandBufferCapability), infoU64(0)
}

// filterExtensions keeps the names that are shown, and the spaces before them as they are.
func filterExtensions(names string) string {
	var out strings.Builder
	spaces := ""
	for name := range strings.SplitSeq(names, " ") {
		if name == "" {
			spaces += " "
			continue
		}
		if extensionShown(name) {
			out.WriteString(spaces + name)
			spaces = ""
		}
		spaces = " " + strings.TrimPrefix(spaces, " ")
	}
	return out.String()
}

func filterNames(value []byte, keep func(string) bool) []byte {
	var kept []nameVersion
	for _, nv := range parseNameVersions(value) {
		if keep(nv.name) {
			kept = append(kept, nv)
		}
	}
	return infoNameVersions(kept)
}

// distance takes out of a snapshot what holds on the device's own machine alone.
func distance(snapshot *clwire.Snapshot) {
	for i := range snapshot.Platforms {
		for k := range snapshot.Platforms[i].Devices {
			dev := &snapshot.Platforms[i].Devices[k]
			dev.InPlace, dev.InPlaceReason = false, "the device is on another machine"
			if _, ok := dev.Info[devHostUnifiedMemory]; ok {
				dev.Info[devHostUnifiedMemory] = infoU32(0)
			}
		}
	}
}
