package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// literal is a string or a rune of Go, on one line.
var literal = regexp.MustCompile("`[^`]*`?|\"(?:[^\"\\\\]|\\\\.)*\"|'(?:[^'\\\\]|\\\\.)+'")

// TestGoFitsColumns: a line of Go has at most maxColumns, a tab being four. The text in a string may be longer: it
// stays in one piece, so that it can be searched for. Generated files are their generator's.
func TestGoFitsColumns(t *testing.T) {
	goFiles(t, func(name string, _ *ast.File) {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b[:min(len(b), 400)]), "Code generated") {
			return
		}
		raw := false // within a string of several lines
		for i, line := range strings.Split(string(b), "\n") {
			inside := raw
			if strings.Count(line, "`")%2 == 1 {
				raw = !raw
			}
			if inside || raw {
				continue
			}
			if !strings.HasPrefix(strings.TrimSpace(line), "//") {
				line = literal.ReplaceAllString(line, `""`)
			}
			if n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); n > maxColumns {
				t.Errorf("%s:%d has %d columns, at most %d", name, i+1, n, maxColumns)
			}
		}
	})
}
