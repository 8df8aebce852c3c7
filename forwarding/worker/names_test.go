package worker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestKernelNames(t *testing.T) {
	long := strings.Repeat("k", 1000)
	for source, want := range map[string][]string{
		"kernel void a(global int *x) {} __kernel\nvoid\nb (int y) {} kernel void a(global int *x);": {"a", "b"},
		"kernel __attribute__((reqd_work_group_size(8, 1, 1))) void c(int x) {}":                     {"c"},
		"__attribute__((reqd_work_group_size(8, 1, 1))) kernel void d() {}":                          {"d"},
		"#define KERNEL kernel\nKERNEL void e(int x) {}":                                             {"e"},
		"// a kernel; it (never) runs\nvoid f(int x) {} int kernel_of(int); struct { int kernel; };": nil,
		"kernel void " + long + "(global int *x) {}":                                                 {long},
		"kernel": nil, "kernel void": nil, "kernel ((((": nil, "kernel ))) void g(": {"g"}, "": nil, "kernel\xff(": nil,
	} {
		if got := kernelNames([]byte(source)); !slices.Equal(got, want) {
			t.Errorf("%.80q: %.80q, want %.80q", source, got, want)
		}
	}
}

// TestNamesOfALinkedProgram: a program that is linked of many has no more names than one that is built.
func TestNamesOfALinkedProgram(t *testing.T) {
	var all []string
	for i := range 3 {
		var names []string
		for j := range maxNames / 2 {
			names = append(names, fmt.Sprintf("k%d_%d", i, j))
		}
		all = withNames(withNames(all, names), names)
	}
	if len(all) != maxNames || all[0] != "k0_0" || all[maxNames-1] != fmt.Sprintf("k1_%d", maxNames/2-1) {
		t.Errorf("%d names", len(all))
	}
}

// TestManyKernelWords: no part of a source is looked through for more than one of its words "kernel".
func TestManyKernelWords(t *testing.T) {
	const words = 4096
	source := []byte(strings.Repeat("kernel ", words))
	if n := testing.AllocsPerRun(1, func() { kernelNames(source) }); n > 10*words {
		t.Errorf("%.0f allocations for %d words", n, words)
	}
}

func TestHasLongWord(t *testing.T) {
	word := strings.Repeat("aZ_9", longWord/4)
	for data, want := range map[string]bool{
		"": false, word: false, word + " " + word: false, "(" + word + "x)": true, "\xff" + word + "\n": false,
		strings.Repeat("-", 2*longWord): false,
	} {
		if hasLongWord([]byte(data)) != want {
			t.Errorf("%q: %v", data, !want)
		}
	}
}
