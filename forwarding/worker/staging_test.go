//go:build cgo

package worker

import "testing"

// Of two workers that send to each other each must be able to take what comes, however much they have to send.
func TestSendersLeaveSlotsToReceivers(t *testing.T) {
	p := &staging{}
	if !p.open() {
		t.Fatal("no memory")
	}
	defer p.seg.unmap()
	sent := map[int]bool{}
	for i := p.takeOut(false, true); i >= 0; i = p.takeOut(false, true) {
		sent[i] = true
	}
	if len(sent) != outSlots {
		t.Errorf("senders have %d slots, want %d", len(sent), outSlots)
	}
	if p.takeOut(false, false) >= 0 {
		t.Error("a sender got more than it may")
	}
	for range stagingSlots - outSlots {
		select {
		case i := <-p.free:
			if sent[i] {
				t.Errorf("slot %d is given twice", i)
			}
		default:
			t.Fatal("senders took what receivers need")
		}
	}
}
