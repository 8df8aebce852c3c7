package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The order of locks, as far as it shows in the text. A lock is the field of a type (store.Store.mu) and stands for
// that of every value. A call leads where its name says: what an interface's method or a func value does is not seen,
// nor what is held while a func literal runs. So an order that is found is one of the code's, and not all are found.

// set is locks, or packages.
type set map[string]bool

// lockStep is one thing that a function does: it takes a lock, or calls.
type lockStep struct {
	lock, call string
	held       []string // taken by the function itself, in order
	released   set      // the caller's, which the function has let go
	at         token.Position
}

// lockFunc is what is known of a function.
type lockFunc struct {
	steps []lockStep
	// at its end: what it has taken, and what it has let go of its caller's
	takes, releases set

	// takesInside are the locks that it or who it calls takes, with what is let go of the caller's meanwhile
	takesInside map[string]set
}

// lockTable is all functions by their full names.
type lockTable struct {
	fset  *token.FileSet
	funcs map[string]*lockFunc
	leafs set // fields whose comment says that they are leaves
}

// lockWalk goes through one function.
type lockWalk struct {
	*lockTable
	info      *types.Info
	name      string
	f         *lockFunc
	held      []string
	released  set
	deferred  []string
	literals  int
	deferring bool
	before    map[string]*lockFunc
}

var lockMethod = regexp.MustCompile(`^\(\*(?:sync\.(?:RW)?|tendril/store/adaptive\.)Mutex\)\.(R?Lock|R?Unlock|TryR?Lock)$`)

// packagesWithTypes are ours without cgo, and where the compiler left the types of each.
func packagesWithTypes(t *testing.T) (ours []pkgFiles, exports map[string]string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles,Export,Module", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports = map[string]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkgFiles
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return ours, exports
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main && len(p.CgoFiles) == 0 {
			ours = append(ours, p)
		}
	}
}

type pkgFiles struct {
	ImportPath, Dir, Export string
	GoFiles, CgoFiles       []string
	Module                  *struct{ Main bool }
}

// checkedPkg is a package of ours with the types of its files.
type checkedPkg struct {
	pkgFiles
	types *types.Package
	info  *types.Info
	files []*ast.File
}

// checkPackages parses and checks our packages without cgo, once for all tests.
func checkPackages(t *testing.T) ([]checkedPkg, *token.FileSet) {
	t.Helper()
	checked.Do(func() {
		fset := token.NewFileSet()
		checked.pkgs, checked.fset = parseAndCheck(t, fset), fset
	})
	if checked.fset == nil {
		t.Fatal("another test could not check the packages' types")
	}
	return checked.pkgs, checked.fset
}

var checked struct {
	sync.Once
	pkgs []checkedPkg
	fset *token.FileSet
}

func parseAndCheck(t *testing.T, fset *token.FileSet) (all []checkedPkg) {
	t.Helper()
	ours, exports := packagesWithTypes(t)
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	for _, p := range ours {
		c := checkedPkg{pkgFiles: p,
			info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
				Selections: map[*ast.SelectorExpr]*types.Selection{},
				Types:      map[ast.Expr]types.TypeAndValue{}}}
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			c.files = append(c.files, file)
		}
		check := types.Config{Importer: imports}
		var err error
		if c.types, err = check.Check(p.ImportPath, fset, c.files, c.info); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// readLocks reads every function of ours.
func readLocks(t *testing.T) *lockTable {
	units, fset := checkPackages(t)
	all := &lockTable{fset: fset, funcs: map[string]*lockFunc{}, leafs: set{}}
	for _, u := range units {
		all.readLeafs(u.ImportPath, u.files)
	}
	// Who lets go of a lock for its caller (an unlock with more to it) shows first, then who takes one for its caller.
	known := map[string]*lockFunc{}
	for pass := range 3 {
		all.funcs = map[string]*lockFunc{}
		for _, u := range units {
			for _, file := range u.files {
				for _, d := range file.Decls {
					if fn, is := d.(*ast.FuncDecl); is && fn.Body != nil {
						all.read(u.info, u.info.Defs[fn.Name].(*types.Func).FullName(), fn.Body, known)
					}
				}
			}
		}
		for name, f := range all.funcs {
			switch pass {
			case 0:
				known[name] = &lockFunc{releases: f.releases}
			case 1:
				known[name].takes = f.takes
			}
		}
	}
	return all
}

// readLeafs takes down the locks whose comment says that they are leaves.
func (a *lockTable) readLeafs(pkg string, files []*ast.File) {
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, is := n.(*ast.TypeSpec)
			if !is {
				return true
			}
			body, is := spec.Type.(*ast.StructType)
			if !is {
				return true
			}
			for _, f := range body.Fields.List {
				if x, is := f.Type.(*ast.SelectorExpr); is && strings.HasSuffix(x.Sel.Name, "Mutex") &&
					leaf.MatchString(f.Comment.Text()) && !strings.Contains(f.Comment.Text(), "otherwise") {
					for _, name := range f.Names {
						a.leafs[strings.TrimPrefix(pkg, "tendril/")+"."+spec.Name.Name+"."+name.Name] = true
					}
				}
			}
			return false
		})
	}
}

var leaf = regexp.MustCompile(`\bleaf\b($|[^ ]| [^b])`) // but not "a leaf but for"

// read goes through a function, or a func literal of it.
func (a *lockTable) read(info *types.Info, name string, body *ast.BlockStmt, before map[string]*lockFunc) {
	f := &lockFunc{takesInside: map[string]set{}}
	a.funcs[name] = f
	w := &lockWalk{lockTable: a, info: info, name: name, f: f, released: set{}, before: before}
	if !w.block(body.List) {
		w.end()
	}
}

// end notes what a function leaves to its caller: what each way through it does.
func (w *lockWalk) end() {
	takes, releases := set{}, maps.Clone(w.released)
	for _, l := range w.held {
		if !slices.Contains(w.deferred, l) {
			takes[l] = true
		}
	}
	if w.f.takes != nil {
		maps.DeleteFunc(takes, func(l string, _ bool) bool { return !w.f.takes[l] })
		maps.DeleteFunc(releases, func(l string, _ bool) bool { return !w.f.releases[l] })
	}
	w.f.takes, w.f.releases = takes, releases
}

// block goes through statements in order; it reports whether the last one leads elsewhere.
func (w *lockWalk) block(list []ast.Stmt) (left bool) {
	for _, s := range list {
		if w.statement(s) {
			return true
		}
	}
	return false
}

// statement reports whether control leaves the block there.
func (w *lockWalk) statement(s ast.Stmt) (left bool) {
	switch s := s.(type) {
	case nil:
	case *ast.BlockStmt:
		return w.block(s.List)
	case *ast.LabeledStmt:
		return w.statement(s.Stmt)
	case *ast.ReturnStmt:
		w.calls(s)
		w.end()
		return true
	case *ast.BranchStmt:
		return true
	case *ast.GoStmt:
		w.literal(s.Call.Fun)
		for _, arg := range s.Call.Args {
			w.calls(arg)
		}
	case *ast.DeferStmt:
		w.deferCall(s.Call)
	case *ast.IfStmt:
		w.statement(s.Init)
		w.calls(s.Cond)
		w.branches([]func() bool{func() bool { return w.block(s.Body.List) },
			func() bool { return w.statement(s.Else) }})
	case *ast.ForStmt:
		w.statement(s.Init)
		if s.Cond != nil {
			w.calls(s.Cond)
		}
		w.branches([]func() bool{func() bool { return w.block(s.Body.List) || w.statement(s.Post) },
			func() bool { return false }})
	case *ast.RangeStmt:
		w.calls(s.X)
		w.branches([]func() bool{func() bool { return w.block(s.Body.List) }, func() bool { return false }})
	case *ast.SwitchStmt:
		w.statement(s.Init)
		if s.Tag != nil {
			w.calls(s.Tag)
		}
		w.clauses(s.Body)
	case *ast.TypeSwitchStmt:
		w.statement(s.Init)
		w.statement(s.Assign)
		w.clauses(s.Body)
	case *ast.SelectStmt:
		w.clauses(s.Body)
	default:
		w.calls(s)
	}
	return false
}

// deferCall notes the locks that a deferred call lets go.
func (w *lockWalk) deferCall(call *ast.CallExpr) {
	lock, what := w.lockOf(call)
	if what == "Unlock" || what == "RUnlock" {
		w.deferred = append(w.deferred, lock)
		return
	}
	name := w.callee(call)
	if _, is := call.Fun.(*ast.FuncLit); is {
		name = fmt.Sprintf("%s·%d", w.name, w.literals+1)
	}
	w.deferring = true
	w.calls(call)
	w.deferring = false
	if g := w.before[name]; g != nil {
		w.deferred = slices.AppendSeq(w.deferred, maps.Keys(g.releases))
	}
}

func (w *lockWalk) clauses(body *ast.BlockStmt) {
	ways := []func() bool{func() bool { return false }}
	for _, c := range body.List {
		ways = append(ways, func() bool {
			switch c := c.(type) {
			case *ast.CaseClause:
				for _, e := range c.List {
					w.calls(e)
				}
				return w.block(c.Body)
			case *ast.CommClause:
				w.statement(c.Comm)
				return w.block(c.Body)
			}
			return false
		})
	}
	w.branches(ways)
}

// branches goes each way from here. Held afterwards is what is held at the end of each that does not leave.
func (w *lockWalk) branches(ways []func() bool) {
	held, released := w.held, w.released
	var after []string
	afterReleased, some := set{}, false
	for _, way := range ways {
		w.held, w.released = slices.Clone(held), maps.Clone(released)
		if way() {
			continue
		}
		if !some {
			after = w.held
		} else {
			after = slices.DeleteFunc(after, func(l string) bool { return !slices.Contains(w.held, l) })
		}
		maps.Copy(afterReleased, w.released)
		some = true
	}
	if some {
		w.held, w.released = after, afterReleased
	} else {
		w.held, w.released = held, released
	}
}

// literal reads a func literal as a function of its own, which holds nothing.
func (w *lockWalk) literal(e ast.Expr) {
	lit, is := e.(*ast.FuncLit)
	if !is {
		return
	}
	w.literals++
	w.read(w.info, fmt.Sprintf("%s·%d", w.name, w.literals), lit.Body, w.before)
}

// calls takes down the calls of an expression or a simple statement.
func (w *lockWalk) calls(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			w.literal(n)
			return false
		case *ast.CallExpr:
			for _, arg := range n.Args {
				w.calls(arg)
			}
			w.calls(n.Fun)
			w.call(n)
			return false
		}
		return true
	})
}

func (w *lockWalk) call(call *ast.CallExpr) {
	step := lockStep{held: slices.Clone(w.held), released: maps.Clone(w.released), at: w.fset.Position(call.Pos())}
	lock, what := w.lockOf(call)
	switch what {
	case "":
		step.call = w.callee(call)
		if step.call == "" {
			return
		}
		w.f.steps = append(w.f.steps, step)
		if g := w.before[step.call]; g != nil && !w.deferring {
			for l := range g.releases {
				w.letGo(l)
			}
			for l := range g.takes {
				w.take(l)
			}
		}
	case "Lock", "RLock":
		step.lock = lock
		w.f.steps = append(w.f.steps, step)
		w.take(lock)
	case "Unlock", "RUnlock":
		w.letGo(lock)
	default: // TryLock waits for nobody. Where it failed is a way of its own, which leaves or joins: see branches
		w.take(lock)
	}
}

func (w *lockWalk) take(lock string) {
	if w.released[lock] {
		delete(w.released, lock)
		return
	}
	if !slices.Contains(w.held, lock) {
		w.held = append(w.held, lock)
	}
}

func (w *lockWalk) letGo(lock string) {
	if i := slices.Index(w.held, lock); i >= 0 {
		w.held = slices.Delete(slices.Clone(w.held), i, i+1)
		return
	}
	w.released = maps.Clone(w.released)
	w.released[lock] = true
}

// callee is the full name of the function that a call names; "" where it names none.
func (w *lockWalk) callee(call *ast.CallExpr) string {
	e := ast.Unparen(call.Fun)
	if x, is := e.(*ast.IndexExpr); is {
		e = x.X
	}
	var id *ast.Ident
	switch e := e.(type) {
	case *ast.Ident:
		id = e
	case *ast.SelectorExpr:
		id = e.Sel
	default:
		return ""
	}
	fn, is := w.info.Uses[id].(*types.Func)
	if !is {
		return ""
	}
	return fn.Origin().FullName()
}

// lockOf says which lock a call is about, and what it does with it; "" where it is about none.
func (w *lockWalk) lockOf(call *ast.CallExpr) (lock, what string) {
	sel, is := call.Fun.(*ast.SelectorExpr)
	if !is {
		return "", ""
	}
	m := lockMethod.FindStringSubmatch(w.callee(call))
	if m == nil {
		return "", ""
	}
	if s := w.info.Selections[sel]; s != nil && len(s.Index()) > 1 { // embedded
		if x, is := ast.Unparen(sel.X).(*ast.SelectorExpr); is && !isNamed(s.Recv()) {
			return typeName(w.info.Selections[x].Recv()) + "." + x.Sel.Name, m[1]
		}
		return typeName(s.Recv()) + ".Mutex", m[1]
	}
	switch x := ast.Unparen(sel.X).(type) {
	case *ast.SelectorExpr:
		if s := w.info.Selections[x]; s != nil {
			return typeName(s.Recv()) + "." + x.Sel.Name, m[1]
		}
		return "", ""
	case *ast.Ident:
		return w.name + "." + x.Name, m[1]
	}
	return "", ""
}

func isNamed(t types.Type) bool {
	if p, is := t.(*types.Pointer); is {
		t = p.Elem()
	}
	_, is := t.(*types.Named)
	return is
}

func typeName(t types.Type) string {
	if p, is := t.(*types.Pointer); is {
		t = p.Elem()
	}
	if n, is := t.(*types.Named); is {
		t = n.Origin()
	}
	return strings.TrimPrefix(t.String(), "tendril/")
}

// orders gives each pair of locks of which the second is taken while the first is held, and where.
func (a *lockTable) orders() map[[2]string]token.Position {
	for changed := true; changed; {
		changed = false
		for _, f := range a.funcs {
			for _, s := range f.steps {
				if s.lock != "" {
					changed = f.inside(s.lock, s.released) || changed
				} else if g := a.funcs[s.call]; g != nil {
					for l, released := range g.takesInside {
						all := maps.Clone(released)
						maps.Copy(all, s.released)
						changed = f.inside(l, all) || changed
					}
				}
			}
		}
	}
	found := map[[2]string]token.Position{}
	note := func(s lockStep, lock string, released set) {
		for _, h := range s.held {
			if h != lock && !released[h] {
				if _, known := found[[2]string{h, lock}]; !known {
					found[[2]string{h, lock}] = s.at
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.funcs)) {
		for _, s := range a.funcs[name].steps {
			if s.lock != "" {
				note(s, s.lock, nil)
			} else if g := a.funcs[s.call]; g != nil {
				for l, released := range g.takesInside {
					note(s, l, released)
				}
			}
		}
	}
	return found
}

// inside notes a lock that is taken; less and less counts as let go.
func (f *lockFunc) inside(lock string, released set) (changed bool) {
	known, is := f.takesInside[lock]
	if !is {
		f.takesInside[lock] = maps.Clone(released)
		if f.takesInside[lock] == nil {
			f.takesInside[lock] = set{}
		}
		return true
	}
	n := len(known)
	maps.DeleteFunc(known, func(l string, _ bool) bool { return !released[l] })
	return len(known) != n
}

// TestLocksHaveAnOrder: no lock is taken under one that is taken under it, also through others, and no thread holds
// more than maxLocksHeld.
func TestLocksHaveAnOrder(t *testing.T) {
	table := readLocks(t)
	found := table.orders()
	after := map[string][]string{}
	for pair := range found {
		after[pair[0]] = append(after[pair[0]], pair[1])
	}
	if len(found) < 100 {
		t.Fatalf("%d pairs of locks: is the table still read?", len(found))
	}
	checkDepth(t, table)
	for lock := range after {
		slices.Sort(after[lock])
	}
	for _, lock := range slices.Sorted(maps.Keys(after)) {
		if way := wayTo(after, lock, lock, set{}); way != nil {
			t.Errorf("locks in a circle:%s", described(way, found))
		}
		if table.leafs[lock] {
			t.Errorf("the comment calls %s a leaf:%s", lock, described([]string{lock, after[lock][0]}, found))
		}
	}
	for _, pair := range documentedOrders(t, found) {
		if way := wayTo(after, pair[1], pair[0], set{}); way != nil {
			t.Errorf("docs/design/locks.md has %s before %s:%s", pair[0], pair[1], described(way, found))
		}
	}
}

// wayTo is a way from one lock to another, both included; nil: there is none.
func wayTo(after map[string][]string, from, to string, seen set) []string {
	for _, next := range after[from] {
		if next == to {
			return []string{from, to}
		}
		if seen[next] {
			continue
		}
		seen[next] = true
		if rest := wayTo(after, next, to, seen); rest != nil {
			return append([]string{from}, rest...)
		}
	}
	return nil
}

func described(way []string, found map[[2]string]token.Position) (text string) {
	for i := range way[1:] {
		text += fmt.Sprintf("\n\t%s under %s: %v", way[i+1], way[i], found[[2]string{way[i], way[i+1]}])
	}
	return text
}

// documentedOrders reads the pairs `A` → `B` of docs/design/locks.md, where both are found.
func documentedOrders(t *testing.T, found map[[2]string]token.Position) (pairs [][2]string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/design/locks.md"))
	if err != nil {
		t.Fatal(err)
	}
	full := map[string][]string{}
	for pair := range found {
		for _, lock := range pair {
			short := lock[strings.LastIndex(lock, "/")+1:]
			_, short, _ = strings.Cut(short, ".")
			if !slices.Contains(full[short], lock) {
				full[short] = append(full[short], lock)
			}
		}
	}
	for _, chain := range regexp.MustCompile("`[A-Za-z.]+`(?: → `[A-Za-z.]+`)+").FindAllString(string(page), -1) {
		names := strings.Split(strings.ReplaceAll(chain, "`", ""), " → ")
		for i := range names[1:] {
			if len(full[names[i]]) == 1 && len(full[names[i+1]]) == 1 {
				pairs = append(pairs, [2]string{full[names[i]][0], full[names[i+1]][0]})
			}
		}
	}
	if len(pairs) < 5 {
		t.Errorf("docs/design/locks.md has %d pairs that are found: are its names still the code's?", len(pairs))
	}
	return pairs
}
