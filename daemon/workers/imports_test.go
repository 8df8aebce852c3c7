package workers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril/forwarding/clwire"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// fakeUUID is the first of the fake driver's GPUs.
const fakeUUID = "00112233445566778899aabbccddeeff"

// A driver that does not survive an import of much memory has its devices bounded, and `tendril status` says why in a
// line. It is tried where that is in doubt alone, with memory of the GPU that is named; where no object lies on
// any GPU it is not.
func TestDriversThatDoNotSurviveAnImport(t *testing.T) {
	memory := func(uuid string, size uint64) (*os.File, error) {
		path := filepath.Join(t.TempDir(), "memory")
		if err := os.WriteFile(path, []byte(uuid), 0o600); err != nil || size != clwire.LargeImport {
			return nil, fmt.Errorf("%d bytes: %w", size, err)
		}
		return os.Open(path)
	}
	second := func(uuid string, size uint64) (*os.File, error) {
		if uuid == fakeUUID {
			return nil, fmt.Errorf("%w: it is full", object.ErrFull)
		}
		return memory(uuid, size)
	}
	none := func(fault error) func(string, uint64) (*os.File, error) {
		return func(string, uint64) (*os.File, error) { return nil, fmt.Errorf("no memory: %w", fault) }
	}
	for _, x := range []struct {
		mode   string
		gpus   int
		memory func(string, uint64) (*os.File, error)
		bound  uint64
		said   string
	}{
		{"gpus-that-die", 2, memory, clwire.SmallImport, "killed by SIGSEGV"},
		{"gpus-that-talk", 2, memory, clwire.SmallImport, "a long tale"},
		{"gpus-that-die", 1, memory, 0, ""},
		{"gpus", 2, memory, 0, ""},
		{"gpus", 2, second, 0, ""},
		{"gpus", 2, none(object.ErrFull), clwire.SmallImport, "no memory"},
		{"gpus-that-die", 2, none(object.ErrUnsupported), 0, ""},
		{"good", 2, memory, 0, ""},
	} {
		p, platforms := fakeGPUs(t, func(o *Options) {
			o.gpus, o.GPUMemory = func() int { return x.gpus }, x.memory
		}, x.mode)
		for _, d := range platforms[0].Snapshot.Devices {
			if d.ImportMost != x.bound {
				t.Errorf("%s, %d GPUs: %d bytes are imported at most", x.mode, x.gpus, d.ImportMost)
			}
		}
		said := ""
		for _, f := range p.Fallbacks() {
			if strings.Contains(f.What, "510 MiB") {
				said = f.Why
			}
		}
		if (said != "") != (x.bound != 0) || !strings.Contains(said, x.said) || len(said) > 220 {
			t.Errorf("%s, %d GPUs: it says %q", x.mode, x.gpus, said)
		}
	}
}

// What a probe did without is said until the next one, which may find it mended.
func TestFallbacksEndWithTheirCause(t *testing.T) {
	dies, memory := "gpus-that-die", func(uuid string, _ uint64) (*os.File, error) {
		path := filepath.Join(t.TempDir(), "memory")
		if err := os.WriteFile(path, []byte(uuid), 0o600); err != nil {
			return nil, err
		}
		return os.Open(path)
	}
	p, _ := fakeGPUs(t, func(o *Options) { o.gpus, o.GPUMemory = func() int { return 2 }, memory }, dies)
	said := func() (list []string) {
		for _, f := range p.Fallbacks() {
			if f.What == "sandbox" || strings.Contains(f.What, "510 MiB") {
				list = append(list, f.What)
			}
		}
		return list
	}
	if err := begin(t, t.Context(), p, p.platforms[0], 1); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the probe's fallback and the worker's", func() bool { return len(said()) == 2 })
	path := filepath.Join(p.opts.Vendors[0], "00.icd")
	if err := os.WriteFile(path, []byte("gpus\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.Probe()
	if list := said(); len(list) != 1 || list[0] != "sandbox" {
		t.Errorf("a driver that imports now, and a worker that serves without a sandbox: %q", list)
	}
	p.ReleaseSession(1)
}

// The compute modes of NVIDIA's GPUs are what CUDA says, outside the sandbox; of other drivers it is not asked.
func TestComputeModesAreWhatCUDASays(t *testing.T) {
	for _, x := range []struct {
		mode  string
		fault error
		want  clwire.ComputeMode
		asked string
	}{
		{"gpus-NVIDIA", nil, clwire.ComputeExclusive, "modes, done"},
		{"gpus-NVIDIA", errors.New("a CUDA driver that fails"), "", "modes, done"},
		{"gpus", nil, "", "done"},
	} {
		var asked []string
		_, platforms := fakeGPUs(t, func(o *Options) {
			o.GPUsDone = func() { asked = append(asked, "done") }
			o.GPUs = func() ([]clwire.KeeperDevice, error) {
				asked = append(asked, "modes")
				if x.fault != nil {
					return nil, x.fault
				}
				return []clwire.KeeperDevice{{UUID: fakeUUID, Mode: clwire.ComputeExclusive}, {UUID: "another"}}, nil
			}
		}, x.mode)
		if d := platforms[0].Snapshot.Devices; d[0].Mode != x.want || d[1].Mode != "" {
			t.Errorf("%s, %v: %q and %q", x.mode, x.fault, d[0].Mode, d[1].Mode)
		}
		if got := strings.Join(asked, ", "); got != x.asked {
			t.Errorf("%s, %v: %s; want %s", x.mode, x.fault, got, x.asked)
		}
	}
}
