package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// bareNumbers are the files that may write OpenCL's numbers as numbers, and why.
var bareNumbers = map[string]string{
	"forwarding/cl/constants.go":             "they are defined there",
	"forwarding/worker/snapshot/snapshot.go": "it asks for ranges, also of parameters that no header names yet",
}

// TestOpenCLNumbersHaveNames: whoever reads 0x11D3 has to look it up, and a copy under another name is checked by
// nobody. A literal that OpenCL gives a meaning is written by its name in package cl.
func TestOpenCLNumbersHaveNames(t *testing.T) {
	names := openCLNumbers(t)
	for _, room := range []string{"forwarding", "daemon", "client", "tools"} {
		err := filepath.WalkDir(filepath.Join(root, room), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") {
				return err
			}
			rel, err := filepath.Rel(root, name)
			if err != nil || bareNumbers[filepath.ToSlash(rel)] != "" {
				return err
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, name, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.INT && strings.HasPrefix(lit.Value, "0x") &&
					len(lit.Value) == 6 {
					if v, err := strconv.ParseUint(lit.Value, 0, 64); err == nil && names[v] != "" {
						t.Errorf("%s:%d: %s is OpenCL's number: write cl.%s", rel, fset.Position(lit.Pos()).Line,
							lit.Value, names[v])
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// openCLNumbers gives a name for each number of package cl that is written with four hexadecimal digits, as the
// enumerations are.
func openCLNumbers(t *testing.T) map[uint64]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "forwarding/cl/constants.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[uint64]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+) += (0x[0-9A-F]{4})$`).FindAllStringSubmatch(string(text), -1) {
		if v, err := strconv.ParseUint(m[2], 0, 64); err == nil && names[v] == "" {
			names[v] = m[1]
		}
	}
	if len(names) < 500 {
		t.Fatalf("%d numbers in constants.go: the pattern of this test is wrong", len(names))
	}
	return names
}
