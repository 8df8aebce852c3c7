package main

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// TestWhatStartsOftenIsAlone: a worker, a probe, a keeper and a guard do not make what users call first.
func TestWhatStartsOftenIsAlone(t *testing.T) {
	has := func(name string, args ...string) bool {
		verbs := (&cli{}).root(args).Commands()
		return slices.ContainsFunc(verbs, func(v *cobra.Command) bool { return v.Name() == name })
	}
	for _, own := range []string{"worker", "probe", "keeper", "guard", "import-gpu"} {
		if !has(own, own, "--icd", "x") || has("put", own, "--icd", "x") || has("completion", own) {
			t.Errorf("%s comes with the whole command line", own)
		}
	}
	for _, args := range [][]string{nil, {"put", "worker"}, {"--socket", "x", "worker"}, {"workers"}} {
		if !has("put", args...) || !has("worker", args...) {
			t.Errorf("the command line of %q is not whole", args)
		}
	}
}
