package conn

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"tendril/forwarding/clwire"
	"tendril/forwarding/link"
	"tendril/store/object"
)

// resumer replaces lost connections to a worker on another machine. Records and chunks wait in the link meanwhile, and
// the program's calls with them. A lane that is without one for Options.Resume, or a worker that the daemon has no
// longer, is given up.
type resumer struct {
	c      *Conn
	remote Remote
	lost   chan struct{} // capacity 1
	stop   chan struct{}
	work   sync.WaitGroup
	once   sync.Once
	start  time.Time     // of cut's times
	pause  time.Duration // before the next try; run's

	mu    sync.Mutex // before the lanes' own
	lanes [clwire.MaxLanes]lossy
}

// lossy is one lane, and what run knows of its connections.
type lossy struct {
	lane resumable    // nil: there was no connection yet; guarded by resumer.mu
	cut  atomic.Int64 // when the last connection was lost, ns after resumer.start

	out   bool          // its loss is known
	began time.Duration // of the loss at hand
	back  time.Duration // when the last connection came
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
	// reportAfter is how long a loss lasts before standard error gets a line about it.
	reportAfter = 2 * time.Second
	// flapping is the least life of a new connection: a loss before that belongs to the loss before.
	flapping = 100 * time.Millisecond
)

// workerGone says that the daemon has no such worker any more, or has ended the session.
func workerGone(err error) bool {
	return errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrNoDevice) ||
		errors.Is(err, object.ErrPermission) || errors.Is(err, object.ErrAborted)
}

func newResumer(c *Conn, remote Remote) *resumer {
	return &resumer{c: c, remote: remote, lost: make(chan struct{}, 1), stop: make(chan struct{}), start: time.Now()}
}

// open has the first stream, and begins to look after it.
func (r *resumer) open(s *link.Stream) {
	r.mu.Lock()
	r.lanes[0].lane = s
	r.mu.Unlock()
	r.work.Go(r.run)
}

// add adds a lane, which may have lost its connection already, unheard. r may be nil.
func (r *resumer) add(l *link.Lane, number int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.lanes[number].lane = l
	r.mu.Unlock()
	r.noteLoss() // if it is none, nothing is missing
}

// lossOf is link.Options.Lost for a lane.
func (r *resumer) lossOf(number int) func() {
	return func() {
		r.lanes[number].cut.Store(int64(time.Since(r.start)))
		r.noteLoss()
	}
}

// noteLoss has run look what is missing.
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
		if len(r.missing()) > 0 && !r.c.Dead() {
			r.bringBack()
		}
		if r.c.Dead() {
			return
		}
	}
}

// missing lists the lanes without a connection.
func (r *resumer) missing() (numbers []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.lanes {
		if l := r.lanes[i].lane; l != nil && l.Lost() {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// bringBack tries until every lane is back, or the worker is dead.
func (r *resumer) bringBack() {
	began, c := time.Now(), r.c
	patience := c.opt.Resume
	limit := time.AfterFunc(patience, func() {
		c.die(fmt.Errorf("the connection was lost and did not come back within %v", patience))
	})
	defer limit.Stop()
	c.opt.Sink.Notice(fmt.Sprintf("tendril: the connection to the worker of %s was lost: waiting for it", c.opt.Name))
	said := time.AfterFunc(reportAfter, func() {
		if !c.Dead() {
			c.log("the connection to the worker of %s was lost: connecting again for up to %v, while its daemon keeps it",
				c.opt.Name, patience)
		}
	})
	defer said.Stop()
	for numbers := r.missing(); len(numbers) > 0 && !c.Dead(); numbers = r.missing() {
		oldest, fresh := r.losses(numbers)
		limit.Reset(patience - (time.Since(r.start) - oldest))
		if fresh {
			r.pause = resumePause
		} else {
			select {
			case <-r.stop:
				return
			case <-time.After(r.pause):
			}
			r.pause = min(2*r.pause, resumePauseMax)
		}
		r.try(numbers)
	}
	if c.Dead() {
		return
	}
	line := fmt.Sprintf("tendril: the connection to the worker of %s is back after %v", c.opt.Name,
		time.Since(began).Round(time.Millisecond))
	c.opt.Sink.Notice(line)
	if !said.Stop() {
		c.opt.Log(line)
	}
}

// losses tells since when the first of the missing lanes is without a connection, and whether one of them had a
// connection that lived since the last look: then the worker can be reached, and there is nothing to pause for.
func (r *resumer) losses(numbers []int) (oldest time.Duration, fresh bool) {
	oldest = time.Since(r.start)
	for _, number := range numbers {
		l := &r.lanes[number]
		if cut := time.Duration(l.cut.Load()); !l.out && (l.back == 0 || cut-l.back > flapping) {
			l.began, fresh = cut, true
		}
		l.out = true
		oldest = min(oldest, l.began)
	}
	return oldest, fresh
}

// try makes a connection for each of the lanes. What fails is missing still.
func (r *resumer) try(numbers []int) {
	tickets, err := r.remote.ResumeWorker(r.c.id, numbers)
	if workerGone(err) {
		r.c.die(err)
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
	f, err := r.remote.DialLane(ticket)
	if err != nil {
		return
	}
	defer f.Close()
	l := &r.lanes[number]
	r.mu.Lock()
	lane := l.lane
	r.mu.Unlock()
	switch err = lane.Resume(f); {
	case errors.Is(err, link.ErrCorrupt):
		r.c.die(err)
	case err == nil:
		l.out, l.back = false, time.Since(r.start)
	}
}
