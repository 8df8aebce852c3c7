package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// largestCycles says of each package with a large cycle how many of its files are in it: files of which each names
// something of the next, so that none is understood without the others. These figures only fall. A new file of such a
// package belongs outside its cycle, or in a package below.
var largestCycles = map[string]int{
	"daemon":             33,
	"daemon/frontdoor":   19,
	"daemon/workers":     23,
	"forwarding/session": 30,
	"forwarding/span":    21,
	"forwarding/worker":  29,
	"store":              40,
	"tools/bench":        19,
}

// mostInCycle is for the packages that are not in largestCycles.
const mostInCycle = 12

func TestFileCyclesOnlyShrink(t *testing.T) {
	all, fset := checkPackages(t)
	for _, p := range all {
		name := strings.TrimPrefix(p.ImportPath, "tendril/")
		cycle := p.largestCycle(fset)
		bound, listed := largestCycles[name]
		switch {
		case !listed && len(cycle) > mostInCycle, listed && len(cycle) > bound:
			t.Errorf("%s: %d files name each other in a circle, more than %d: %s", name, len(cycle),
				max(bound, mostInCycle), strings.Join(cycle, " "))
		case listed && len(cycle) <= mostInCycle:
			t.Errorf("%s: %d files in its largest cycle: it needs no row any more", name, len(cycle))
		case listed && len(cycle) < bound:
			t.Errorf("%s: %d files in its largest cycle: lower its row from %d", name, len(cycle), bound)
		}
	}
}

// largestCycle returns the most files of the package that reach each other by what they name. A method or a field
// stands in the file that declares it.
func (p checkedPkg) largestCycle(fset *token.FileSet) []string {
	file := func(pos token.Pos) string { return filepath.Base(fset.Position(pos).Filename) }
	names := map[string]set{}
	for id, used := range p.info.Uses {
		if used.Pkg() != p.types || !used.Pos().IsValid() {
			continue
		}
		from, to := file(id.Pos()), file(used.Pos())
		if names[from] == nil {
			names[from] = set{}
		}
		names[from][to] = true
	}
	reached := map[string]set{}
	for _, f := range p.GoFiles {
		reached[f] = set{}
		for work := []string{f}; len(work) > 0; {
			next := work[len(work)-1]
			work = work[:len(work)-1]
			for to := range names[next] {
				if !reached[f][to] {
					reached[f][to] = true
					work = append(work, to)
				}
			}
		}
	}
	var largest []string
	for _, f := range p.GoFiles {
		circle := slices.DeleteFunc(slices.Sorted(maps.Keys(reached[f])), func(to string) bool {
			return !reached[to][f]
		})
		if len(circle) > len(largest) {
			largest = circle
		}
	}
	return largest
}

func TestLargestCycle(t *testing.T) {
	fset := token.NewFileSet()
	p := checkedPkg{info: &types.Info{Uses: map[*ast.Ident]types.Object{}}}
	for name, text := range map[string]string{
		"a.go": "package p; type A struct { b int }; func (a *A) Get() int { return b(a) }",
		"b.go": "package p; func b(a *A) int { return c(a) }",
		"c.go": "package p; func c(a *A) int { return a.b }", // a field leads back to the file of its type
		"d.go": "package p; var d = new(A).Get()",            // names the cycle, and is in none
		"e.go": "package p; func e() int { return f() }",
		"f.go": "package p; func f() int { return e() }",
	} {
		file, err := parser.ParseFile(fset, name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.files, p.GoFiles = append(p.files, file), append(p.GoFiles, name)
	}
	var err error
	if p.types, err = new(types.Config).Check("p", fset, p.files, p.info); err != nil {
		t.Fatal(err)
	}
	if got, want := p.largestCycle(fset), []string{"a.go", "b.go", "c.go"}; !slices.Equal(got, want) {
		t.Errorf("the largest cycle is %v, want %v", got, want)
	}
}
