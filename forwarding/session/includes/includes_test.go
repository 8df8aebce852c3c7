package includes

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// tree writes files below a new directory: path, content, path, content …; @ in a content stands for the directory.
func tree(t testing.TB, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		path := filepath.Join(dir, files[i])
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(strings.ReplaceAll(files[i+1], "@", dir)), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCollect(t *testing.T) {
	files := []string{"cwd.h", "", "inc/i.h", "#include \"sub/j.h\"\n", "inc/sub/j.h",
		"#include <k.h>\n#include \"l.h\"", "inc/sub/l.h", "", "other/k.h", "", "other/i.h", "wrong: inc comes first",
		"inc/loop.h", "#include \"loop.h\"", "inc/abs.h", "#include \"@/cwd.h\"\n", "kern/inc_types.h",
		"#ifdef X\n#include M2S(INCLUDE_PATH/inc_vendor.h)\n#endif", "kern/inc_vendor.h", "", "inc/with space.h",
		"", "dir.h/x", ""}
	dir := tree(t, files...)
	for name, c := range map[string]struct{ source, options, files, rewritten string }{
		"none":              {"kernel void k() {}", "-I" + dir, "", ""},
		"not found":         {`#include "nobody.h"`, "-I inc", "", ""},
		"working directory": {`#include "cwd.h"`, "", "cwd.h", ""},
		"angle":             {"#include <cwd.h>\n", "", "cwd.h", ""},
		"nested, first wins": {`#include "i.h"`, "-I inc -Iother", "inc/i.h inc/sub/j.h other/k.h inc/sub/l.h",
			"-I inc -Iother"},
		"loop":     {`#include "loop.h"`, "-I inc", "inc/loop.h", ""},
		"comments": {"// #include \"cwd.h\"\n/*\n#include \"cwd.h\"\n*/\nconstant char *s = \"\\\n#include <cwd.h>\";\n", "", "", ""},
		"spliced":  {"#inc\\\nlude /* x */ \"cwd.h\"", "", "cwd.h", ""},
		"both branches": {"#if 0\n# include \"cwd.h\"\n#else\n#include <i.h>\n#endif", "-Iother",
			"cwd.h other/i.h", ""},
		"asked for": {"#if __has_include(<cwd.h>)\n#endif", "", "cwd.h", ""},
		"a macro":   {"#define NAME \"cwd.h\"\n#include NAME", "", "cwd.h", ""},
		"two definitions": {"#if A\n#define NAME \"cwd.h\"\n#else\n#define NAME <i.h>\n#endif\n#include NAME",
			"-I other", "cwd.h other/i.h", ""},
		"a macro of an option": {"#include NAME", `-DNAME="cwd.h"`, "cwd.h", ""},
		"a string made": {"#include M2S(INCLUDE_PATH/inc_types.h)",
			"-D INCLUDE_PATH=kern -D XM2S(x)=#x -D M2S(x)=XM2S(x)", "kern/inc_types.h kern/inc_vendor.h", ""},
		"an absolute one": {"#include M2S(INCLUDE_PATH/inc_types.h)",
			"-D INCLUDE_PATH=@/kern -D XM2S(x)=#x -D M2S(x)=XM2S(x)", "kern/inc_types.h kern/inc_vendor.h",
			"-D INCLUDE_PATH=.tendril-root@/kern -D XM2S(x)=#x -D M2S(x)=XM2S(x) -I\x02"},
		"pasted":                {"#define P(a, b) <a##b.h>\n#include P(cw, d)", "", "cwd.h", ""},
		"itself":                {"#define A B\n#define B A\n#include A", "", "", ""},
		"absolute directory":    {`#include "i.h"`, "-I @/other -DX=1", "other/i.h", "-I \x01@/other -DX=1"},
		"an absolute name":      {`#include "@/cwd.h"`, "", "cwd.h", " -I\x02"},
		"inside an included":    {`#include "abs.h"`, "-I@/inc", "inc/abs.h cwd.h", "-I\x01@/inc -I\x02"},
		"a space":               {`#include "with space.h"`, `-I "inc"`, "inc/with space.h", ""},
		"a directory":           {`#include "dir.h"`, "", "", ""},
		"no operand":            {"#include\n#include \"\n#include <\n#", "-I", "", ""},
		"parent":                {`#include "../cwd.h"`, "-I inc", "inc/../cwd.h", ""},
		"an embedded one first": {`#include "e.h"`, "-I inc", "cwd.h", ""},
	} {
		t.Run(name, func(t *testing.T) {
			at := func(s string) string { return strings.ReplaceAll(s, "@", dir) }
			s := Source{Text: at(c.source), Headers: map[string]string{"e.h": `#include "cwd.h"`}}
			set, err := Collect(s, at(c.options), dir)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			if set != nil {
				for _, f := range set.Files {
					got = append(got, strings.TrimPrefix(f.Path, dir+"/"))
				}
			}
			if c.files == "inc/with space.h" {
				if !slices.Equal(got, []string{c.files}) {
					t.Errorf("%q", got)
				}
				return
			}
			if strings.Join(got, " ") != c.files {
				t.Errorf("found %q, want %q", strings.Join(got, " "), c.files)
			}
			if c.rewritten != "" && (set == nil || set.Options != at(c.rewritten)) {
				t.Errorf("options %q, want %q", set.Options, at(c.rewritten))
			}
		})
	}
}

func TestLocalize(t *testing.T) {
	for source, want := range map[string]string{
		"#include \"/a/b.h\"\nx\n # include </c.h> // y\n": "#include \"" + clwire.FilesAlias +
			"/a/b.h\"\nx\n # include <" + clwire.FilesAlias + "/c.h> // y\n",
		"#include \"a.h\"\n// #include \"/b.h\"": "#include \"a.h\"\n// #include \"/b.h\"",
		"constant char s[] = \"#include </x>\";": "constant char s[] = \"#include </x>\";",
	} {
		if got := Localize(source); got != want {
			t.Errorf("%q became %q, want %q", source, got, want)
		}
	}
}

func TestBounds(t *testing.T) {
	dir := tree(t, "a.h", "", "b.h", "")
	big, err := os.Create(filepath.Join(dir, "big.h"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(big.Truncate(clwire.MaxFileBytes+1), big.Close(),
		unix.Mkfifo(filepath.Join(dir, "fifo.h"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Collect(Source{Text: `#include "big.h"`}, "", dir); !errors.Is(err, ErrTooMuch) {
		t.Errorf("64 MiB and a byte: %v", err)
	}
	if set, err := Collect(Source{Text: "#include \"fifo.h\"\n#include </dev/zero>"}, "", dir); err != nil ||
		set != nil {
		t.Errorf("a pipe and a device: %+v, %v", set, err)
	}
}

// FuzzScan: no source and no options make the scanner fall or lose text.
func FuzzScan(f *testing.F) {
	for _, s := range []string{"#include \"a.h\"", "#define F(a,b) #a##b\n#include F(x,y)", "/* #",
		"#if __has_include(<x)", "#define A(\n#include A(", "\"\\", "#include <a//b.h>\\\n", "'\"'"} {
		f.Add(s, "-I x -D 'A=1' -DF(x)=#x")
	}
	dir := tree(f, "a.h", "#include M(b)\n", "x/b.h", "")
	f.Fuzz(func(t *testing.T, source, options string) {
		if _, err := Collect(Source{Text: source + "\n#include \"a.h\""}, options, dir); err != nil {
			t.Error(err)
		}
		if local := Localize(source); strings.ReplaceAll(local, clwire.FilesAlias, "") != strings.ReplaceAll(source,
			clwire.FilesAlias, "") {
			t.Errorf("%q became %q", source, local)
		}
	})
}
