package main

import (
	"fmt"
	"strings"
	"testing"

	"tendril/store/object"
)

// TestStepsOfShortages: who may have no more of something is told which setting it is, and that is another one for
// memory and for numbers.
func TestStepsOfShortages(t *testing.T) {
	for _, test := range []struct {
		why  error
		want string
	}{
		{object.ErrFull, "--capacity"},
		{object.ErrQuota, "daemon --quota"},
		{object.ErrLimit, "--quota-objects, --quota-segments"},
	} {
		sent := object.FromCode(object.CodeOf(test.why), "no")
		code, step := classify(fmt.Errorf("put: %w", sent))
		if code != exitFull || !strings.HasSuffix(step, test.want) {
			t.Errorf("%v: exit code %d: %s", test.why, code, step)
		}
	}
}
