package workers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"tendril/forwarding/clwire"
	"tendril/store/object"
)

// askLimit is how long a worker may take to say what it does.
const askLimit = time.Second

// packetsAQuestion is how many packets more the daemon hears of a worker that it has asked.
const packetsAQuestion = 2

// Commands is what one worker says that its queues have in flight.
type Commands struct {
	Worker   uint64
	PID      int
	Platform *Platform
	Told     clwire.WorkerCommands
	Err      error // it did not say
}

// Commands asks the workers of a session, all at once, and waits for each no longer than a second.
func (p *Pool) Commands(ctx context.Context, session uint64) []Commands {
	p.mu.Lock()
	var list []Commands
	var asked []*worker
	for _, s := range p.serving {
		if s.session == session && !s.w.ended() {
			list = append(list, Commands{Worker: s.id, PID: s.w.pid, Platform: s.w.platform})
			asked = append(asked, s.w)
		}
	}
	p.mu.Unlock()
	var all sync.WaitGroup
	for i := range list {
		all.Go(func() { list[i].Told, list[i].Err = p.ask(ctx, asked[i], list[i].Worker) })
	}
	all.Wait()
	slices.SortFunc(list, func(a, b Commands) int { return cmp.Compare(a.Worker, b.Worker) })
	return list
}

func (p *Pool) ask(ctx context.Context, w *worker, id uint64) (told clwire.WorkerCommands, err error) {
	q, err := p.questionTo(w, id)
	if err != nil {
		return told, err
	}
	limit := time.NewTimer(askLimit)
	defer limit.Stop()
	select {
	case <-q.done:
		return q.told, nil
	case <-w.done:
		return told, fmt.Errorf("%w: worker %d %s", object.ErrNoDevice, id, w.why())
	case <-limit.C:
		return told, fmt.Errorf("%w: worker %d (pid %d) does not answer within %v: it is stopped, or gets no processor",
			object.ErrTimeout, id, w.pid, askLimit)
	case <-ctx.Done():
		return told, ctx.Err()
	}
}

// questionTo asks a worker, or gives the question that it has not answered yet.
func (p *Pool) questionTo(w *worker, id uint64) (*question, error) {
	x := &w.questions
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open != nil {
		return x.open, nil
	}
	x.number++
	raw, err := json.Marshal(clwire.DaemonMessage{Ask: &clwire.AskCommands{Question: x.number}})
	if err != nil {
		return nil, err
	}
	if !x.listen && !p.listen(w, id) {
		return nil, errClosed
	}
	x.listen = true
	w.grant(packetsAQuestion)
	if err := w.tell(raw); err != nil {
		return nil, fmt.Errorf("%w: %w", object.ErrNoDevice, err)
	}
	x.open = &question{number: x.number, done: make(chan struct{})}
	return x.open, nil
}
