package client

import (
	"context"
	"testing"
	"time"
)

// A flush by hand leaves the timer set; what is to be flushed next sets it once more, and it runs once. Close waits for
// it, and not for two.
func TestTheTimerIsCountedOnce(t *testing.T) {
	c := &Conn{}
	c.sendMu.Lock()
	c.setFlush()
	c.sendMu.Unlock()
	c.flushOut()
	c.sendMu.Lock()
	c.setFlush()
	c.sendMu.Unlock()
	c.stopTimers()
	ended := make(chan struct{})
	go func() {
		c.background.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Minute):
		t.Error("Close would wait for a timer that is not set")
	}
}

// A connection looks at its certificate again and again while it is open, and Close waits for a look under way.
func TestKeepRenewed(t *testing.T) {
	c := &Conn{}
	looks := make(chan struct{})
	c.renewal = func(context.Context, bool) error { looks <- struct{}{}; return nil }
	c.keepRenewed(time.Millisecond)
	for range 3 {
		<-looks
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stopTimers()
	ended := make(chan struct{})
	go func() {
		c.background.Wait()
		close(ended)
	}()
	for over := false; !over; {
		select {
		case <-looks: // one may have been under way
		case <-ended:
			over = true
		}
	}
	if c.renewing.Stop() {
		t.Error("a look is to come after Close")
	}
}
