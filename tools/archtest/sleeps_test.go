package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// pause begins the comment of a sleep that waits for no state. It says why a time is what the test needs.
const pause = "// Pause:"

// TestSleepsWaitForAState: a sleep in a test stands in a loop that looks for a state and ends when it is there, or its
// line has a comment that begins with "Pause:". A test that sleeps instead of waiting is a bet: on a busy machine it
// fails, or, worse, passes without its case.
func TestSleepsWaitForAState(t *testing.T) {
	goFiles(t, func(rel string, _ *ast.File) {
		if !strings.HasSuffix(rel, "_test.go") {
			return
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, filepath.Join(root, rel), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		said := map[int]bool{} // lines with a reason
		for _, group := range file.Comments {
			for _, c := range group.List {
				if strings.HasPrefix(c.Text, pause) {
					said[fset.Position(c.Pos()).Line] = true
				}
			}
		}
		var around []ast.Node
		ast.Inspect(file, func(n ast.Node) bool {
			if n == nil {
				around = around[:len(around)-1]
				return true
			}
			around = append(around, n)
			if !isSleep(n) || inPoll(around) {
				return true
			}
			if line := fset.Position(n.Pos()).Line; !said[line] && !said[line-1] {
				t.Errorf("%s:%d: a sleep that waits for no state: wait for one, or say why with %q", rel, line, pause)
			}
			return true
		})
	})
}

func isSleep(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Sleep" {
		return false
	}
	from, ok := f.X.(*ast.Ident)
	return ok && from.Name == "time"
}

// inPoll reports whether the last of a chain of nodes stands in a loop of its own function that may end before its
// count does: with a condition that asks something, or with a return or break.
func inPoll(around []ast.Node) bool {
	for i := len(around) - 1; i >= 0; i-- {
		switch n := around[i].(type) {
		case *ast.FuncDecl, *ast.FuncLit:
			return false
		case *ast.ForStmt:
			return asks(n.Cond) || leaves(n.Body)
		case *ast.RangeStmt:
			return leaves(n.Body)
		}
	}
	return false
}

// asks reports whether a condition calls something.
func asks(condition ast.Expr) bool {
	found := false
	if condition != nil {
		ast.Inspect(condition, func(n ast.Node) bool {
			_, call := n.(*ast.CallExpr)
			found = found || call
			return true
		})
	}
	return found
}

func leaves(body *ast.BlockStmt) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			found = true
		case *ast.BranchStmt:
			found = found || n.Tok == token.BREAK
		}
		return true
	})
	return found
}
