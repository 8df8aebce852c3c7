package conn

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

// resumer replaces lost connections to a worker on another machine. Records and chunks wait in the link meanwhile, and
// the program's calls with them. After Options.Resume, or where the daemon has the worker no longer, it is given up.
type resumer struct {
	c      *Conn
	remote Remote
	lost   chan struct{} // capacity 1
	stop   chan struct{}
	work   sync.WaitGroup
	once   sync.Once

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
	// reportAfter is how long a loss lasts before standard error gets a line about it.
	reportAfter = 2 * time.Second
	// flapping is the least life of a new connection: a loss before that belongs to the loss before.
	flapping = 100 * time.Millisecond
)

// workerGone says that the daemon has no such worker any more.
func workerGone(err error) bool {
	return errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrNoDevice) ||
		errors.Is(err, object.ErrPermission)
}

func newResumer(c *Conn, remote Remote) *resumer {
	return &resumer{c: c, remote: remote, lost: make(chan struct{}, 1), stop: make(chan struct{})}
}

func (r *resumer) start(s *link.Stream) {
	r.mu.Lock()
	r.lanes[0] = s
	r.mu.Unlock()
	r.work.Go(r.run)
}

// add adds a lane, which may have lost its connection already, unheard. r may be nil.
func (r *resumer) add(l *link.Lane, number int) {
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
	began, c := r.began, r.c
	patience := c.opt.Resume
	limit := time.AfterFunc(patience-time.Since(began), func() {
		c.die(fmt.Errorf("the connection was lost and did not come back within %v", patience))
	})
	defer limit.Stop()
	c.opt.Sink.Notice(fmt.Sprintf("tendril: the connection to the worker of %s was lost: waiting for it", c.opt.Name))
	said := time.AfterFunc(reportAfter, func() {
		if !c.Dead() {
			c.log("the connection to the worker of %s was lost: waiting up to %v for it", c.opt.Name, patience)
		}
	})
	defer said.Stop()
	for first := time.Since(r.back) > flapping; ; first = false {
		numbers := r.missing()
		if len(numbers) == 0 || c.Dead() {
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
	r.mu.Lock()
	l := r.lanes[number]
	r.mu.Unlock()
	if err = l.Resume(f); errors.Is(err, link.ErrCorrupt) {
		r.c.die(err)
	}
}
