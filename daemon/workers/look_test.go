package workers

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestTheEndStopsALook: the pool's end waits for a look at a cache, which may be of many files.
func TestTheEndStopsALook(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if !usesMore(ctx, dir, 1<<10) {
		t.Error("64 KiB are not more than 1 KiB")
	}
	if cancel(); usesMore(ctx, dir, 1<<10) {
		t.Error("it looks after its end")
	}
}
