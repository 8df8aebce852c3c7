package main

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// generated are the folders whose codec.go this program writes.
var generated = []string{"forwarding/clwire", "ipc/wire"}

var command = regexp.MustCompile(`(?m)^//go:generate go run \S*/tools/wiregen ?(.*)$`)

// TestCodecsAreCurrent: what is checked in is what the generator makes of the structs beside it.
func TestCodecsAreCurrent(t *testing.T) {
	for _, folder := range generated {
		dir := filepath.Join("../..", folder)
		files, err := generate(dir, styleOf(t, dir))
		if err != nil {
			t.Errorf("%s: %v", folder, err)
		}
		for path, made := range files {
			if kept, err := os.ReadFile(path); err != nil || string(kept) != string(made) {
				t.Errorf("%s is not what the generator writes (%v): go generate ./%s", path, err, folder)
			}
		}
	}
}

// styleOf reads the flags of a package's go:generate line.
func styleOf(t *testing.T, dir string) (s style) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if m := command.FindSubmatch(text); m != nil {
			f := flag.NewFlagSet(path, flag.ContinueOnError)
			s.flags(f)
			if err := f.Parse(strings.Fields(string(m[1]))); err != nil {
				t.Fatal(err)
			}
			return s
		}
	}
	t.Fatalf("%s has no go:generate line", dir)
	return s
}

// TestRefusesWhatItCannotDescribe: a struct that has no form on the wire is named, and nothing is written.
func TestRefusesWhatItCannotDescribe(t *testing.T) {
	for text, want := range map[string]string{
		"type A struct{ F func() }":       "A: no form for func()",
		"type A struct{ F Missing }":      "A: no type Missing",
		"type A struct{ F [n]byte }":      "the length n is no constant",
		"type A struct{ F other.Type }":   "other is no package of this module",
		"type A uint8":                    "A is no struct",
		"type A struct{ F []*uint8 }":     "no form for *uint8",
		"type A struct{ F interface{} }":  "no form for interface{}",
		"type A struct{ F map[int]bool }": "no form for map[int]bool",
	} {
		dir := t.TempDir()
		text = "package p\n\n//wire:payload\n" + text + "\n"
		if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := generate(dir, style{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestLayout: the drawing of each kind of field.
func TestLayout(t *testing.T) {
	dir := t.TempDir()
	text := "package p\n\nimport \"tendril/store/object\"\n\n//wire:payload\ntype A struct {\nObject object.ID\n" +
		"Ref object.Ref\nUp, Down bool `wire:\"bits\"`\nN uint8\nHead []uint16 `wire:\"u32,max=9\"`\n" +
		"Some [4]int32 `wire:\"len=N\"`\nName string `wire:\"if=Up\"`\nLabels map[string]string\n" +
		"More []struct1\nRest []byte `wire:\"rest\"`\n}\ntype struct1 struct{ X, Y uint32; Text string }\n"
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	object, err := filepath.Abs("../../store/object")
	if err == nil {
		err = os.Symlink(object, filepath.Join(dir, "store/object"))
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := describe(dir)
	if err != nil {
		t.Fatal(err)
	}
	const want = "16 bytes object, u64 segment segmentBytes offset, bits up down, u8 n, u32 × u16 head, n × i32 some, " +
		"if up (str16 name), u16 × (str16, str16) labels, u16 × (u32 x y, str16 text) more, rest rest"
	if got := layout(d.done["A"].fields); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}
