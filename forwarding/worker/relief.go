//go:build cgo

package worker

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The reader blocks in the driver where what is awaited is expected to be over soon (engine.FinishBrief). If it is not,
// another reader takes its place: so a kernel that runs for long, or for ever, keeps nobody else of the program
// waiting, nor the session's end. Who was relieved answers when the driver lets go of it, and is gone.

// errRelieved says that another goroutine is the reader.
var errRelieved = errors.New("relieved")

const (
	// reliefLook is how often it is looked whether the reader is still where it was: whoever is kept waiting waits for
	// two of these at most.
	reliefLook = 5 * time.Millisecond
	// reliefLooks is how many looks in a row see a reader that blocks nowhere, before there are none until it does.
	reliefLooks = 100
)

// post is a session's reader's: one goroutine at a time holds it.
//
// turn, from even to odd: the reader goes into the driver. From odd to even: it is back, or the watch is the reader
// now; the first of the two has it. watching, to true: the reader, or a watch that was about to end; to false: the
// watch, which ends or becomes the reader. So that no stay goes unwatched, the reader writes turn and then looks at
// watching, and a watch that ends writes watching and then looks at turn.
type post struct {
	serve    func() error    // takes records until the session's end, or until away says errRelieved; immutable
	work     *sync.WaitGroup // of the session
	turn     atomic.Uint64   // odd: the reader is in the driver
	watching atomic.Bool     // watch runs
	over     chan error      // how the session ended; room for one
	left     chan struct{}   // closed: the session has ended
}

func newPost(serve func() error, work *sync.WaitGroup) *post {
	return &post{serve: serve, work: work, over: make(chan error, 1), left: make(chan struct{})}
}

// hold has the session served until its end, and says what that is.
func (p *post) hold() error {
	defer close(p.left)
	p.work.Go(p.read)
	return <-p.over
}

// away runs f, which blocks in the driver, and says errRelieved where somebody else is the reader by then.
func (p *post) away(f func()) error {
	turn := p.turn.Add(1)
	if !p.watching.Load() && p.watching.CompareAndSwap(false, true) {
		p.work.Go(p.watch)
	}
	f()
	if !p.turn.CompareAndSwap(turn, turn+1) {
		return errRelieved
	}
	return nil
}

// watch becomes the reader where that stays away.
func (p *post) watch() {
	tick := time.NewTicker(reliefLook)
	defer tick.Stop()
	for {
		seen := p.turn.Load()
		for quiet := 0; quiet < reliefLooks; quiet++ {
			select {
			case <-tick.C:
			case <-p.left:
				return
			}
			turn := p.turn.Load()
			if turn == seen && turn%2 == 1 && p.turn.CompareAndSwap(turn, turn+1) {
				tick.Stop()
				p.watching.Store(false)
				p.read()
				return
			}
			if turn != seen {
				seen, quiet = turn, 0
			}
		}
		p.watching.Store(false)
		if p.turn.Load()%2 == 0 || !p.watching.CompareAndSwap(false, true) {
			return // whoever goes away from now on starts another one
		}
	}
}

// read is the reader's: it serves the session until its end, or until it is relieved.
func (p *post) read() {
	runtime.LockOSThread()                             // and the thread ends with it
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // else timers are 50 µs late; see rest
	if err := p.serve(); !errors.Is(err, errRelieved) {
		p.over <- err
	}
}
