package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRaceRunsThemWhole: what make test runs under the race detector alone (RACE_ALONE in the Makefile) tests there all
// that it tests: nothing is shorter there, is left out, or needs the built program.
func TestRaceRunsThemWhole(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^RACE_ALONE := (.*)$`).FindSubmatch(makefile)
	if m == nil {
		t.Fatal("the Makefile has no RACE_ALONE")
	}
	alone := regexp.MustCompile(`^(` + string(m[1]) + `)$`)
	needs := regexp.MustCompile(`testing\.Short\(\)|AllocsPerRun|TENDRIL_BIN|//go:build.*race`)
	found := 0
	for _, p := range packages(t) {
		if !alone.MatchString(strings.TrimPrefix(p.ImportPath, "tendril/")) {
			continue
		}
		found++
		files, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if what := needs.Find(text); what != nil {
				t.Errorf("%s has %s: take %s out of RACE_ALONE", filepath.Base(name), what, p.ImportPath)
			}
		}
	}
	if found < 10 {
		t.Errorf("RACE_ALONE names %d packages: the pattern of this test is wrong", found)
	}
}
