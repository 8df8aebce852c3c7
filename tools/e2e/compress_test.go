package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/trace"
	"tendril/tools/e2e/rig"
	"tendril/tools/e2e/slow"
)

// narrow is a node behind 40 Mbit/s, which a busy processor packs for, too, and the program that moves text there.
func narrow(t *testing.T, extra ...string) (n *rig.Node, at, program string) {
	t.Helper()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	n = node(t, append([]string{"TENDRIL_LISTEN=127.0.0.1:0"}, extra...)...)
	door, err := n.Listening(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := slow.Start(door, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	p.SetRate(40e6 / 8)
	n.Config = t.TempDir()
	logIn(t, n, n.Config, p.Addr())
	program = filepath.Join(t.TempDir(), "moved")
	if _, err := rig.Output(exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-o", program, "testdata/moved.c",
		"-lOpenCL")); err != nil {
		t.Fatal(err)
	}
	return n, p.Addr(), program
}

// What goes over a slow link is compressed both ways; the trace and the status say so.
func TestSlowLinkIsCompressed(t *testing.T) {
	t.Parallel()
	n, at, program := narrow(t)
	t.Run("trace", func(t *testing.T) {
		var whole []string
		for range 10 { // how much is packed, the first looks at the link decide: see status
			whole = nil
			for _, s := range movedIn(t, n, "trace", "--server", at, "--json", "-o",
				filepath.Join(t.TempDir(), "out.json"), "--", program) {
				if s.ChunkBytes >= s.Moved {
					whole = append(whole, fmt.Sprintf("%s: %d bytes went as %d", s.Direction, s.Moved, s.ChunkBytes))
				}
			}
			if len(whole) == 0 {
				return
			}
		}
		t.Errorf("not packed: %v", whole)
	})
	t.Run("status", func(t *testing.T) {
		var m clwire.Moved
		for range 10 { // a sender without a processor at its first looks finds packing slower than the link
			m = statusOfMoved(t, n, at, program)
			if m.TakenWire < m.Taken && m.SentWire < m.Sent {
				return
			}
		}
		t.Errorf("%+v", m)
	})
}

// statusOfMoved runs the program, and gives what the status says of its worker.
func statusOfMoved(t *testing.T, n *rig.Node, at, program string) clwire.Moved {
	t.Helper()
	cmd := n.Command(t.Context(), "run", "--server", at, "--", program)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watch := rig.WatchOver(cmd, limit)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "moved\n" {
		t.Errorf("it says %q, %v", line, err)
	}
	m := movedOf(t, n)
	in.Close()
	if err := errors.Join(cmd.Wait(), watch.End()); err != nil {
		t.Error(err)
	}
	return m
}

// movedOf waits until the daemon knows all that a worker moved.
func movedOf(t *testing.T, n *rig.Node) clwire.Moved {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		s, err := n.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range s.Workers {
			if w.Moved != nil && w.Moved.Taken >= 16<<20 && w.Moved.Sent >= 16<<20 {
				return *w.Moved
			}
		}
	}
	t.Fatal("the status says nothing of compression")
	return clwire.Moved{}
}

// movedIn runs a traced program and returns what it moved, each way.
func movedIn(t *testing.T, n *rig.Node, args ...string) []trace.WireBytes {
	t.Helper()
	text, err := n.Run(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	text, ok := strings.CutPrefix(text, "moved\n")
	var s trace.Summary
	if err := json.Unmarshal([]byte(text), &s); err != nil || !ok || len(s.Wire) != 2 {
		t.Fatalf("%v, %q", err, text)
	}
	for _, w := range s.Wire {
		if w.Moved < 16<<20 {
			t.Fatalf("%+v", w)
		}
	}
	return s.Wire
}

// Nothing is where either side is against it.
func TestNothingIsCompressedUnasked(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ daemon, program string }{"the daemon is against it": {"off", "auto"},
		"the program is": {"auto", "off"}} {
		t.Run(name, func(t *testing.T) {
			n, at, program := narrow(t, "TENDRIL_COMPRESS="+x.daemon)
			for _, s := range movedIn(t, n, "trace", "--server", at, "--compress", x.program, "--json", "-o",
				filepath.Join(t.TempDir(), "out.json"), "--", program) {
				if s.ChunkBytes < s.Moved {
					t.Errorf("%s: %d bytes went as %d", s.Direction, s.Moved, s.ChunkBytes)
				}
			}
		})
	}
}

// What one node's worker pushes to another's over a slow link is compressed too, unless the program is against it. It
// takes half a minute until the workers have looked often enough at the link: TENDRIL_LONG=1.
func TestSlowLinkBetweenNodesIsCompressed(t *testing.T) {
	if os.Getenv("TENDRIL_LONG") == "" {
		t.Skip("TENDRIL_LONG=1 takes the time")
	}
	need(t, "driver", hasDriver())
	program := cProgram(t, "../bench/c/span.c")
	const bulk = 5 * 16 << 20 // of a push: more than the sockets' buffers hold, or nobody sees that the link is slow
	near := node(t)
	there, address, config := far(t)
	p, err := slow.Start(address, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	p.SetRate(100e6 / 8)
	peersOf(t, near, there, p.Addr())
	pushing := func(compress string) (push func() int64) {
		cmd := near.Command(t.Context(), "run", "--server", "local", "--server", address, "--compress", compress, "--",
			program, "16")
		cmd.Env = append(near.Env(), "XDG_CONFIG_HOME="+config)
		s := converse(t, cmd)
		s.ask("events") // links the workers
		return func() int64 {
			before := p.Passed()
			s.ask("push")
			return p.Passed() - before
		}
	}
	if n := pushing("off")(); n < bulk {
		t.Errorf("%d bytes went plainly, of %d: not by the link", n, bulk)
	}
	push, pushes := pushing("auto"), 0
	for n := int64(bulk); n > bulk/2; pushes++ { // when, the first looks at the link decide
		if pushes == 20 {
			t.Fatalf("%d bytes went, of %d", n, bulk)
		}
		n = push()
	}
	t.Logf("compressed in push %d", pushes)
}
