package workers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDiscover(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(a, "libtendril_opencl.so")
	write(own, "")
	if err := os.Symlink(own, filepath.Join(a, "innocent.so")); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(a, "b.icd"), "libb.so.1\nsecond line\n")
	write(filepath.Join(a, "a.icd"), "  /opt/liba.so  ")
	write(filepath.Join(a, "own.icd"), own+"\n")
	write(filepath.Join(a, "link.icd"), filepath.Join(a, "innocent.so"))
	write(filepath.Join(a, "readme.txt"), "libc.so")
	write(filepath.Join(a, "empty.icd"), "\n")
	write(filepath.Join(b, "again.icd"), "libb.so.1")
	write(filepath.Join(b, "z.icd"), "libz.so")
	if err := unix.Mkfifo(filepath.Join(b, "fifo.icd"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Discover([]string{a, filepath.Join(a, "absent"), b})
	var libs []string
	for _, d := range got {
		libs = append(libs, d.Library)
	}
	if want := "/opt/liba.so libb.so.1 libz.so"; strings.Join(libs, " ") != want {
		t.Errorf("got %v, want %s", libs, want)
	}
	if err == nil || !strings.Contains(err.Error(), "empty.icd") || !strings.Contains(err.Error(), "fifo.icd") {
		t.Errorf("faults: %v", err)
	}
}
