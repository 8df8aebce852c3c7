//go:build cgo

package worker

import (
	"encoding/json"
	"time"

	"golang.org/x/sys/unix"

	"tendril/forwarding/clwire"
)

// driverPatience is how long the driver may take to say what it runs. A worker that hangs in a call answers without.
const driverPatience = 100 * time.Millisecond

// ofQueue is a command's queue and its number there.
type ofQueue struct{ queue, number uint64 }

// tellCommands answers the daemon. It runs on the thread that watches the control socket, which never calls the driver
// and must not wait for whoever does.
func (c *control) tellCommands(question uint64) {
	told := clwire.WorkerCommands{}
	if s := c.serving.Load(); s != nil {
		running, asked := c.askDriver(s)
		told = s.journal.Look(func(queue, number uint64) bool { return running[ofQueue{queue, number}] })
		told.Unasked = !asked
	}
	told.Question = question
	raw, err := json.Marshal(clwire.WorkerMessage{Commands: &told})
	for err == nil && len(raw) > clwire.MaxControlBytes { // names of characters that JSON writes in six
		told.More += uint64(len(told.Flying) - len(told.Flying)/2)
		told.Flying, told.Last = told.Flying[:len(told.Flying)/2], told.Last[:len(told.Last)/2]
		told.Sums, told.Calls = told.Sums[:len(told.Sums)/2], told.Calls[:len(told.Calls)/2]
		raw, err = json.Marshal(clwire.WorkerMessage{Commands: &told})
	}
	if err == nil {
		// a daemon that does not read gets no answer
		_ = unix.Sendmsg(c.fd, raw, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	}
}

// askDriver asks what runs, in a goroutine of its own: one that hangs is not joined by a second.
func (c *control) askDriver(s *session) (running map[ofQueue]bool, asked bool) {
	if !c.asking.CompareAndSwap(false, true) {
		return nil, false
	}
	answer := make(chan map[ofQueue]bool, 1)
	go func() {
		defer c.asking.Store(false)
		found := map[ofQueue]bool{}
		s.engine.Running(func(queue, number uint64) { found[ofQueue{queue, number}] = true })
		answer <- found
	}()
	limit := time.NewTimer(driverPatience)
	defer limit.Stop()
	select {
	case running = <-answer:
		return running, true
	case <-limit.C:
		return nil, false
	}
}
