package archtest

import (
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// clientFolders have the C and Python whose lines TestClientsFitColumns bounds.
var clientFolders = []string{"client/c", "client/python", "forwarding/icd"}

// wideSources have tables whose rows say one thing each.
var wideSources = []string{"forwarding/icd/testdata/handles.h"}

// cString is a string of C, on one line.
var cString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// TestClientsFitColumns: a line of the clients and the driver library, in C, Python or shell, has at most maxColumns,
// a tab being four. The text in a string of C may be longer. Makefiles have recipes, and are not checked.
func TestClientsFitColumns(t *testing.T) {
	out, err := exec.Command("git", append([]string{"-C", root, "ls-files"}, clientFolders...)...).Output()
	if err != nil {
		t.Skip("not a git checkout:", err)
	}
	checked := 0
	for _, name := range strings.Fields(string(out)) {
		kind := filepath.Ext(name)
		if !slices.Contains([]string{".c", ".h", ".3", ".py", ".sh"}, kind) || slices.Contains(wideSources, name) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // deleted, not committed yet
		}
		checked++
		for i, line := range strings.Split(string(b), "\n") {
			if kind == ".c" || kind == ".h" {
				line = cString.ReplaceAllString(line, `""`)
			}
			if n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); n > maxColumns {
				t.Errorf("%s:%d has %d columns, at most %d", name, i+1, n, maxColumns)
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d files were checked", checked)
	}
}
