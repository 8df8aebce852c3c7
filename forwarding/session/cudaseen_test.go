package session

import (
	"os"
	"path/filepath"
	"testing"
)

// A process that has CUDA's driver mapped is known by it, and no other.
func TestHasCUDA(t *testing.T) {
	file := filepath.Join(t.TempDir(), "maps")
	for text, want := range map[string]bool{
		"7f00-7f01 r-xp 0 0:1 5 /usr/lib/x86_64-linux-gnu/libcuda.so.580.159\n": true,
		"7f00-7f01 r-xp 0 0:1 5 /usr/lib/libtendril_cuda.so.0\n":                false,
		"7f00-7f01 r-xp 0 0:1 5 /lib/libc.so.6\n":                               false, "": false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if hasCUDA(file) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
	if hasCUDA(file + "none") {
		t.Error("no file is CUDA")
	}
}
