//go:build cgo

package worker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTryImport: a driver that imports no memory, or has not the GPU that is named, is an error that says so.
func TestTryImport(t *testing.T) {
	memory, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	icd := driverFile(t)
	for _, uuid := range []string{strings.Repeat("fa", 16), ""} {
		if err := tryImport(icd, uuid, memory, 1<<20); err == nil || !strings.Contains(err.Error(), "imports memory") {
			t.Errorf("GPU %q: %v", uuid, err)
		}
	}
	o := Options{ICD: icd, CacheDir: t.TempDir(), Control: memory, Import: "x"}
	if err := o.Validate(); err == nil {
		t.Error("a GPU without its memory")
	}
}
