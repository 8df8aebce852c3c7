package daemon

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"tendril/cluster"
	"tendril/daemon/frontdoor"
	"tendril/ipc"
	"tendril/store/handoff"
	"tendril/store/object"
)

// A daemon can be taken over by another one, on the same state directory and socket (tendril daemon --takeover), while
// clients keep what they have mapped. Between the two is a socket pair, one end of which the front door gives to who
// asks as the daemon's own user:
//
//	successor → hello (its state directory)
//	            predecessor: the store notes who holds what; connections, sessions and workers end;
//	            the cluster's log is closed
//	predecessor → locks and the listening socket, the catalog; the segments, then memory of GPUs, some a message
//	              (each → ack); end
//	            successor: its start, up to the open door
//	successor → ready
//	predecessor → go
//	successor → serving
//	            predecessor: ends
//
// Until "serving" the predecessor has everything that it needs to go on: where the successor ends or falls silent, it
// makes sure that this one is dead and starts again of what it was about to hand over. A successor whose predecessor is
// killed meanwhile goes on with what it has when it has the whole, else it starts as after a crash. So at each step one
// of the two serves, and objects on disk are never in doubt. The locks travel as descriptors: no third daemon gets
// between.

// handoverFormat is the number of the catalog's and the messages' form, and handoverOldest that of the oldest one that
// is spoken, too. From 2 on a fifth descriptor among the fixtures is what reports that memory which was given up is
// free. From 3 on descriptors of memory of GPUs follow the segments.
const (
	handoverFormat = 3
	handoverOldest = 1
)

// handoverTime is what a successor has for its start.
const handoverTime = time.Minute

// meetTime is what a successor has for its first word. Until then this daemon serves.
const meetTime = 30 * time.Second

// inheritance is what one daemon leaves to the next.
type inheritance struct {
	incarnation cluster.Incarnation
	stateLock   *os.File
	door        *frontdoor.Door
	handoff     *handoff.State
	// confirm asks the predecessor whether it may be: nil for a daemon that follows itself.
	confirm func() error
}

// close gives up what nobody has taken.
func (w *inheritance) close() {
	if w.stateLock != nil {
		w.stateLock.Close()
	}
	w.door.Close()
	w.handoff.Close()
}

// catalogFile is what travels in a file beside the descriptors.
type catalogFile struct {
	Incarnation cluster.Incarnation
	Catalog     handoff.Catalog
}

// takeover is the front door's: it arranges a meeting with who wants to be the next daemon.
func (d *Daemon) takeover(p frontdoor.Peer, lowest, highest uint16) (uint16, *os.File, error) {
	if lowest > handoverFormat || highest < handoverOldest {
		return 0, nil, fmt.Errorf("%w: the successor speaks versions %d to %d of the handover, this daemon %d to %d: stop this daemon, then start the other",
			object.ErrVersion, lowest, highest, handoverOldest, handoverFormat)
	}
	format := min(highest, handoverFormat)
	mine, theirs, err := newHandoverPair()
	if err != nil {
		return 0, nil, err
	}
	select {
	case d.successors <- &successor{link: mine, pid: p.PID, format: format}:
		return format, theirs, nil
	default:
		mine.Close()
		theirs.Close()
		return 0, nil, fmt.Errorf("%w: another process is taking this daemon over", object.ErrBusy)
	}
}

// successor is who asked.
type successor struct {
	link    *handoverLink
	pid     int
	format  uint16
	process *ipc.Process
}

// handOver ends the daemon in favour of another one. over is false where that came to nothing before anything was
// ended.
func (d *Daemon) handOver(ctx context.Context, next *successor, steps []step) (over bool, err error) {
	defer next.link.Close()
	if err := next.meet(d.cfg.StateDir, meetTime); err != nil {
		d.log.WithError(err).WithField("pid", next.pid).Warn("a takeover failed before it began")
		return false, nil
	}
	defer next.process.Close()
	d.log.WithField("pid", next.pid).Info("another daemon is taking over")
	d.at("met")
	d.store.Leave()
	d.leaving = &inheritance{incarnation: d.identity.Incarnation}
	if err := d.unwind(steps); err != nil {
		d.log.WithError(err).Warn("a step failed to stop before the handover")
	}
	d.at("ended")
	err = next.deliver(ctx, d.leaving, d)
	if err == nil {
		d.leaving.close()
		d.log.WithField("pid", next.pid).Info("the other daemon serves now: this one ends")
		return true, nil
	}
	next.end()
	if ctx.Err() != nil {
		d.leaving.close()
		return true, nil
	}
	d.log.WithError(err).Warn("the takeover failed: this daemon continues")
	return true, d.goOn(ctx)
}

// goOn starts the node again, of what was to be handed over.
func (d *Daemon) goOn(ctx context.Context) error {
	next, err := New(d.cfg, d.build, d.log)
	if err != nil {
		d.leaving.close()
		return err
	}
	next.inherited, next.at, next.onSuccess = d.leaving, d.at, d.onSuccess
	d.again.Store(next)
	return next.Run(ctx)
}

// meet waits for the successor's first word, for limit at most.
func (s *successor) meet(stateDir string, limit time.Duration) error {
	kind, where, _, err := s.link.receive(limit)
	if err == nil && kind != handoverHello {
		err = fmt.Errorf("%w: message %q for a hello", object.ErrProtocol, kind)
	}
	if err != nil {
		return err
	}
	if !sameDir(string(where), stateDir) {
		why := fmt.Sprintf("the running daemon's state directory is %s, not %s", stateDir, where)
		return errors.Join(errors.New(why), s.link.send(handoverRefused, []byte(why)))
	}
	s.process, err = ipc.ProcessOf(s.pid)
	return err
}

func sameDir(a, b string) bool {
	one, err := os.Stat(a)
	other, otherErr := os.Stat(b)
	return err == nil && otherErr == nil && os.SameFile(one, other)
}

// deliver hands everything over and waits until the successor serves.
func (s *successor) deliver(ctx context.Context, w *inheritance, d *Daemon) error {
	if w.handoff == nil || w.door == nil || w.stateLock == nil {
		return fmt.Errorf("%w: not everything can be handed over", object.ErrInternal)
	}
	stop := context.AfterFunc(ctx, s.link.interrupt)
	defer stop()
	file, err := w.write()
	if err != nil {
		return err
	}
	defer file.Close()
	fixtures := []int{int(w.stateLock.Fd()), int(w.door.Socket.Fd()), int(w.door.Lock.Fd()), int(file.Fd())}
	if watch := w.handoff.WatchDescriptor(); watch >= 0 && s.format >= 2 {
		fixtures = append(fixtures, watch)
	}
	err = s.link.send(handoverFixtures, nil, fixtures...)
	if err != nil {
		return err
	}
	d.at("fixtures")
	err = s.send(handoverSegments, w.handoff.Descriptors())
	if gpus := w.handoff.DeviceDescriptors(); err == nil && s.format >= 3 {
		err = s.send(handoverDevices, gpus)
	} else if err == nil && len(gpus) > 0 {
		d.log.Warnf("%d objects in GPU memory are lost: the next daemon's release does not support them",
			len(gpus))
	}
	if err != nil {
		return err
	}
	if err := s.link.send(handoverEnd, nil); err != nil {
		return err
	}
	d.at("delivered")
	if err := s.link.expect(handoverReady, handoverTime); err != nil {
		return err
	}
	d.onSuccess(s.pid)
	d.at("ready")
	if err := s.link.send(handoverGo, nil); err != nil {
		return err
	}
	d.at("go")
	return s.link.expect(handoverServing, handoverTime)
}

// send sends descriptors, some a message.
func (s *successor) send(kind byte, fds []int) error {
	for ; len(fds) > 0; fds = fds[min(len(fds), handoverFDs):] {
		if err := s.link.send(kind, nil, fds[:min(len(fds), handoverFDs)]...); err != nil {
			return err
		}
		if err := s.link.expect(handoverAck, handoverTime); err != nil {
			return err
		}
	}
	return nil
}

// write puts the catalog into a file of memory.
func (w *inheritance) write() (*os.File, error) {
	fd, err := unix.MemfdCreate("tendril handover", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "handover")
	if err := gob.NewEncoder(f).Encode(&catalogFile{w.incarnation, w.handoff.Catalog}); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// end makes sure that a successor that failed does nothing more: it gets some seconds to end by itself. It gives back
// what s has: the daemon may go on for long within handOver.
func (s *successor) end() {
	s.link.Close()
	defer s.process.Close()
	if s.pid == os.Getpid() { // in tests
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.process.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		_ = unix.Kill(s.pid, unix.SIGKILL)
		<-ended
	}
}

// TakeOver makes Run take over from the daemon that serves the socket, where one does. Before Run.
func (d *Daemon) TakeOver() { d.wantsTakeover = true }

// OnHandover sets what is called with the process of a successor, when that is ready; before Run.
func (d *Daemon) OnHandover(f func(pid int)) { d.onSuccess = f }

// inheritFrom asks the daemon that serves the socket for everything. nil: there is none, or it died meanwhile, and this
// one starts as any.
func (d *Daemon) inheritFrom() (*inheritance, error) {
	if _, err := raiseFileLimit(d.filesWanted()); err != nil {
		d.log.WithError(err).Debug("before the takeover")
	}
	before, err := findPredecessor(d.cfg.Socket, d.build.Version)
	if err != nil || before == nil {
		return nil, err
	}
	w, err := before.inherit(d.cfg.StateDir, d.at)
	switch {
	case err == nil:
		w.confirm = func() error { return before.confirm(d.at) }
		d.before = before
		return w, nil
	case !errors.Is(err, errRefused) && before.died():
		d.log.WithError(err).Warn("the previous daemon ended during the handover: starting with what is on disk")
		before.close()
		return nil, nil
	}
	before.close()
	return nil, err
}

// predecessor is the daemon that is taken over.
type predecessor struct {
	link    *handoverLink
	process *ipc.Process
}

func (p *predecessor) close() {
	p.link.Close()
	p.process.Close()
}

// died reports whether it is dead, or is so within some seconds: its end of the link may be closed a moment before.
func (p *predecessor) died() bool {
	ended := make(chan error, 1)
	go func() { ended <- p.process.Wait() }()
	select {
	case err := <-ended:
		return err == nil
	case <-time.After(dyingTime):
		p.process.Close()
		<-ended
		return false
	}
}

// errRefused is an answer of a predecessor that stays what it is.
var errRefused = errors.New("the running daemon refuses the takeover")

// inherit receives everything.
func (p *predecessor) inherit(stateDir string, at func(string)) (*inheritance, error) {
	stateDir, err := filepath.Abs(stateDir)
	if err != nil {
		return nil, err
	}
	at("connected")
	if err := p.link.send(handoverHello, []byte(stateDir)); err != nil {
		return nil, err
	}
	w, file, watch, err := p.fixtures()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	at("fixtures come")
	if err := p.memory(w, file, watch, at); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// fixtures receives the locks, the socket, the file with the catalog, and the descriptor for HandoffState.TakeWatch
// (−1: none).
func (p *predecessor) fixtures() (*inheritance, *os.File, int, error) {
	kind, text, fds, err := p.link.receive(handoverTime)
	switch {
	case err != nil:
		return nil, nil, -1, err
	case kind == handoverRefused:
		return nil, nil, -1, fmt.Errorf("%w: %w: %s", object.ErrInvalid, errRefused, text)
	case kind != handoverFixtures || len(fds) != 4 && len(fds) != 5:
		closeAll(fds)
		return nil, nil, -1, fmt.Errorf("%w: message %q with %d descriptors for the locks and the socket",
			object.ErrProtocol, kind, len(fds))
	}
	w := &inheritance{stateLock: os.NewFile(uintptr(fds[0]), "lock"), door: &frontdoor.Door{
		Socket: os.NewFile(uintptr(fds[1]), "socket"), Lock: os.NewFile(uintptr(fds[2]), "lock of the socket"),
	}}
	watch := -1
	if len(fds) == 5 {
		watch = fds[4]
	}
	return w, os.NewFile(uintptr(fds[3]), "handover"), watch, nil
}

// memory receives the segments and reads what is in them. It takes watch over in any case.
func (p *predecessor) memory(w *inheritance, file *os.File, watch int, at func(string)) error {
	var t catalogFile
	fds, gpus, err := p.segments()
	if err == nil {
		at("all come")
		if err = readCatalogFile(file, &t); err != nil {
			closeAll(append(fds, gpus...))
		}
	}
	if err == nil {
		w.incarnation = t.Incarnation
		if w.handoff, err = handoff.New(t.Catalog, fds); err == nil { // which takes fds over in any case
			err = w.handoff.TakeDevices(gpus)
		} else {
			closeAll(gpus)
		}
	}
	switch {
	case watch < 0:
		return err
	case err != nil:
		closeAll([]int{watch})
		return err
	}
	return w.handoff.TakeWatch(watch)
}

// segments receives the segments' descriptors, and those of memory of GPUs, to the end of the delivery.
func (p *predecessor) segments() (fds, gpus []int, err error) {
	for {
		kind, _, some, err := p.link.receive(handoverTime)
		if kind == handoverDevices {
			gpus = append(gpus, some...)
		} else {
			fds = append(fds, some...)
		}
		switch {
		case err != nil:
		case kind == handoverEnd:
			return fds, gpus, nil
		case kind != handoverSegments && kind != handoverDevices:
			err = fmt.Errorf("%w: message %q for segments", object.ErrProtocol, kind)
		default:
			err = p.link.send(handoverAck, nil)
		}
		if err != nil {
			closeAll(append(fds, gpus...))
			return nil, nil, err
		}
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// maxTestament bounds the catalog: some 2 KiB for each of four million objects.
const maxTestament = 8 << 30

func readCatalogFile(f *os.File, t *catalogFile) error {
	info, err := f.Stat()
	if err == nil && info.Size() > maxTestament {
		err = fmt.Errorf("%w: a catalog of %d bytes", object.ErrProtocol, info.Size())
	}
	if err != nil {
		return err
	}
	if err := gob.NewDecoder(io.NewSectionReader(f, 0, info.Size())).Decode(t); err != nil {
		return fmt.Errorf("%w: the catalog: %w", object.ErrProtocol, err)
	}
	return nil
}

// confirm is the last word before the successor serves.
func (p *predecessor) confirm(at func(string)) error {
	at("started")
	err := p.link.send(handoverReady, nil)
	if err == nil {
		err = p.link.expect(handoverGo, handoverTime)
	}
	if err != nil {
		if p.died() {
			return nil // it is this one's turn, whatever the other one would have said
		}
		return fmt.Errorf("the previous daemon took back what it handed over: %w", err)
	}
	at("confirmed")
	_ = p.link.send(handoverServing, nil) // it may have died just now
	return nil
}

// findPredecessor connects to the daemon at a socket and asks it to meet; nil where there is none. One that hangs up
// before it has said who it is may be about to die: it is asked again until it is gone, or its time for that is over.
func findPredecessor(socket, version string) (*predecessor, error) {
	for giveUp := time.Now().Add(hangUpTime); ; time.Sleep(20 * time.Millisecond) {
		p, err := askPredecessor(socket, version)
		if !hungUp(err) || time.Now().After(giveUp) {
			return p, err
		}
	}
}

// hangUpTime bounds the wait for the end of a daemon that hung up.
const hangUpTime = 3 * time.Second

// hungUp reports whether an error says that the other end is gone.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

func askPredecessor(socket, version string) (*predecessor, error) {
	link, err := ipc.Dial(socket, 0, nil)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer link.Close()
	return meetPredecessor(link, version)
}

var errUnfriendly = errors.New("the running daemon cannot be taken over")

func unfriendly(err error) error { return fmt.Errorf("%w: %w", errUnfriendly, err) }
