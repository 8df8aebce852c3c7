package session

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril/forwarding/answers"
	"tendril/forwarding/api"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// parts is the fake worker's half of programs in parts: a compilation keeps its options and headers as the program's
// text, a link joins texts. A set of files is kept as text; of two files it says that the second is missing.
func (w *fakeWorker) parts(h clwire.Header, p []byte) {
	answer := func(status api.Status, kind uint32, made bool, log string) {
		data, _ := json.Marshal(clwire.BuildResult{Made: made,
			Devices: []clwire.BuildDevice{{BinaryType: kind, Log: []byte(log)}}})
		w.reply(h.Request, status, data)
	}
	if w.files == nil {
		w.files = map[uint64]string{}
	}
	switch h.Type {
	case clwire.TypeCompileProgram:
		m := decode(&clwire.CompileProgram{}, p)
		text := w.programs[m.Program]
		for _, header := range m.Headers {
			text += fmt.Sprintf(" %s=%s", header.Name, w.programs[header.Program])
		}
		w.programs[m.Program] = text
		answer(cl.SUCCESS, cl.PROGRAM_BINARY_TYPE_COMPILED_OBJECT, false,
			fmt.Sprintf("%s|%s", m.Options, w.files[m.Files]))
	case clwire.TypeLinkProgram:
		m := decode(&clwire.LinkProgram{}, p)
		for _, id := range m.Programs {
			w.programs[m.ID] += w.programs[id] + "\n"
		}
		switch {
		case strings.Contains(string(m.Options), "nothing"):
			answer(cl.INVALID_OPERATION, 0, false, "")
		case strings.Contains(string(m.Options), "failing"):
			answer(cl.LINK_PROGRAM_FAILURE, 0, true, "undefined")
		case strings.Contains(string(m.Options), "-create-library"):
			answer(cl.SUCCESS, cl.PROGRAM_BINARY_TYPE_LIBRARY, true, "")
		default:
			w.build(h.Request, &clwire.BuildProgram{Program: m.ID})
		}
	case clwire.TypeFiles:
		m := decode(&clwire.Files{}, p)
		var manifest clwire.FilesManifest
		if err := json.Unmarshal(w.blobs[m.Blob], &manifest); err != nil {
			panic(err)
		}
		text := string(manifest.Dir)
		var missing []byte
		for i, f := range manifest.Files {
			text += fmt.Sprintf(" %s", strings.TrimPrefix(string(f.Path), string(manifest.Dir)))
			if i == 1 {
				missing = le.AppendUint32(missing, 1)
			}
		}
		w.files[m.Set] = text
		w.reply(h.Request, cl.SUCCESS, missing)
	case clwire.TypeFileData:
		m := decode(&clwire.FileData{}, p)
		w.files[m.Set] += fmt.Sprintf(" +%q", w.blobs[m.Blob])
	}
}

func (r *rig) source(text string) uintptr {
	r.t.Helper()
	return r.handle(r.d.CreateProgramWithSource(r.ctx, []string{text}))
}

func (r *rig) buildLog(p uintptr) string {
	r.t.Helper()
	b, status := r.d.ProgramBuildInfo(p, r.dev, cl.PROGRAM_BUILD_LOG)
	r.ok(status)
	return answers.Text(b)
}

func TestCompileAndLink(t *testing.T) {
	everyWay(t, func(t *testing.T, newRig rigMaker) {
		r := newRig()
		a, header := r.source("kernel inc global"), r.source("kernel add global int")
		r.ok(r.d.Compile(a, false, nil, "-DA", []uintptr{header}, []string{"h.h"}, true, true, nil))
		if got := r.buildLog(a); got != "-DA|" {
			t.Errorf("log %q", got)
		}
		_, status := r.d.CreateKernel(a, "inc")
		r.is(status, cl.INVALID_PROGRAM_EXECUTABLE)
		library := r.handle(r.d.Link(r.ctx, false, nil, "-create-library", []uintptr{a}, nil))
		_, status = r.d.CreateKernel(library, "inc")
		r.is(status, cl.INVALID_PROGRAM_EXECUTABLE)
		done := make(chan uintptr, 1)
		linked := r.handle(r.d.Link(r.ctx, true, []uintptr{r.dev}, "", []uintptr{library},
			func(h uintptr) { done <- h }))
		if got := <-done; got != linked {
			t.Errorf("the callback got %#x, the call gave %#x", got, linked)
		}
		k := r.handle(r.d.CreateKernel(linked, "inc"))
		r.is(r.d.Build(linked, false, nil, "", nil), cl.INVALID_OPERATION)
		r.ok(r.d.ReleaseKernel(k))
		failed, status := r.d.Link(r.ctx, false, nil, "failing", []uintptr{a}, nil)
		r.is(status, cl.LINK_PROGRAM_FAILURE)
		if got := r.buildLog(failed); got != "undefined" {
			t.Errorf("log of a link that failed: %q", got)
		}
		none, status := r.d.Link(r.ctx, false, nil, "nothing", []uintptr{a}, nil)
		r.is(status, cl.INVALID_OPERATION)
		if none != 0 {
			t.Error("a program that the driver did not make")
		}
		for _, p := range []uintptr{a, header, library, linked, failed} {
			r.ok(r.d.ReleaseProgram(p))
		}
	})
}

// TestIncludedFilesTravel: what the source includes is named with the worker's marks, and what it lacks is sent.
func TestIncludedFilesTravel(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, content := range map[string]string{"a.h": "#include \"b.h\"\n", "b.h": "B"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, true)
	p := r.source("#include \"a.h\"\n")
	r.ok(r.d.Compile(p, false, nil, "-I"+dir, nil, nil, false, false, nil))
	if got, want := r.buildLog(p), fmt.Sprintf("-I\x01%s|%s /a.h /b.h +%q", dir, dir, "B"); got != want {
		t.Errorf("the worker saw %q, want %q", got, want)
	}
	big, err := os.Create(filepath.Join(dir, "b.h"))
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	if err := big.Truncate(clwire.MaxFileBytes + 1); err != nil {
		t.Fatal(err)
	}
	r.is(r.d.Build(p, false, nil, "", nil), cl.BUILD_PROGRAM_FAILURE)
	if got := r.buildLog(p); !strings.Contains(got, "includes too much") {
		t.Errorf("log %q", got)
	}
}
