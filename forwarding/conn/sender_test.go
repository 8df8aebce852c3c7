package conn

import (
	"bytes"
	"testing"
	"time"

	"tendril/forwarding/clwire"
	"tendril/tools/e2e/await"
)

// A sender that waits for a connection holds the program's memory. If the write fails meanwhile, who takes that
// memory away waits for the sender, which by the next connection sends again what the worker lacks, of this very
// write: neither may wait for the other.
func TestSendingAgainWhileTheWriteFails(t *testing.T) {
	in := pattern(1000, 1)
	o := &BulkOp{Write: true, Size: uint64(len(in)), OnePiece: true, owner: &memory{bytes: in}}
	again := func() (payload []byte) {
		if err := o.Again(clwire.LaneHeader{Offset: 100, Length: 50},
			func(p []byte) error { payload = p; return nil }); err != nil {
			t.Error(err)
		}
		return payload
	}
	if !bytes.Equal(again(), in[100:150]) {
		t.Error("other bytes are sent again")
	}
	o.memory.RLock() // as sendOn does
	given := make(chan struct{})
	go func() {
		o.giveUp()
		close(given)
	}()
	await.Until(t, "somebody who takes the memory away", func() bool {
		if o.memory.TryRLock() {
			o.memory.RUnlock()
			return false
		}
		return true
	})
	sent := make(chan []byte, 1)
	go func() { sent <- again() }()
	select {
	case payload := <-sent:
		if payload != nil {
			t.Error("bytes of a write that has failed are sent again")
		}
	case <-time.After(5 * time.Minute):
		t.Fatal("the sender waits for who waits for it")
	}
	o.memory.RUnlock()
	<-given
	if again() != nil {
		t.Error("bytes are sent again whose memory is the program's own again")
	}
}
