package trial

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if Client() {
		return
	}
	os.Exit(m.Run())
}

// TestStore runs two worlds for some seconds, which shows that trials work; what is found takes longer, and make soak
// runs them for as long as it is told. TENDRIL_TRIAL says for how long, TENDRIL_TRIAL_SEED with which seed.
func TestStore(t *testing.T) {
	bin := os.Getenv("TENDRIL_BIN_DIR")
	if bin == "" {
		t.Skip("no binaries: make test builds them and sets TENDRIL_BIN_DIR")
	}
	long := 8 * time.Second
	if text := os.Getenv("TENDRIL_TRIAL"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("TENDRIL_TRIAL_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", seed)
	for _, w := range Worlds[:2] {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			w.Pause = time.Millisecond
			if err := Run(t.Context(),
				Options{Bin: bin, World: w, Seed: seed, Duration: long, Round: long, Log: t.Logf}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
