package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tendril/tools/e2e/rig"
)

// TestKilledAnywhere kills clients of every kind after a random time: wherever it hits them, nothing of theirs stays.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	n := node(t)
	file := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(file, make([]byte, 48<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 30 {
		after := time.Duration(r.IntN(150)) * time.Millisecond
		if i%2 == 0 {
			cmd := n.Command(t.Context(), "put", file, "--name", fmt.Sprint("k", i))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after / 2) // Pause: the kill comes at any moment
			cmd.Process.Kill()
			cmd.Wait()
		} else {
			p := start(t, n)
			fmt.Fprint(p.in, "open\nadd 1\nverify\nbuffer 9000000\nadd 1\nverify\nspin\n")
			time.Sleep(after * 2) // Pause: the kill comes at any moment
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
	}
	eventually(t, idle(t.Context(), n))
	// What was sealed in time is a whole object; what was not is gone.
	got, err := n.Run(t.Context(), "ls", "--json")
	if err != nil {
		t.Fatal(err)
	}
	check(t, n, got)
}

// check fetches every listed object and removes it; then nothing may be charged any more.
func check(t *testing.T, n *rig.Node, listing string) {
	t.Helper()
	for _, o := range objects(t, listing) {
		if o.State != "sealed" || o.Size != 48<<20 {
			t.Errorf("half an object stays: %+v", o)
		}
		if _, err := n.Run(t.Context(), "rm", o.Name); err != nil {
			t.Error(err)
		}
	}
	eventually(t, func() error {
		s, err := n.Status(t.Context())
		if err == nil && s.Store.ChargedBytes > 0 {
			err = fmt.Errorf("%d bytes are still charged: %+v", s.Store.ChargedBytes, s.Store)
		}
		return err
	})
}
