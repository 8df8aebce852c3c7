package include

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril/forwarding/clwire"
)

func entry(path, content string) clwire.FileEntry {
	sum := sha256.Sum256([]byte(content))
	return clwire.FileEntry{Path: []byte(path), SHA256: sum[:], Bytes: uint64(len(content))}
}

func manifest(dir string, files ...clwire.FileEntry) *clwire.FilesManifest {
	return &clwire.FilesManifest{Dir: []byte(dir), Files: files}
}

func TestLayout(t *testing.T) {
	s := NewStore(t.TempDir())
	m := manifest("/srv/u/proj", entry("/srv/u/proj/inc/../a.h", "A"), entry("/usr/b.h", "B"),
		entry("/srv/u/proj/c.h", "A"), entry("/../../top.h", "T"))
	missing := s.Missing(m)
	if len(missing) != 3 {
		t.Fatalf("%v: the same content is wanted once", missing)
	}
	if err := s.Put(m, missing, []byte("ABT")); err != nil {
		t.Fatal(err)
	}
	if again := s.Missing(m); len(again) != 0 {
		t.Fatalf("missing again: %v", again)
	}
	l, err := s.Lay(m)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 { // each on a thread with a directory of its own
		wg.Go(func() {
			err := l.Run(func() error {
				for path, want := range map[string]string{"a.h": "A", "inc/../a.h": "A", "c.h": "A",
					"../../../usr/b.h": "B"} {
					if got, err := os.ReadFile(path); err != nil || string(got) != want {
						t.Errorf("%s: %q, %v", path, got, err)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, err := os.ReadFile(filepath.Join(l.root, "top.h")); err != nil || string(got) != "T" {
		t.Errorf("%q, %v: .. must not lead out", got, err)
	}
	if got := l.Options("-I\x01/usr -I inc -I\x02"); got != "-I"+l.root+"/usr -I inc -I"+l.base {
		t.Errorf("options: %s", got)
	}
	if got := l.Log("error: " + l.root +
		"/usr/b.h:1 and .tendril-root/usr/b.h and inc/x.h"); got != "error: /usr/b.h:1 and /usr/b.h and inc/x.h" {
		t.Errorf("log: %s", got)
	}
	l.Remove()
	if _, err := os.Stat(l.base); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the layout stays: %v", err)
	}
}

// TestOnePath: drivers look compiled programs up by their options too, so the same files lie at the same path, for
// every build and every worker.
func TestOnePath(t *testing.T) {
	dir := t.TempDir()
	a, b := entry("/inc/a.h", "A"), entry("/inc/b.h", "B")
	sets := []*clwire.FilesManifest{manifest("/srv", a, b), manifest("/srv", b, a)}
	if NewStore(dir).Put(sets[0], []uint32{0, 1}, []byte("AB")) != nil {
		t.Fatal("two files are not kept")
	}
	var paths sync.Map
	var wg sync.WaitGroup
	for i := range 8 {
		s := NewStore(dir)
		wg.Go(func() {
			for range 50 {
				l, err := s.Lay(sets[i%2])
				if err != nil {
					t.Error(err)
					return
				}
				paths.Store(l.root, nil)
				for name, want := range map[string]string{"a.h": "A", "b.h": "B"} {
					if got, err := os.ReadFile(filepath.Join(l.root, "inc", name)); err != nil || string(got) != want {
						t.Errorf("%s: %q, %v", name, got, err)
					}
				}
				l.Remove()
			}
		})
	}
	wg.Wait()
	n := 0
	paths.Range(func(_, _ any) bool { n++; return true })
	if n != 1 {
		t.Errorf("the same files lay at %d paths", n)
	}
	s := NewStore(dir)
	if left, _ := filepath.Glob(filepath.Join(s.temp, "*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	for name, other := range map[string]*clwire.FilesManifest{"directory": manifest("/usr", a, b),
		"content": manifest("/srv", entry("/inc/a.h", "B"), b), "file": manifest("/srv", a)} {
		l, err := s.Lay(other)
		if err != nil {
			t.Fatal(err)
		}
		if _, same := paths.Load(l.root); same {
			t.Errorf("another %s has the same path", name)
		}
		l.Remove()
	}
}

// TestLeftBehind: what a killed worker left goes when it is old, unless a build uses it.
func TestLeftBehind(t *testing.T) {
	dir := t.TempDir()
	s := NewStore(dir)
	m := manifest("/", entry("/a.h", "A"))
	if err := s.Put(m, []uint32{0}, []byte("A")); err != nil {
		t.Fatal(err)
	}
	for _, used := range []bool{false, true} {
		l, err := s.Lay(m)
		if err != nil {
			t.Fatal(err)
		}
		if !used {
			l.lock.Close() // as its end would
		}
		old := time.Now().Add(-2 * staleAfter)
		if err := os.Chtimes(l.base, old, old); err != nil {
			t.Fatal(err)
		}
		NewStore(dir)
		if _, err := os.Stat(l.base); (err == nil) != used {
			t.Errorf("used %v: %v", used, err)
		}
		if used {
			l.Remove()
		}
	}
}

func TestTakeTurns(t *testing.T) {
	before, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	defer os.Chdir(before)
	s := NewStore(t.TempDir())
	dirs := [2]string{t.TempDir(), t.TempDir()}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			err := s.takeTurn(dirs[i%2], func() error {
				if got, err := os.Getwd(); err != nil || got != dirs[i%2] {
					t.Errorf("in %s: %v", got, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestBadSets(t *testing.T) {
	s := NewStore(t.TempDir())
	good := entry("/a", "A")
	if err := s.Put(manifest("/", good), []uint32{0}, []byte("B")); !errors.Is(err, ErrManifest) {
		t.Errorf("another content: %v", err)
	}
	if err := s.Put(manifest("/", good), []uint32{0}, nil); !errors.Is(err, ErrManifest) {
		t.Errorf("no content: %v", err)
	}
	if err := s.Put(manifest("/", good), []uint32{0}, []byte("AA")); !errors.Is(err, ErrManifest) {
		t.Errorf("too much: %v", err)
	}
	if err := s.Put(manifest("/", good), []uint32{0}, []byte("A")); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*clwire.FilesManifest{
		"a file is a directory": manifest("/", good, entry("/a/b", "A")),
		"no name":               manifest("/", entry("/x/", "A")),
		"a directory as file":   manifest("/", entry("/x/..", "A")),
		"not kept":              manifest("/", entry("/b", "never sent")),
	} {
		if l, err := s.Lay(m); err == nil {
			t.Errorf("%s: laid out in %s", name, l.base)
		}
	}
	left, _ := filepath.Glob(filepath.Join(s.temp, "*"))
	if len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	long := manifest("/",
		clwire.FileEntry{Path: []byte("/" + strings.Repeat("x", clwire.MaxPath)), SHA256: make([]byte, 32)})
	huge := manifest("/",
		clwire.FileEntry{Path: []byte("/x"), SHA256: make([]byte, 32), Bytes: clwire.MaxFileBytes + 1})
	for name, m := range map[string]*clwire.FilesManifest{
		"relative": manifest("/", entry("a", "A")), "relative directory": manifest("x"),
		"NUL": manifest("/", entry("/a\x00", "A")), "long": long, "huge": huge,
		"short hash": manifest("/", clwire.FileEntry{Path: []byte("/a"), SHA256: []byte{1}}),
	} {
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseManifest(b); !errors.Is(err, ErrManifest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzManifest: whatever a manifest says, nothing appears outside its layout.
func FuzzManifest(f *testing.F) {
	for _, m := range []*clwire.FilesManifest{manifest("/a/b", entry("/a/../../x", "A")), manifest("/", entry("/", "")),
		manifest("/..")} {
		b, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			return
		}
		dir := t.TempDir()
		s := NewStore(dir)
		if s.Put(manifest("/", entry("/a", "A")), []uint32{0}, []byte("A")) != nil {
			t.Fatal("a file of one byte is not kept")
		}
		for i := range m.Files {
			m.Files[i].SHA256, m.Files[i].Bytes = entry("/a", "A").SHA256, 1
		}
		if l, err := s.Lay(m); err == nil {
			l.Remove()
		}
		for sub, want := range map[string]int{"": 2, "tmp": 0} {
			if list, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(list) != want {
				t.Errorf("%q holds %v, %v", sub, list, err)
			}
		}
	})
}

// TestALinkInTheWay: what stands in a layout's place and is no directory is an error; a link that leads nowhere is
// there and cannot be opened, and is not tried again for ever.
func TestALinkInTheWay(t *testing.T) {
	for name, block := range map[string]func(path string) error{
		"a link to nowhere":     func(path string) error { return os.Symlink("/nowhere/at/all", path) },
		"a link to a directory": func(path string) error { return os.Symlink(os.TempDir(), path) },
		"a file":                func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			s, m := NewStore(t.TempDir()), manifest("/srv/u", entry("/srv/u/a.h", "A"))
			if err := s.Put(m, s.Missing(m), []byte("A")); err != nil {
				t.Fatal(err)
			}
			at, err := layoutName(m)
			if err == nil {
				err = os.MkdirAll(s.temp, 0o700)
			}
			if err == nil {
				err = block(filepath.Join(s.temp, at))
			}
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := s.Lay(m)
				done <- err
			}()
			select {
			case err := <-done:
				if err == nil {
					t.Error("it was laid out there")
				}
			case <-time.After(5 * time.Minute):
				t.Fatal("it goes on trying")
			}
		})
	}
}
