package e2e

import (
	"context"
	"encoding/binary"
	"os"
	"testing"
	"time"

	"tendril/client"
	"tendril/tools/e2e/rig"
)

// published waits for the object that a program published as "out" and checks each word of it. The caller releases it.
func published(t *testing.T, c *client.Conn, plus uint32) *client.Object {
	t.Helper()
	o, err := c.GetByName(t.Context(), "out", 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	same(t, o, plus)
	return o
}

func same(t *testing.T, o *client.Object, plus uint32) {
	t.Helper()
	data := o.Bytes()
	if len(data) != 4<<16 {
		t.Fatalf("the object has %d bytes", len(data))
	}
	for i := range len(data) / 4 {
		if got, want := binary.LittleEndian.Uint32(data[4*i:]), uint32(i)*2654435761+plus; got != want {
			t.Fatalf("word %d of the object is %d, want %d", i, got, want)
		}
	}
}

// TestPublish: the buffer that an unmodified program reads back becomes an object, and what the program does to the
// buffer afterwards does not touch it. The object outlives the program and its worker.
func TestPublish(t *testing.T) {
	t.Parallel()
	n := node(t)
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	c, err := client.Dial(context.Background(), client.Options{Socket: n.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := startWith(t, n, "--publish", "out")
	if got := p.ask("open"); got[:5] != "ready" {
		t.Fatal(got)
	}
	p.want("good", "verify")
	first := published(t, c, 0)
	p.want("add 0", "add 10")
	p.want("good", "verify")
	second := published(t, c, 10)
	same(t, first, 0) // as it was when it was published
	if first.ID() == second.ID() {
		t.Error("the second result has the first one's number")
	}
	p.want("add 0", "add 1")
	p.want("good", "verify")
	p.cmd.Process.Kill()
	p.cmd.Wait()
	third := published(t, c, 11)
	same(t, first, 0)
	same(t, second, 10)
	for _, o := range []*client.Object{first, second, third} {
		o.Release()
	}
	if _, err := n.Run(t.Context(), "rm", "out"); err != nil {
		t.Error(err)
	}
	eventually(t, idle(t.Context(), n))
}

// TestDemoFilter: a Go program written against go-opencl gives the same bytes natively and forwarded (two Go runtimes
// in one process).
func TestDemoFilter(t *testing.T) {
	t.Parallel()
	n := node(t)
	need(t, "driver", hasDriver())
	filter := t.TempDir() + "/filter"
	goBuild(t, filter, "tendril/tools/demo/filter")
	photo := "../demo/photo/raccoon.jpg"
	native, forwarded := filter+".native", filter+".forwarded"
	cmd := n.Command(t.Context(), "version")
	cmd.Path, cmd.Args, cmd.Env = filter, []string{filter, "-in", photo, "-out", native}, rig.Native()
	if _, err := rig.Output(cmd); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := n.Run(t.Context(), "run", "--", filter, "-in", photo, "-out", forwarded); err != nil {
			t.Fatal(err)
		}
		a, errA := os.ReadFile(native)
		b, errB := os.ReadFile(forwarded)
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Fatalf("%d bytes natively, %d forwarded, not the same (%v, %v)", len(a), len(b), errA, errB)
		}
	}
}
