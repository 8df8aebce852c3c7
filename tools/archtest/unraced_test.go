package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEachTestRunsWhole: make test runs a concurrent package under the race detector (RACE in the Makefile) and not
// again without it. What is shorter there (-short), or measures what the detector changes (memory, allocations), or
// needs the built program, runs without it too: UNRACED names these tests, UNRACED_IN their packages. No name is
// missing, and none is there for nothing.
func TestEachTestRunsWhole(t *testing.T) {
	raced := regexp.MustCompile(`^tendril/(` + strings.ReplaceAll(strings.ReplaceAll(
		strings.Join(strings.Fields(variable(t, "RACE")), "|"), "./", ""), "/...", "(/.*)?") + `)$`)
	var tests, dirs []string
	checked := 0
	for _, p := range packages(t) {
		if !raced.MatchString(p.ImportPath) {
			continue
		}
		checked++
		if found := unraced(t, p.Dir); len(found) > 0 {
			tests = append(tests, found...)
			dirs = append(dirs, "."+strings.TrimPrefix(p.ImportPath, "tendril"))
		}
	}
	if checked < 30 {
		t.Fatalf("RACE names %d packages: the pattern of this test is wrong", checked)
	}
	same(t, "UNRACED", strings.Split(variable(t, "UNRACED"), "|"), tests)
	same(t, "UNRACED_IN", strings.Fields(variable(t, "UNRACED_IN")), dirs)
}

func variable(t *testing.T, name string) string {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + ` *:= ((?:.*\\\n)*.*)$`).FindSubmatch(makefile)
	if m == nil {
		t.Fatalf("the Makefile has no %s", name)
	}
	lines := regexp.MustCompile(`\\\n\s*`).ReplaceAllString(string(m[1]), " ")
	return strings.ReplaceAll(strings.ReplaceAll(lines, "| ", "|"), " |", "|")
}

func same(t *testing.T, what string, named, wanted []string) {
	t.Helper()
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	for _, one := range wanted {
		if !slices.Contains(named, one) {
			t.Errorf("%s lacks %s", what, one)
		}
	}
	for _, one := range named {
		if !slices.Contains(wanted, one) {
			t.Errorf("%s has %s, which runs whole under the race detector: remove it", what, one)
		}
	}
}

// unraced are the tests of a folder that need a run without the race detector: those that use one of these words, in
// their own text or in what they call of the folder's tests.
func unraced(t *testing.T, dir string) (names []string) {
	t.Helper()
	needs := regexp.MustCompile(`^(testing\.Short|testing\.AllocsPerRun|runtime\.ReadMemStats|"TENDRIL_BIN.*")$`)
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	uses := map[string][]string{} // by function, variable or method: the words in it
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^//go:build.*\brace\b`).Match(text) {
			t.Errorf("%s is built with or without the race detector: this test does not know such files", name)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			collect(uses, d)
		}
	}
	for changed := true; changed; {
		changed = false
		for of, words := range uses {
			if !slices.Contains(words, "needed") && slices.ContainsFunc(words, func(word string) bool {
				return needs.MatchString(word) || slices.Contains(uses[word], "needed")
			}) {
				uses[of] = append(words, "needed")
				changed = true
			}
		}
	}
	for of, words := range uses {
		if strings.HasPrefix(of, "Test") && of != "TestMain" && slices.Contains(words, "needed") {
			names = append(names, of)
		}
	}
	return names
}

func collect(uses map[string][]string, d ast.Decl) {
	words := func(n ast.Node) (all []string) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				all = append(all, n.Name)
			case *ast.BasicLit:
				all = append(all, n.Value)
			case *ast.SelectorExpr:
				if of, ok := n.X.(*ast.Ident); ok {
					all = append(all, of.Name+"."+n.Sel.Name)
				}
			}
			return true
		})
		return all
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Body != nil && d.Name.Name != "TestMain" {
			uses[d.Name.Name] = append(uses[d.Name.Name], words(d.Body)...)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				for _, name := range v.Names {
					for _, value := range v.Values {
						uses[name.Name] = append(uses[name.Name], words(value)...)
					}
				}
			}
		}
	}
}
