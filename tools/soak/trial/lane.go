package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"tendril/client"
	"tendril/store/object"
)

// Variable makes a program that calls Client a process of a lane, and says which.
const Variable = "TENDRIL_SOAK_LANE"

// laneSpec is what a process of a lane is told.
type laneSpec struct {
	Lane, Lanes, Life int
	Seed              uint64
	Ledger            string        // its path
	LiveBytes         uint64        // its names' objects together, about
	HeldBytes         uint64        // that it holds and looks at again after each step
	Sizes             []uint64      // one in six is another one
	Pause             time.Duration // between two steps
	Index             bool
	Visitor           bool // owns no names: only gets, and puts what nobody else knows
}

// tally is what a process did. It travels.
type tally struct {
	Steps, Gets, Checked int
	CheckedBytes         uint64
	Refused              map[string]int // by what was done: the store was full, or the daemon away
}

// lane is a process of a lane.
type lane struct {
	laneSpec
	conn   *client.Conn
	rng    *rand.Rand
	ledger *ledger
	mark   *client.Object // says that this process is there
	held   []holding
	last   uint64 // number given
	over   atomic.Bool
	tally  tally
}

// holding is an object that the process holds.
type holding struct {
	*client.Object
	thing
}

// Client is the main function of a lane's process, until standard input ends. It gives false where this process is
// none.
func Client() (is bool) {
	text := os.Getenv(Variable)
	if text == "" {
		return false
	}
	l := &lane{tally: tally{Refused: make(map[string]int)}}
	err := json.Unmarshal([]byte(text), &l.laneSpec)
	if err == nil {
		err = l.run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "lane %d, life %d: %v\n", l.Lane, l.Life, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(l.tally)
	return true
}

func (l *lane) run() (err error) {
	go func() { // ends with the process
		io.Copy(io.Discard, os.Stdin)
		l.over.Store(true)
	}()
	if l.ledger, err = openLedger(l.Ledger); err != nil {
		return err
	}
	use := client.IndexOff
	if l.Index {
		use = client.IndexOn
	}
	if err := l.retry(func() (err error) {
		l.conn,
			err = client.Dial(context.Background(), client.Options{Index: use})
		return err
	}); err != nil {
		return err
	}
	defer l.conn.Close()
	l.rng = rand.New(rand.NewPCG(l.Seed, uint64(l.Lane)<<32|uint64(l.Life)))
	if err := l.begin(); err != nil {
		return err
	}
	for !l.over.Load() {
		if err := l.step(); err != nil {
			return err
		}
		time.Sleep(l.Pause)
	}
	for len(l.held) > 0 {
		l.letGo(0)
	}
	return nil
}

// retry does what needs a daemon that answers until there is one.
func (l *lane) retry(do func() error) error {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := do()
		if err == nil || !errors.Is(err, client.ErrDisconnected) && !full(err) || time.Since(began) > time.Minute {
			return err
		}
	}
}

// begin waits until the daemon has noticed the end of the lane's process before: nothing of that happens any more then.
func (l *lane) begin() error {
	if l.Life > 0 {
		began := time.Now()
		for {
			_, err := l.conn.StatByName(context.Background(), l.markName(l.Life-1))
			if errors.Is(err, object.ErrNotFound) {
				break
			}
			if time.Since(began) > time.Minute {
				return fmt.Errorf("the daemon has not noticed the end of the process before: %w", err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if l.ledger.open != nil {
			// its connection may have come to a new daemon with the deed itself, before there was a mark
			time.Sleep(time.Second)
		}
	}
	if err := l.ledger.write(deed{Do: doLife}); err != nil {
		return err
	}
	return l.notice()
}

func (l *lane) markName(life int) string { return fmt.Sprintf("here-%d-%d", l.Lane, life) }

// notice looks whether the daemon is another one than before, and if so makes its mark there.
func (l *lane) notice() error {
	now := l.conn.Daemon().Incarnation
	if l.mark != nil && now == l.ledger.now {
		return nil
	}
	if now != l.ledger.now {
		if err := l.ledger.write(deed{Do: doRestart, Now: now}); err != nil {
			return err
		}
	}
	err := l.retry(func() (err error) {
		l.mark, err = l.conn.Put(context.Background(), make([]byte, 1), client.CreateOptions{Name: l.markName(l.Life),
			EphemeralName: true})
		return err
	})
	// it was there, and the daemon handed over before it answered; it ends with this connection
	if errors.Is(err, object.ErrExists) {
		return nil
	}
	return err
}

// step does something, then looks at everything that is held.
func (l *lane) step() error {
	if err := l.notice(); err != nil {
		return err
	}
	l.tally.Steps++
	if err := l.act(); err != nil {
		return err
	}
	for _, h := range l.held {
		l.tally.Checked++
		l.tally.CheckedBytes += h.thing.Size
		if err := h.check(h.Bytes()); err != nil {
			return fmt.Errorf("what is held has changed: object %s, number %d: %w", h.ID(), h.Number, err)
		}
	}
	for l.heldBytes() > l.HeldBytes {
		l.letGo(l.rng.IntN(len(l.held)))
	}
	return nil
}

func (l *lane) heldBytes() (n uint64) {
	for _, h := range l.held {
		n += h.thing.Size
	}
	return n
}

func (l *lane) letGo(i int) {
	l.held[i].Release()
	l.held[i] = l.held[len(l.held)-1]
	l.held = l.held[:len(l.held)-1]
}

// keep holds an object for a while, or not.
func (l *lane) keep(o *client.Object, t thing) {
	if l.rng.IntN(3) > 0 && len(l.held) < mostHeld {
		l.held = append(l.held, holding{o, t})
		return
	}
	o.Release()
}

const mostHeld = 200

// full says that the store has no room, which it may say. (The quota is the capacity here.)
func full(err error) bool { return errors.Is(err, object.ErrFull) || errors.Is(err, object.ErrQuota) }

// turnedDown reports whether an error is one that any call may have at any time, and counts it.
func (l *lane) turnedDown(what string, err error) bool {
	switch {
	case errors.Is(err, errFault):
		return false
	case full(err):
		l.tally.Refused[what+": full"]++
		for range 3 {
			if len(l.held) > 0 {
				l.letGo(l.rng.IntN(len(l.held)))
			}
		}
	case errors.Is(err, client.ErrDisconnected):
		l.tally.Refused[what+": no daemon"]++
	default:
		return false
	}
	return true
}

// own is one of the lane's names; foreign one of any lane's, contested one that all lanes change.
func (l *lane) own() string { return nameOf(l.Lane, l.rng.IntN(namesPerLane)) }
func (l *lane) foreign() string {
	return nameOf(l.rng.IntN(l.Lanes), l.rng.IntN(namesPerLane))
}
func (l *lane) contested() string { return fmt.Sprintf("all-%d", l.rng.IntN(6)) }

func nameOf(lane, i int) string { return fmt.Sprintf("own-%d-%d", lane, i) }

// laneOf says whose a name is.
func laneOf(name string) (lane int) {
	if _, err := fmt.Sscanf(strings.TrimPrefix(name, "own-"), "%d-", &lane); err != nil {
		return -1
	}
	return lane
}

const namesPerLane = 80

// numbersPerLife: what a process of a lane numbers is nobody else's.
const laneShift, lifeShift = 48, 28

// fresh is a thing that never was.
func (l *lane) fresh(class object.Class) *thing {
	l.last++
	n := uint64(l.Lane+1)<<laneShift | uint64(l.Life)<<lifeShift | l.last
	return &thing{Number: n, Size: l.size(), Class: class}
}

func (l *lane) size() uint64 {
	switch l.rng.IntN(12) {
	case 0:
		return uint64(l.rng.IntN(300)) // none, too
	case 1:
		return uint64(l.rng.IntN(300_000))
	}
	return l.Sizes[l.rng.IntN(len(l.Sizes))]
}

// put makes t an object. tried says that its seal was asked for.
func (l *lane) put(t *thing, o client.CreateOptions) (obj *client.Object, tried bool, err error) {
	o.Meta, o.Class = t.meta(), t.Class
	b, err := l.conn.Create(context.Background(), t.Size, o)
	if err != nil {
		return nil, false, err
	}
	t.fill(b.Bytes())
	obj, err = b.Seal(context.Background())
	if err == nil {
		return obj, true, nil
	}
	if late := b.Abort(context.Background()); late != nil && !errors.Is(late, client.ErrDisconnected) {
		return nil, true, fmt.Errorf("%w: after %q, an abort answers: %w", errFault, err, late)
	}
	return nil, true, err
}

// errFault is what nothing explains.
var errFault = errors.New("a fault of the store")

func background() context.Context { return context.Background() }
