package workers

import (
	"strings"
	"testing"

	"tendril/forwarding/clwire"
)

// A driver that does not survive an import of much memory has its devices bounded, and `tendril status` says why. It is
// tried where that is in doubt alone.
func TestDriversThatDoNotSurviveAnImport(t *testing.T) {
	for _, x := range []struct {
		mode  string
		gpus  int
		bound uint64
	}{
		{"gpus-that-die", 2, clwire.SmallImport},
		{"gpus-that-die", 1, 0},
		{"gpus", 2, 0},
		{"good", 2, 0},
	} {
		p, platforms := fakeGPUs(t, func(o *Options) { o.gpus = func() int { return x.gpus } }, x.mode)
		for _, d := range platforms[0].Snapshot.Devices {
			if d.ImportMost != x.bound {
				t.Errorf("%+v: %d bytes are imported at most", x, d.ImportMost)
			}
		}
		said := false
		for _, f := range p.Fallbacks() {
			said = said || strings.Contains(f.What, "510 MiB") && strings.Contains(f.Why, "killed by SIGSEGV")
		}
		if said != (x.bound != 0) {
			t.Errorf("%+v: fallbacks %+v", x, p.Fallbacks())
		}
	}
}
