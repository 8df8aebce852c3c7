package raftnode

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// teller tells followers at once what is committed. Raft says it with the next entries, or 50 to 100 ms later: for so
// long a follower would wait whose own change was made, or that reads what was changed just now.
//
// What it sends is one of raft's own messages: after the entry index, which is of that term, comes none, and all to
// index is committed. A follower that has that entry takes it; one that has not refuses, and nothing is altered.
type teller struct {
	send    func(id raft.ServerID, index uint64) (told bool)
	over    <-chan struct{} // closed before raft ends
	running sync.WaitGroup

	mu     sync.Mutex // a leaf
	closed bool
	told   map[raft.ServerID]uint64 // who is being told, and up to which entry. One message is under way at each
}

// How often a follower is told that has not got the entry yet, and the pause before the first time. The pauses double;
// after the last one raft has told it itself.
const (
	tellTimes = 8
	tellPause = 250 * time.Microsecond
)

// tell begins to tell a follower.
func (t *teller) tell(id raft.ServerID, index uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	newest, underWay := t.told[id]
	newest = max(newest, index)
	t.told[id] = newest
	if !underWay {
		t.running.Go(func() { t.run(id, newest) })
	}
}

// run tells a follower until it knows what is newest.
func (t *teller) run(id raft.ServerID, index uint64) {
	for {
		t.repeat(id, index)
		t.mu.Lock()
		if newest := t.told[id]; newest == index || t.closed {
			delete(t.told, id)
			t.mu.Unlock()
			return
		}
		index = t.told[id]
		t.mu.Unlock()
	}
}

func (t *teller) repeat(id raft.ServerID, index uint64) {
	for i := range tellTimes {
		if t.send(id, index) {
			return
		}
		pause := time.NewTimer(tellPause << i)
		select {
		case <-pause.C:
		case <-t.over:
			pause.Stop()
			return
		}
	}
}

// close waits until nobody is told any more. The connections have been closed.
func (t *teller) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.running.Wait()
}
