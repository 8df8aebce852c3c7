package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns bounds a line of a document: it fits two windows side by side.
const maxColumns = 120

// wide documents have tables whose rows say one thing each.
var wide = []string{"docs/SECURITY.md"}

// history names what was.
var history = []string{"CHANGELOG.md"}

// TestDocumentsAreTrue: what a document names is there (the page that it links to, the file, the test), and its lines
// fit.
func TestDocumentsAreTrue(t *testing.T) {
	out, err := exec.Command("git", "-C", root, "ls-files").Output()
	if err != nil {
		t.Skip("not a git checkout:", err)
	}
	files := strings.Fields(string(out))
	tests := testNames(t)
	for _, name := range files {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // deleted, not committed yet
		}
		text := string(raw)
		for i, line := range strings.Split(text, "\n") {
			if n := utf8.RuneCountInString(line); n > maxColumns && !slices.Contains(wide, name) {
				t.Errorf("%s:%d has %d columns, at most %d", name, i+1, n, maxColumns)
			}
		}
		if slices.Contains(history, name) {
			continue
		}
		checkLinks(t, name, text)
		checkPaths(t, name, text, files)
		for _, m := range regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w+)`").FindAllStringSubmatch(text, -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, which does not exist", name, m[1])
			}
		}
	}
}

func checkLinks(t *testing.T, name, text string) {
	for _, m := range regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`).FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[1], "://") {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, filepath.Dir(name), m[1])); err != nil {
			t.Errorf("%s links to %s, which does not exist", name, m[1])
		}
	}
}

// checkPaths looks for the source files that a document names, by the end of their path: `session/resume.go`.
func checkPaths(t *testing.T, name, text string, files []string) {
	for _, m := range regexp.MustCompile("`([\\w./-]+\\.(?:go|c|h|py|table|toml|txt|js))`").FindAllStringSubmatch(text,
		-1) {
		if !slices.ContainsFunc(files, func(f string) bool { return f == m[1] || strings.HasSuffix(f, "/"+m[1]) }) {
			t.Errorf("%s names the file %s, which does not exist", name, m[1])
		}
	}
}

// testNames are the tests and fuzz targets in the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	defined := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range defined.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
