package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestDeviceQuota: what programs take of the devices' own memory (here: that of a worker whose client is not on this
// machine) is bounded for a tenant, and shown.
func TestDeviceQuota(t *testing.T) {
	t.Parallel()
	need(t, "cc", noCC)
	need(t, "driver", hasDriver())
	n := node(t, "TENDRIL_LISTEN=127.0.0.1:0", "TENDRIL_QUOTA_DEVICE=100MiB")
	p := startWith(t, n, "--server", loginTo(t, n))
	if got := p.ask("open"); !strings.HasPrefix(got, "ready") {
		t.Fatalf("open: %q\n%s", got, p.err)
	}
	p.want("buffer 0 object", "buffer %d", 60<<20)
	p.want("buffer -4 none", "buffer %d", 60<<20)
	p.want("buffer 0 object", "buffer %d", 30<<20)
	p.want("add 0", "add 1")
	p.want("good", "verify")
	out, err := n.Run(t.Context(), "status", "--json")
	if err != nil || !strings.Contains(out, fmt.Sprintf(`"device_bytes": %d`, 90<<20+1<<18)) {
		t.Errorf("status: %v: %s", err, out)
	}
	if out, err = n.Run(t.Context(), "top"); err != nil || !strings.Contains(out, "DEVICE MEMORY") ||
		!strings.Contains(out, "lab") {
		t.Errorf("top: %v: %s", err, out)
	}
	p.want("buffer -4 none", "buffer %d", 30<<20)
}
