package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests that docs/SECURITY.md names exist. A promise whose test was renamed or removed is found here.
func TestPromisesHaveTheirTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	defined := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	there := map[string]bool{}
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		switch name := filepath.Base(path); {
		case err != nil || d.IsDir():
			return err
		case strings.HasPrefix(name, "test_"):
			there[name] = true
		case strings.HasSuffix(name, "_test.go"):
			text, err := os.ReadFile(path)
			for _, m := range defined.FindAllSubmatch(text, -1) {
				there[string(m[1])] = true
			}
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+|test_\\w+\\.(?:c|py))`").FindAllSubmatch(page, -1)
	if len(named) < 50 {
		t.Fatalf("docs/SECURITY.md names %d tests: is its table still one?", len(named))
	}
	for _, m := range named {
		if !there[string(m[1])] {
			t.Errorf("docs/SECURITY.md names %s, which does not exist", m[1])
		}
	}
}
