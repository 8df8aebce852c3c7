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
		why        error
		text, want string
	}{
		{object.ErrFull, "no", "--capacity"},
		{object.ErrFull, "the GPU has no memory left: no", "sessions take a GPU's memory, too."},
		{object.ErrQuota, "no", "daemon --quota"},
		{object.ErrQuota, "delete objects, or raise --quota-device", "daemon --quota-device"},
		{object.ErrLimit, "no", "--quota-objects, --quota-segments"},
	} {
		sent := object.FromCode(object.CodeOf(test.why), test.text)
		code, step := classify(fmt.Errorf("put: %w", sent))
		if code != exitFull || !strings.HasSuffix(step, test.want) {
			t.Errorf("%v: exit code %d: %s", test.why, code, step)
		}
	}
}
