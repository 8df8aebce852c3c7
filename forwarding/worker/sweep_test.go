package worker

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestSweepCache(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	sweepCache(filepath.Join(dir, "none"), now) // there is no cache yet
	for _, f := range []struct {
		name, text string
		age        time.Duration
		stays      bool
	}{
		{"tempfile_aaaaaa", "", 2 * time.Minute, false},
		{"tempfile_bbbbbb", "", time.Second, true},
		{"tempfile_cccccc.so", "half a library", 50 * time.Minute, true},
		{"tempfile_dddddd.so", "half a library", 2 * time.Hour, false},
		{"program.bc", "", 48 * time.Hour, true},
	} {
		path := filepath.Join(dir, f.name)
		if err := os.WriteFile(path, []byte(f.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now, now.Add(-f.age)); err != nil {
			t.Fatal(err)
		}
		sweepCache(dir, now)
		if _, err := os.Lstat(path); (err == nil) != f.stays {
			t.Errorf("%s, %v old: %v, should stay: %v", f.name, f.age, err, f.stays)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "tempfile_eeeeee"), 0o700); err != nil {
		t.Fatal(err)
	}
	sweepCache(dir, now.Add(48*time.Hour))
	if _, err := os.Stat(filepath.Join(dir, "tempfile_eeeeee")); err != nil {
		t.Errorf("a directory: %v", err)
	}
}
