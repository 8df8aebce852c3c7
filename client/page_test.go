package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestGoPage: docs/GO.md's program, by each of the page's ways to depend on this module, prints what the page says,
// and so it does again beside what the last run left.
func TestGoPage(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds programs")
	}
	root := must(filepath.Abs(".."))(t)
	page := string(must(os.ReadFile(filepath.Join(root, "docs", "GO.md")))(t))
	blocks := map[string][]string{}
	for _, found := range regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		blocks[found[1]] = append(blocks[found[1]], found[2])
	}
	if len(blocks["go"]) != 1 || len(blocks["text"]) != 1 || len(blocks["sh"]) < 3 {
		t.Fatal("the page lacks its program, what it prints, or ways to depend on the module")
	}
	for _, way := range blocks["sh"] {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(blocks["go"][0]), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("bash", "-euc", strings.ReplaceAll(way, "/src/tendril", root))
		var said strings.Builder
		cmd.Dir, cmd.Stderr = dir, &said
		cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath") // whatever the caller has, but from the cache
		if out, err := cmd.Output(); err != nil || string(out) != blocks["text"][0] {
			t.Errorf("%s: %v: %q, %s", way, err, out, said.String())
		}
	}
}
