package await

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs a package's tests, looks for goroutines that are left, and ends the process. One that is about to end may
// get no processor: goleak's own VerifyTestMain waits half a second for it, this as long as for any other state.
func Main(m goleak.TestingM, ignore ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := noneLeft(ignore); err != nil {
			fmt.Fprintf(os.Stderr, "the tests passed, and left goroutines: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// NoneLeft fails the test where goroutines are left that did not end within as long.
func NoneLeft(t testing.TB, ignore ...goleak.Option) {
	t.Helper()
	if err := noneLeft(ignore); err != nil {
		t.Error(err)
	}
}

func noneLeft(ignore []goleak.Option) (err error) {
	for began := time.Now(); time.Since(began) < limit; Rest(began) {
		if err = goleak.Find(ignore...); err == nil {
			return nil
		}
	}
	return err
}
