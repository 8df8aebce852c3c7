package session

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/store/object"
)

// resumer brings the connections of a worker on another machine back when they are lost: the records and chunks wait meanwhile, in the link, and
// so do the program's calls. After Config.Resume, or where the daemon says that there is nothing to come back to, the worker dies for its client.
type resumer struct {
	w       *worker
	control RemoteControl
	lost    chan struct{} // capacity 1
	stop    chan struct{}
	work    sync.WaitGroup
	once    sync.Once

	began time.Time     // of the loss at hand; run's, as are
	back  time.Time     // when it was over
	pause time.Duration // before the next try

	mu    sync.Mutex // leaf
	lanes [clwire.MaxLanes]resumable
}

// resumable is a *link.Stream or a *link.Lane.
type resumable interface {
	Lost() bool
	Resume(socket *os.File) error
}

// Between two tries.
const (
	resumePause    = 20 * time.Millisecond
	resumePauseMax = time.Second
	// lossSaid is how long a loss lasts before a line of it goes to standard error.
	lossSaid = 2 * time.Second
	// flapping is how long a connection must live for its loss to be another one, with a patience of its own.
	flapping = 100 * time.Millisecond
)

// keepsSession says whether the session with a daemon outlives its connections, asking for that once, and for the end of calls that nobody answers.
func (d *Driver) keepsSession(control RemoteControl) bool {
	if d.cfg.Resume <= 0 && d.cfg.Silence <= 0 {
		return false
	}
	d.keptMu.Lock()
	defer d.keptMu.Unlock()
	keeps, asked := d.kept[control]
	if !asked {
		granted, err := control.KeepSession(d.cfg.Resume)
		keeps = err == nil && granted > 0 && d.cfg.Resume > 0
		if d.kept == nil {
			d.kept = map[RemoteControl]bool{}
		}
		d.kept[control] = keeps
	}
	return keeps
}

// insist makes a lane's first connection: where the session outlives connections with new tickets, too, for as long as that.
func (d *Driver) insist(control RemoteControl, worker uint64, number int, ticket [32]byte, keeps bool, dial func(ticket [32]byte) error) error {
	for began, pause := time.Now(), resumePause; ; pause = min(2*pause, resumePauseMax) {
		err := dial(ticket)
		if err == nil || !keeps || errors.Is(err, errDead) || errors.Is(err, link.ErrPeer) || time.Since(began) > min(d.cfg.Resume, defaultPatience) {
			return err
		}
		time.Sleep(pause)
		tickets, wrong := control.ResumeWorker(worker, []int{number})
		if over(wrong) {
			return errors.Join(err, wrong)
		}
		if wrong == nil && len(tickets) == 1 {
			ticket = tickets[0]
		}
	}
}

// over says that there is no worker to come back to.
func over(err error) bool {
	return errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrNoDevice) || errors.Is(err, object.ErrPermission)
}

func newResumer(w *worker, control RemoteControl) *resumer {
	return &resumer{w: w, control: control, lost: make(chan struct{}, 1), stop: make(chan struct{})}
}

func (r *resumer) start(s *link.Stream) {
	r.mu.Lock()
	r.lanes[0] = s
	r.mu.Unlock()
	r.work.Go(r.run)
}

// carry adds a lane, which may have lost its connection already: who heard of that did not know the lane. r may be nil.
func (r *resumer) carry(l *link.Lane, number int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.lanes[number] = l
	r.mu.Unlock()
	r.noteLoss() // if it is none, nothing is missing
}

// noteLoss is link.Options.Lost.
func (r *resumer) noteLoss() {
	select {
	case r.lost <- struct{}{}:
	default:
	}
}

// close joins what runs; after the worker's death. r may be nil.
func (r *resumer) close() {
	if r != nil {
		r.once.Do(func() { close(r.stop) })
		r.work.Wait()
	}
}

func (r *resumer) run() {
	for {
		select {
		case <-r.stop:
			return
		case <-r.lost:
		}
		if len(r.missing()) > 0 && !r.w.dead.Load() {
			r.bringBack()
		}
		if r.w.dead.Load() {
			return
		}
	}
}

// missing lists the lanes without a connection.
func (r *resumer) missing() (numbers []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, l := range r.lanes {
		if l != nil && l.Lost() {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// bringBack tries until every lane is back, or the worker is dead.
func (r *resumer) bringBack() {
	if time.Since(r.back) > flapping {
		r.began, r.pause = time.Now(), resumePause
	}
	defer func() { r.back = time.Now() }()
	began, w := r.began, r.w
	patience := w.d.cfg.Resume
	limit := time.AfterFunc(patience-time.Since(began), func() {
		w.die(fmt.Errorf("the connection was lost and did not come back within %v", patience))
	})
	defer limit.Stop()
	r.tell(fmt.Sprintf("tendril: the connection to the worker of %s was lost: waiting for it", text(w.platform.info[platformName])))
	said := time.AfterFunc(lossSaid, func() {
		if !w.dead.Load() {
			w.d.cfg.Log(fmt.Sprintf("tendril: the connection to the worker of %s was lost: waiting up to %v for it", text(w.platform.info[platformName]), patience))
		}
	})
	defer said.Stop()
	for first := time.Since(r.back) > flapping; ; first = false {
		numbers := r.missing()
		if len(numbers) == 0 || w.dead.Load() {
			break
		}
		if !first {
			select {
			case <-r.stop:
				return
			case <-time.After(r.pause):
			}
			r.pause = min(2*r.pause, resumePauseMax)
		}
		r.try(numbers)
	}
	if w.dead.Load() {
		return
	}
	line := fmt.Sprintf("tendril: the connection to the worker of %s is back after %v", text(w.platform.info[platformName]), time.Since(began).Round(time.Millisecond))
	r.tell(line)
	if !said.Stop() {
		w.d.cfg.Log(line)
	}
}

// try makes a connection for each of the lanes. What fails is missing still.
func (r *resumer) try(numbers []int) {
	tickets, err := r.control.ResumeWorker(r.w.id, numbers)
	if over(err) {
		r.w.die(err)
		return
	}
	if err != nil || len(tickets) != len(numbers) {
		return
	}
	var all sync.WaitGroup
	for i, number := range numbers {
		all.Go(func() { r.reconnect(number, tickets[i]) })
	}
	all.Wait()
}

func (r *resumer) reconnect(number int, ticket [32]byte) {
	f, err := r.control.DialLane(ticket)
	if err != nil {
		return
	}
	defer f.Close()
	r.mu.Lock()
	l := r.lanes[number]
	r.mu.Unlock()
	if err = l.Resume(f); errors.Is(err, link.ErrCorrupt) {
		r.w.die(err)
	}
}

// tell calls back the worker's contexts.
func (r *resumer) tell(line string) {
	r.w.mu.Lock()
	contexts := make([]*Context, 0, len(r.w.contexts))
	for c := range r.w.contexts {
		contexts = append(contexts, c)
	}
	r.w.mu.Unlock()
	for _, c := range contexts {
		c.notify(line)
	}
}
