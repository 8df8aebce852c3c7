package workers

import (
	"os"
	"path/filepath"
	"testing"
)

// What a probe's answer hangs on is seen to change: drivers' files, and the libraries that they name.
func TestChangesOfDriversAreSeen(t *testing.T) {
	p, _ := newPool(t, nil)
	dir := p.opts.Vendors[0]
	library := filepath.Join(dir, "driver.so")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	if old, _ := p.Changed(); old {
		t.Error("old before the first probe")
	}
	seen := func(what string) {
		t.Helper()
		old, probed := p.Changed()
		if !old {
			t.Errorf("not seen: %s", what)
		}
		p.Probe()
		<-probed
		if old, _ := p.Changed(); old {
			t.Errorf("old after a probe: %s", what)
		}
	}
	p.Probe()
	write(filepath.Join(dir, "a.icd"), library)
	seen("a new driver")
	write(library, "one")
	seen("its library")
	write(library, "two")
	seen("another library in its place")
	os.Remove(filepath.Join(dir, "a.icd"))
	seen("no driver")
}

// A machine's memory may change a little, as under a balloon.
func TestMemoryThatChangesALittle(t *testing.T) {
	const gib = 1 << 30
	for _, x := range []struct {
		then, now uint64
		same      bool
	}{
		{16 * gib, 17 * gib, true}, {17 * gib, 16 * gib, true},
		{16 * gib, 20 * gib, false}, {20 * gib, 16 * gib, false},
	} {
		if (surroundings{"", x.then}).same(surroundings{"", x.now}) != x.same {
			t.Errorf("%+v", x)
		}
	}
}
