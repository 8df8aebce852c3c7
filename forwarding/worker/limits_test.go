//go:build cgo

package worker

import (
	"strings"
	"testing"
	"time"

	"tendril/forwarding/clwire"
)

// lastWords waits for a worker that ends itself, and returns its last words.
func (p *process) lastWords(t *testing.T) string {
	t.Helper()
	p.wait(t)
	return p.said.String()
}

func TestKernelTime(t *testing.T) {
	for name, wanted := range map[string]bool{"event": true, "no event": false} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t)
			p.send(&clwire.TimeLimits{KernelNanos: uint64(200 * time.Millisecond)})
			f := newFixture(p.client, 0)
			f.build("kernel void spin(global int *v) { while (*(volatile global int *)v != 77) ; }")
			b, _ := f.buffer(64)
			cmd := clwire.Cmd{Queue: f.queue}
			if wanted {
				cmd.Event = f.id()
			}
			f.send(run1(cmd, f.kernel("spin"), 1, argMem(0, b)))
			f.send(&clwire.Flush{Queue: f.queue})
			if said := p.lastWords(t); !strings.Contains(said, "--kernel-time") {
				t.Errorf("the worker ended, saying %q", said)
			}
		})
	}
}

// TestBuildTime: a source that the compiler would be at for very long. Meanwhile another queue's commands go on.
func TestBuildTime(t *testing.T) {
	p := startProcess(t)
	f := newFixture(p.client, 0)
	b, mem := f.buffer(64)
	k := f.kernel("add")
	add := func() {
		t.Helper()
		f.send(run1(clwire.Cmd{Queue: f.queue}, k, 16, argMem(0, b), argInt(1, 1)))
		if r := f.call(&clwire.Finish{Queue: f.queue}); r == nil || r.Status != 0 {
			t.Fatalf("finish: %+v", r)
		}
	}
	add() // PoCL compiles at a kernel's first launch, and one thing at a time
	build := func() {
		blob, hard := f.id(), f.id()
		text := endlessSource()
		f.send(&clwire.Blob{ID: blob, Total: uint64(len(text)), Data: []byte(text)})
		f.send(&clwire.CreateProgram{ID: hard, Context: f.context, Kind: clwire.ProgramSource, Blob: blob})
		f.ask(&clwire.BuildProgram{Program: hard})
	}
	build()
	for range 10 {
		add()
	}
	f.bring()
	if got := ints(mem)[:16]; got[0] != got[15] || got[0] != 11 {
		t.Errorf("beside a build: %v", got)
	}
	p.send(&clwire.TimeLimits{BuildNanos: uint64(time.Second)}) // of the builds from now on
	build()
	p.link.Kick()
	if said := p.lastWords(t); !strings.Contains(said, "--build-time") {
		t.Errorf("the worker ended, saying %q", said)
	}
}

// endlessSource keeps a compiler's preprocessor busy: 2^28 statements of a few lines' macros.
func endlessSource() string {
	var b strings.Builder
	b.WriteString("#define A0 v[0] += v[1];\n")
	for i := 1; i <= 28; i++ {
		n, before := string(rune('A'+i/10))+string(rune('0'+i%10)),
			string(rune('A'+(i-1)/10))+string(rune('0'+(i-1)%10))
		b.WriteString("#define " + n + " " + before + " " + before + "\n")
	}
	b.WriteString("kernel void hard(global int *v) { C8 }\n")
	return b.String()
}
