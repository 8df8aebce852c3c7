package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril/client"
	"tendril/tools/e2e/rig"
)

// publisher compiles testdata/publisher.c.
func publisher(t *testing.T) string {
	t.Helper()
	return buildWithExtension(t, "testdata/publisher.c")
}

// mapsInode says whether this process has the memory with an inode mapped.
func mapsInode(t *testing.T, inode string) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(maps, []byte(" "+inode+" "))
}

// What was published cannot be changed: not through a mapping that the program kept beside its own, nor in a child or
// an orphan that inherited one, nor through /proc/self/mem, nor by what a worker's code kept. Where nothing is kept the
// memory itself becomes the object.
func TestPublishedIsUnchangeable(t *testing.T) {
	t.Parallel()
	program, n := publisher(t), node(t)
	for _, x := range []struct {
		keeps string
		moved bool
		shows string // what the program finds of its writing
	}{
		{"nothing", true, "wrote 0 8"}, {"mapping", false, "wrote 99 8"}, {"child", false, "wrote 0 8"},
		{"orphan", false, "wrote 0 8"}, {"mem", true, "wrote 0 8"},
	} {
		t.Run(x.keeps, func(t *testing.T) {
			p := begin(t, n.Command(t.Context(), "run", "--", program, x.keeps))
			o, moved := publishedBy(t, n, p, func(string) {})
			defer o.Release()
			if moved != x.moved {
				t.Errorf("the object is the buffer's own memory: %v", moved)
			}
			p.want(x.shows, "write")
			unchanged(t, o)
		})
	}
}

// publishedBy has the program fill and publish its buffer, whose memory has an inode, and says whether the object is
// that memory.
func publishedBy(t *testing.T, n *rig.Node, p *program, filled func(inode string)) (o *client.Object, moved bool) {
	t.Helper()
	inode, ok := strings.CutPrefix(p.ask("fill"), "filled ")
	if !ok || inode == "0" {
		t.Fatalf("inode %q: %s", inode, p.err)
	}
	filled(inode)
	p.want("published 7", "publish")
	c, err := client.Dial(context.Background(), client.Options{Socket: n.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if o, err = c.GetByName(t.Context(), "out", 5*time.Minute); err != nil {
		t.Fatal(err)
	}
	unchanged(t, o)
	return o, mapsInode(t, inode)
}

func unchanged(t *testing.T, o *client.Object) {
	t.Helper()
	for i := 0; i < len(o.Bytes()); i += 4 {
		if got := binary.LittleEndian.Uint32(o.Bytes()[i:]); got != 7 {
			t.Fatalf("word %d of the object is %d", i/4, got)
		}
	}
}

// A vendor library, or a kernel that got so far, keeps a second mapping of all that its worker maps for writing.
func TestPublishedFromAHostileWorker(t *testing.T) {
	t.Parallel()
	program := publisher(t)
	pocl, err := poclLibrary()
	need(t, "driver", err)
	dir, err := os.MkdirTemp("", "tendril-keeps-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	library, vendors := filepath.Join(dir, "libkeeps.so"), filepath.Join(dir, "vendors")
	if err := os.Mkdir(vendors, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.Chmod(dir, 0o755),
		os.WriteFile(filepath.Join(vendors, "keeps.icd"), []byte(library+"\n"), 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := rig.Output(exec.Command("cc", "-shared", "-fPIC", "-O1", "-Wall", "-DPOCL=\""+pocl+"\"", "-o", library,
		"testdata/keeps.c", "-ldl", "-lpthread")); err != nil {
		t.Fatal(err)
	}
	n := node(t, "TENDRIL_VENDORS="+vendors)
	p := begin(t, n.Command(t.Context(), "run", "--", program, "nothing"))
	said := func(what string) {
		eventually(t, func() error {
			if strings.Contains(n.Log(), what) {
				return nil
			}
			return fmt.Errorf("the worker's code has not said %q:\n%s", what, n.Log())
		})
	}
	o, moved := publishedBy(t, n, p, func(inode string) { said("keeps: " + inode + " of its own") })
	defer o.Release()
	if moved {
		t.Error("the object is memory that the worker's code can write")
	}
	if err := os.WriteFile(filepath.Join(dir, "write"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	said("keeps: wrote to ")
	unchanged(t, o)
}
