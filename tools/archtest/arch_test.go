package archtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// modules says which rooms a third-party module serves, by its import path's start.
var modules = map[string][]string{
	"github.com/sirupsen/logrus":       {"daemon", "cluster/raftnode", "tools"},
	"github.com/edsrzf/mmap-go":        {"store/segment", "store/spill"},
	"github.com/cespare/xxhash/v2":     {"store", "cluster/transfer", "tools/soak"}, // checksums
	"github.com/jgillich/go-opencl":    {"tools/demo", "tools/e2e", "tools/difftest"},
	"github.com/spf13/":                {"tools", "daemon"},
	"github.com/knadh/koanf":           {"daemon"},
	"github.com/dustin/go-humanize":    {"tools", "daemon", "forwarding/session", "cluster/placement"}, // sizes as people write them
	"github.com/hashicorp/":            {"cluster/raftnode"},
	"github.com/valyala/fasthttp":      {"daemon/inspect"},
	"github.com/klauspost/compress/s2": {"forwarding/link"}, // payload on slow links
	"golang.org/x/sys/unix":            {"*"},
	"golang.org/x/net/bpf":             {"forwarding/worker/sandbox"},
	"go.uber.org/goleak":               {"*"},
	"github.com/schollz/progressbar/":  {"tools"},
	"github.com/vbauerster/mpb/":       {"tools"},
	"github.com/fatih/color":           {"tools"},
	"github.com/mattn/go-runewidth":    {"tools"},
	"golang.org/x/term":                {"tools"},
	"github.com/santhosh-tekuri/":      {"daemon"}, // tests
	"filippo.io/age":                   {"tools/tendril"},
	"github.com/prometheus/":           {"daemon"}, // tests
}

// cgoRooms are the only ones where import "C" stands: the driver bindings and
// the driver library. Everything else builds with CGO_ENABLED=0.
var cgoRooms = []string{"forwarding/opencl", "forwarding/cuda", "forwarding/icd"}

type pkg struct {
	ImportPath, Dir string
	Imports         []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 20 {
		t.Fatalf("go list found %d packages only", len(all))
	}
	return all
}

func TestThirdPartyModulesStayInTheirRoom(t *testing.T) {
	for _, p := range packages(t) {
		own := strings.TrimPrefix(p.ImportPath, "tendril/")
		for _, imp := range p.Imports {
			if !strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
				continue // ours, or the standard library
			}
			if where, ok := moduleRooms(imp); !ok {
				t.Errorf("%s imports %s, which has no room in this test", p.ImportPath, imp)
			} else if !slices.Contains(where, "*") &&
				!slices.ContainsFunc(where, func(r string) bool { return within(own, r) }) {
				t.Errorf("%s imports %s, which serves %v alone", p.ImportPath, imp, where)
			}
		}
	}
}

func moduleRooms(imp string) ([]string, bool) {
	for prefix, where := range modules {
		if strings.HasPrefix(imp, prefix) {
			return where, true
		}
	}
	return nil, false
}

// goFiles calls f with every Go file of the repository, parsed for imports and comments.
func goFiles(t *testing.T, f func(rel string, file *ast.File)) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "build" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		f(rel, file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCgoAndUnsafeStayWhereTheyBelong(t *testing.T) {
	goFiles(t, func(rel string, file *ast.File) {
		inCgo := slices.ContainsFunc(cgoRooms, func(r string) bool { return within(filepath.Dir(rel), r) })
		for _, imp := range file.Imports {
			switch imp.Path.Value {
			case `"C"`:
				if !inCgo {
					t.Errorf(`%s: import "C" stands in %v alone`, rel, cgoRooms)
				}
			case `"unsafe"`:
				if !inCgo && !strings.HasSuffix(rel, "_unsafe.go") && !strings.HasSuffix(rel, "_unsafe_test.go") {
					t.Errorf("%s: unsafe stands in files named *_unsafe.go, where a reviewer looks for it", rel)
				}
			}
		}
	})
}

func TestEveryPackageHasOneComment(t *testing.T) {
	comments := map[string][]string{}
	goFiles(t, func(rel string, file *ast.File) {
		if strings.HasSuffix(rel, "_test.go") {
			return
		}
		dir := filepath.Dir(rel)
		if _, ok := comments[dir]; !ok {
			comments[dir] = nil
		}
		if file.Doc != nil && !onlyDirectives(file.Doc) {
			comments[dir] = append(comments[dir], filepath.Base(rel))
		}
	})
	for dir, files := range comments {
		// A package in two builds (with and without cgo) says it once as well.
		if len(files) != 1 {
			t.Errorf("%s: package comments in %v, want exactly one", dir, files)
		}
	}
}

func onlyDirectives(c *ast.CommentGroup) bool { return strings.TrimSpace(c.Text()) == "" }

// TestDependenciesAreExplained: docs/DEPENDENCIES.md says of each direct module why it is there.
func TestDependenciesAreExplained(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(root, "docs/DEPENDENCIES.md"))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.Open(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	defer mod.Close()
	line := regexp.MustCompile(`^\s*(?:require )?(\S+\.\S+/\S+) v\S+$`)
	found := 0
	for s := bufio.NewScanner(mod); s.Scan(); {
		if m := line.FindStringSubmatch(s.Text()); m != nil {
			found++
			if !strings.Contains(string(doc), m[1]) {
				t.Errorf("docs/DEPENDENCIES.md does not say why %s is there", m[1])
			}
		}
	}
	if found < 5 {
		t.Errorf("go.mod names %d direct modules: the pattern of this test is wrong", found)
	}
}

// TestNoMachineInTheTree: no path of one machine, no registry host.
func TestNoMachineInTheTree(t *testing.T) {
	out, err := exec.Command("git", "-C", root, "ls-files").Output()
	if err != nil {
		t.Skip("not a git checkout:", err)
	}
	pattern := `/home/[a-z]+/|proxy\.golang\.org|goproxy\.|deb\.debian\.org`
	if here, err := filepath.Abs(root); err == nil { // where this checkout stands
		pattern += "|" + regexp.QuoteMeta(here) + `\b`
	}
	if home, err := os.UserHomeDir(); err == nil && home != "/" {
		pattern += "|" + regexp.QuoteMeta(home) + "/"
	}
	bad := regexp.MustCompile(pattern)
	for _, name := range strings.Fields(string(out)) {
		if strings.HasSuffix(name, "arch_test.go") || strings.HasSuffix(name, ".jpg") ||
			strings.HasSuffix(name, ".png") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if m := bad.Find(b); m != nil {
			t.Errorf("%s names %q", name, m)
		}
	}
}
