package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
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

// TestLeaseOver: the end of the program closes the connection, and so a question that is under way fails. That says
// nothing of the lease. Before it, it says that the lease has ended.
func TestLeaseOver(t *testing.T) {
	for _, ended := range []bool{true, false} {
		var errs bytes.Buffer
		c := &cli{socket: t.TempDir() + "/none", term: terminal{err: &errs}}
		over, done := make(chan struct{}), make(chan struct{})
		c.leaseOver(context.Background(), func() error {
			if ended {
				close(done)
			}
			return client.ErrDisconnected
		}, over, done)
		said := strings.Contains(errs.String(), "the lease has ended")
		told := false
		select {
		case <-over:
			told = true
		default:
		}
		if said == ended || told == ended {
			t.Errorf("program ended %v: told %v, said %q", ended, told, errs.String())
		}
	}
}
