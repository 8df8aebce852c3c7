package devices

import (
	"slices"
	"strings"

	"tendril/forwarding/answers"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// What a native device can and this library does not forward is not shown: a program that asks first never meets an
// error later. docs/OPENCL.md lists it.

// What the extension is announced as.
const (
	commandBufferExtension         = "cl_khr_command_buffer"
	commandBufferVersion    uint32 = 9 << 12 // 0.9.0
	commandBufferCapability        = cl.COMMAND_BUFFER_CAPABILITY_KERNEL_PRINTF_KHR |
		cl.COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR | cl.COMMAND_BUFFER_CAPABILITY_OUT_OF_ORDER_KHR
)

// storeVersion is the version of cl_tendril_store, as CL_MAKE_VERSION packs it: 1.0.0.
const storeVersion = 1 << 22

// contentVersion is the version of cl_pocl_content_size, as CL_MAKE_VERSION packs it: 1.0.0.
const contentVersion = 1 << 22

// zeroed are scalar parameters answered as 0 of their native length.
var zeroed = []uint32{
	// queues on the device
	cl.DEVICE_QUEUE_ON_DEVICE_PROPERTIES, cl.DEVICE_QUEUE_ON_DEVICE_PREFERRED_SIZE, cl.DEVICE_QUEUE_ON_DEVICE_MAX_SIZE,
	cl.DEVICE_MAX_ON_DEVICE_QUEUES, cl.DEVICE_MAX_ON_DEVICE_EVENTS, cl.DEVICE_DEVICE_ENQUEUE_CAPABILITIES,
	cl.DEVICE_MAX_PIPE_ARGS, cl.DEVICE_PIPE_MAX_ACTIVE_RESERVATIONS,
	cl.DEVICE_PIPE_MAX_PACKET_SIZE, cl.DEVICE_PIPE_SUPPORT,
	cl.DEVICE_PARENT_DEVICE,
}

// inKernel are the extensions that need nothing of the API but what is forwarded. A name that ends in * is a prefix.
var inKernel = []string{
	"cl_khr_fp16", "cl_khr_fp64", "cl_khr_byte_addressable_store", "cl_khr_select_fprounding_mode",
	"cl_khr_global_int32_*", "cl_khr_local_int32_*", "cl_khr_int64_*", "cl_khr_subgroup*",
	"cl_khr_integer_dot_product", "cl_khr_expect_assume", "cl_khr_extended_bit_ops", "cl_khr_extended_versioning",
	"cl_khr_work_group_uniform_arithmetic", "cl_khr_kernel_clock", "cl_khr_spir", "cl_khr_device_uuid",
	"cl_khr_pci_bus_info",
	"cl_ext_float_atomics", "cl_nv_compiler_options", "cl_nv_device_attribute_query", "cl_nv_pragma_unroll",
	"cl_nv_copy_opts",
	"cl_amd_device_attribute_query", "cl_amd_media_ops*", "cl_amd_printf", "cl_amd_fp64", "cl_intel_subgroups*",
	commandBufferExtension, "cl_khr_3d_image_writes", "cl_khr_depth_images", "cl_khr_image2d_from_buffer",
	"cl_khr_srgb_image_writes",
	"cl_intel_required_subgroup_size", "cl_intel_device_attribute_query", "cl_intel_bfloat16_conversions",
}

// apiFeatures are OpenCL C features that need objects which are not forwarded.
var apiFeatures = map[string]bool{
	"__opencl_c_pipes": true, "__opencl_c_device_enqueue": true,
}

func extensionShown(name string) bool {
	for _, pattern := range inKernel {
		if prefix, isPrefix := strings.CutSuffix(pattern, "*"); name == pattern || isPrefix &&
			strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// Mask returns a device's native answers without what is not forwarded.
func Mask(snapshot clwire.DeviceSnapshot) map[uint32][]byte {
	info := make(map[uint32][]byte, len(snapshot.Info)+4)
	for param, value := range snapshot.Info {
		info[param] = value
	}
	for _, param := range zeroed {
		if value, ok := info[param]; ok {
			info[param] = make([]byte, len(value))
		}
	}
	info[cl.DEVICE_PARENT_DEVICE] = answers.Size(0)
	info[cl.DEVICE_REFERENCE_COUNT] = answers.U32(1)
	if value, ok := info[cl.DEVICE_SVM_CAPABILITIES]; ok {
		info[cl.DEVICE_SVM_CAPABILITIES] = answers.U64(sharedVirtual(answers.Number(value), snapshot.InPlace))
	}
	executes := answers.Number(info[cl.DEVICE_EXECUTION_CAPABILITIES])
	info[cl.DEVICE_EXECUTION_CAPABILITIES] = answers.U64(executes & cl.EXEC_KERNEL)
	maskNames(info)
	return info
}

// sharedVirtual is which shared virtual memory is shown. The fine grain needs one memory under program and device. A
// device in another process does not reach the program's other memory (fine-grained system).
func sharedVirtual(native uint64, inPlace bool) uint64 {
	shown := uint64(cl.DEVICE_SVM_COARSE_GRAIN_BUFFER)
	if inPlace {
		shown |= cl.DEVICE_SVM_FINE_GRAIN_BUFFER | cl.DEVICE_SVM_ATOMICS
	}
	return native & shown
}

func maskNames(info map[uint32][]byte) {
	info[cl.DEVICE_EXTENSIONS] = answers.String(filterExtensions(answers.Text(info[cl.DEVICE_EXTENSIONS])))
	if value, ok := info[cl.DEVICE_EXTENSIONS_WITH_VERSION]; ok {
		info[cl.DEVICE_EXTENSIONS_WITH_VERSION] = filterNames(value, extensionShown)
	}
	addCommandBuffers(info)
	if value, ok := info[cl.DEVICE_OPENCL_C_FEATURES]; ok {
		info[cl.DEVICE_OPENCL_C_FEATURES] = filterNames(value, func(name string) bool { return !apiFeatures[name] })
	}
}

// addCommandBuffers shows the extension on every device, in the version that is here.
func addCommandBuffers(info map[uint32][]byte) {
	if names := answers.Text(info[cl.DEVICE_EXTENSIONS]); !slices.Contains(strings.Fields(names),
		commandBufferExtension) {
		info[cl.DEVICE_EXTENSIONS] = answers.String(strings.TrimPrefix(names+" "+commandBufferExtension, " "))
	}
	if value, ok := info[cl.DEVICE_EXTENSIONS_WITH_VERSION]; ok {
		list := answers.ParseNameVersions(value)
		here := answers.NameVersion{Version: commandBufferVersion, Name: commandBufferExtension}
		isHere := func(nv answers.NameVersion) bool { return nv.Name == commandBufferExtension }
		if i := slices.IndexFunc(list, isHere); i >= 0 {
			list[i] = here
		} else {
			list = append(list, here)
		}
		info[cl.DEVICE_EXTENSIONS_WITH_VERSION] = answers.NameVersions(list)
	}
	info[cl.DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR],
		info[cl.DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES_KHR] = answers.U64(commandBufferCapability),
		answers.U64(0)
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
	var kept []answers.NameVersion
	for _, nv := range answers.ParseNameVersions(value) {
		if keep(nv.Name) {
			kept = append(kept, nv)
		}
	}
	return answers.NameVersions(kept)
}

// MaskPlatform returns what a platform answers: Tendril's name beside the native one, and the extensions that are here.
func MaskPlatform(snapshot *clwire.PlatformSnapshot) map[uint32][]byte {
	info := make(map[uint32][]byte, len(snapshot.Info))
	for param, value := range snapshot.Info {
		info[param] = value
	}
	info[cl.PLATFORM_NAME] = answers.String("Tendril (" + answers.Text(snapshot.Info[cl.PLATFORM_NAME]) + ")")
	info[cl.PLATFORM_VENDOR] = answers.String("Tendril")
	info[cl.PLATFORM_ICD_SUFFIX_KHR] = answers.String("TENDRIL")
	info[cl.PLATFORM_EXTENSIONS] = answers.String("cl_khr_icd cl_tendril_store cl_pocl_content_size")
	if _, ok := info[cl.PLATFORM_EXTENSIONS_WITH_VERSION]; ok {
		info[cl.PLATFORM_EXTENSIONS_WITH_VERSION] = answers.NameVersions([]answers.NameVersion{{Version: 1 << 22,
			Name: "cl_khr_icd"},
			{Version: storeVersion, Name: "cl_tendril_store"}, {Version: contentVersion, Name: "cl_pocl_content_size"}})
	}
	return info
}

// Distance takes out of a snapshot what holds on the device's own machine alone.
func Distance(snapshot *clwire.Snapshot) {
	for i := range snapshot.Platforms {
		for k := range snapshot.Platforms[i].Devices {
			dev := &snapshot.Platforms[i].Devices[k]
			dev.InPlace, dev.InPlaceReason = false, "the device is on another machine"
			if _, ok := dev.Info[cl.DEVICE_HOST_UNIFIED_MEMORY]; ok {
				dev.Info[cl.DEVICE_HOST_UNIFIED_MEMORY] = answers.U32(0)
			}
		}
	}
}
