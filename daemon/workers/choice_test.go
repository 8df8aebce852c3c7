package workers

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

const (
	uuidA = "00112233445566778899aabbccddeeff"
	uuidB = "10112233445566778899aabbccddeeff"
	uuidC = "20112233445566778899aabbccddeeff"
)

// platformsOf makes two platforms: a CPU, and two GPUs.
func platformsOf() []*Platform {
	device := func(kind uint64, uuid string) clwire.DeviceSnapshot {
		return clwire.DeviceSnapshot{UUID: uuid, Info: map[uint32][]byte{
			cl.DEVICE_TYPE: binary.LittleEndian.AppendUint64(nil, kind), cl.DEVICE_NAME: []byte("name\x00")}}
	}
	return []*Platform{
		{Name: "portable", Snapshot: clwire.PlatformSnapshot{Devices: []clwire.DeviceSnapshot{
			device(cl.DEVICE_TYPE_CPU, uuidA)}}},
		{Name: "vendor", Snapshot: clwire.PlatformSnapshot{Devices: []clwire.DeviceSnapshot{
			device(cl.DEVICE_TYPE_GPU, uuidB), device(cl.DEVICE_TYPE_GPU|cl.DEVICE_TYPE_DEFAULT, uuidC)}}},
	}
}

func TestChoiceOfDevices(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "portable[] vendor[]; 0 hidden; missing []",
		"all":                            "portable[] vendor[]; 0 hidden; missing []",
		"gpu":                            "vendor[0 1]; 1 hidden; missing []",
		"type=CPU":                       "portable[0]; 2 hidden; missing []",
		"2":                              "vendor[1]; 2 hidden; missing []",
		"0,1":                            "portable[0] vendor[0]; 1 hidden; missing []",
		uuidC:                            "vendor[1]; 2 hidden; missing []",
		"accelerator":                    "; 3 hidden; missing []",
		"cpu," + uuidB:                   "portable[0] vendor[0]; 1 hidden; missing []",
		"7," + uuidA + ",ff" + uuidA[2:]: "portable[0]; 2 hidden; missing [7 ff112233445566778899aabbccddeeff]",
		"GPU-20112233-4455-6677-8899-AABBCCDDEEFF": "vendor[1]; 2 hidden; missing []",
	} {
		var terms []string
		if text != "" {
			terms = strings.Split(text, ",")
		}
		c, err := ParseChoice(terms)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		all := platformsOf()
		offered, hidden, missing := c.choose(all)
		var got []string
		for _, p := range offered {
			got = append(got, fmt.Sprintf("%s%v", p.Name, p.Places))
			if p.Places != nil && len(p.Places) != len(p.Snapshot.Devices) {
				t.Errorf("%q: %d devices at %v", text, len(p.Snapshot.Devices), p.Places)
			}
		}
		if s := fmt.Sprintf("%s; %d hidden; missing %v", strings.Join(got, " "), len(hidden), missing); s != want {
			t.Errorf("%q gives %s, want %s", text, s, want)
		}
		for _, h := range hidden {
			if h.Name != "name" || h.Platform == "" || !strings.Contains(h.Why, text) {
				t.Errorf("%q hides %+v", text, h)
			}
		}
		if len(all[1].Snapshot.Devices) != 2 {
			t.Errorf("%q changed what the probe found", text)
		}
	}
	for _, bad := range []string{"tpu", "-1", "0x1", "", "all,gpu", "deadbeef", uuidA + "0"} {
		if _, err := ParseChoice(strings.Split(bad, ",")); err == nil || !strings.Contains(err.Error(), "devices") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := ParseChoice(make([]string, maxChoices+1)); err == nil {
		t.Error("too many terms")
	}
}

// Which GPUs have objects: by type and UUID at once, by index where the probe knows the GPU.
func TestGPUsThatAreOffered(t *testing.T) {
	for text, want := range map[string][]bool{
		"": {true, true}, "gpu": {true, true}, "cpu": {false, false}, uuidB: {true, false}, "2": {false, true},
		"0": {false, false},
	} {
		c, err := ParseChoice(strings.FieldsFunc(text, func(r rune) bool { return r == ',' }))
		if err != nil {
			t.Fatal(err)
		}
		p := &Pool{opts: Options{Devices: c}}
		p.platforms, p.hidden, _ = c.choose(platformsOf())
		for i, uuid := range []string{uuidB, uuidC} {
			if ok, why := p.OffersGPU(uuid); ok != want[i] || ok != (why == "") || !ok && !strings.Contains(why, "--devices") {
				t.Errorf("%q: GPU %d: %v, %q", text, i, ok, why)
			}
		}
	}
}

// What hides or shapes devices in the daemon's environment holds for its probes and workers. What a session brings
// does not.
func TestVisibleDevicesOfTheDaemon(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
	t.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	t.Setenv("POCL_MEMORY_LIMIT", "2")
	session := DriverEnv(map[string]string{"CUDA_VISIBLE_DEVICES": "0,1", "POCL_MEMORY_LIMIT": "1"})
	env := workerEnv("/cache", session)
	if !slices.Contains(env, "CUDA_VISIBLE_DEVICES=GPU-1") || !slices.Contains(env, "CUDA_DEVICE_ORDER=PCI_BUS_ID") ||
		!slices.Contains(env, "POCL_MEMORY_LIMIT=2") || slices.Contains(env, "CUDA_VISIBLE_DEVICES=0,1") ||
		slices.Contains(env, "POCL_MEMORY_LIMIT=1") {
		t.Errorf("%q", env)
	}
	if v := Visible(); !slices.Equal(v, []string{"CUDA_VISIBLE_DEVICES=GPU-1"}) {
		t.Errorf("%q", v)
	}
}

// What the daemon was started with for the C library's allocator holds for all that load a driver; a session brings
// none.
func TestAllocatorOfTheDaemon(t *testing.T) {
	const name = "GLIBC_TUNABLES"
	session := DriverEnv(map[string]string{name: "glibc.malloc.check=3", "POCL_DEBUG": "1"})
	for _, x := range []struct {
		of   string
		set  bool
		want []string
	}{
		{"", false, nil},
		{"", true, []string{name + "="}},
		{"glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1", true,
			[]string{name + "=glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"}},
		{strings.Repeat("x", maxEnvBytes+1), true, nil},
	} {
		t.Setenv(name, x.of) // restores what was there
		if !x.set {
			os.Unsetenv(name)
		}
		for who, env := range map[string][]string{"worker": workerEnv("/cache", session), "probe": workerEnv("/cache", nil),
			"keeper": KeeperEnv("/cache"), "keeper of CUDA memory": CUDAKeeperEnv("/cache")} {
			got := slices.DeleteFunc(env, func(kv string) bool { return !strings.HasPrefix(kv, name+"=") })
			if !slices.Equal(got, x.want) {
				t.Errorf("%.60q (set: %v): a %s has %.60q", x.of, x.set, who, got)
			}
		}
	}
}

// A worker is told which of its driver's devices there are, and a session's snapshot has no others.
func TestHiddenDevicesOfAWorker(t *testing.T) {
	c, err := ParseChoice([]string{"1"})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := newPool(t, func(o *Options) { o.Devices = c }, "ok")
	list, err := p.Platforms(context.Background())
	if err != nil || len(list) != 1 || len(list[0].Snapshot.Devices) != 1 || !slices.Equal(list[0].Places, []int{1}) {
		t.Fatalf("%+v, %v", list, err)
	}
	if h := p.Hidden(); len(h) != 1 || h[0].Index != 0 || h[0].UUID != uuidA {
		t.Errorf("%+v", h)
	}
	if _, facts := open(t, p, 1, me()); facts["only"] != "1" {
		t.Errorf("the worker was told that there are the devices %q", facts["only"])
	}
}
