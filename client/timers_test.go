package client

import (
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
	case <-time.After(10 * time.Second):
		t.Error("Close would wait for a timer that is not set")
	}
}
