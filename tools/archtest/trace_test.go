package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestATraceHasEveryCall: a driver that lacks a function that forwarding/cuda asks for is refused, so a trace of the
// keeper would not begin.
func TestATraceHasEveryCall(t *testing.T) {
	names := func(file, pattern string) (list []string) {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			list = append(list, found[1])
		}
		slices.Sort(list)
		return list
	}
	asked := names("forwarding/cuda/driver.c", `(?m)^\tF\(\w+, "(cu\w+)"`)
	traced := names("tools/gpucheck/cudatrace.c", `(?m)^P\((cu\w+),`)
	if len(asked) == 0 || !slices.Equal(asked, traced) {
		t.Errorf("driver.c asks for %v; cudatrace.c has %v", asked, traced)
	}
}
