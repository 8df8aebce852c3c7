package main

import (
	"errors"
	"fmt"
	"testing"

	"tendril/client"
	"tendril/store/object"
)

// TestLeaseEnded: a daemon that is too busy to answer ends nobody's program.
func TestLeaseEnded(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("%w: session 3 has no worker 0", object.ErrNotFound), false},
		{fmt.Errorf("%w: all requests hold too much", object.ErrBusy), false},
		{client.ErrDisconnected, true},
		{fmt.Errorf("%w: no session", object.ErrInvalid), true},
		{errors.New("connection reset"), true},
		{nil, true},
	} {
		if got := leaseEnded(test.err); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}
