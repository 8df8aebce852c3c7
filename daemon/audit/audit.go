// Package audit keeps a node's record of who did what: lines of JSON in files that are only ever appended to.
//
// A Log has one series of files, DIR/SERIES-NUMBER.log; NUMBER is the first line's. A file that is full is left as it
// is and the next one begun; the oldest goes where there are too many. Add never waits: what the writer cannot take is
// counted as lost, and the next line that is written says how many were.
//
// Trust: the directory is the daemon's own, closed to all others. What stands in it is still read as if it were
// damaged: a line that is no event is passed over.
//
// Goroutines: one a Log, which writes; Close joins it. Locks: Log.mu is a leaf.
package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Event is something that somebody did.
type Event struct {
	Number uint64    `json:"number"` // in its series, from 1 on
	Time   time.Time `json:"time"`
	Node   string    `json:"node"`   // where it was asked for, by name
	What   string    `json:"what"`   // such as "token.create"
	Who    string    `json:"who"`    // such as "uid 1000, pid 77", or the name and serial number of a certificate
	From   string    `json:"from"`   // HOST:PORT, or "local"
	Tenant string    `json:"tenant"` // whom it concerns
	Of     string    `json:"of"`     // what it was done to: an id or a name
	Detail string    `json:"detail,omitempty"`
	Error  string    `json:"error,omitempty"` // why it was refused
	Lost   uint64    `json:"lost,omitempty"`  // lines that could not be written, before this one
}

// Options are a Log's bounds. The zero value has the defaults.
type Options struct {
	FileBytes int64       // of one file; 0 = 8 MiB
	Files     int         // that are kept, the present one among them; 0 = 8
	Sync      bool        // each line is on disk before the next ones are written
	Fault     func(error) // told when lines begin to be lost, and nil when they are written again; may be nil
}

const (
	queued   = 4096 // events that wait for the disk
	maxBatch = 256  // of them that are written in one call
	maxText  = 512  // of one field of an event, in bytes
	maxLine  = 16 << 10
	maxRead  = 1 << 20 // of lines in an answer of Read, in bytes, and one line more
	suffix   = ".log"
)

// Log is one series. Safe for concurrent use.
type Log struct {
	dir, series string
	opts        Options
	wanted      chan struct{} // has one where the writer is not to rest: somebody reads
	ended       chan struct{} // closed by Close
	lost        atomic.Uint64
	running     sync.WaitGroup

	mu     sync.Mutex
	queue  []Event    // waits for the writer, at most queued events; nil where nothing waits
	added  *sync.Cond // of mu: there is something in the queue, or the log is closed
	closed bool
	last   uint64 // number of the last line that was written

	// the writer's own
	file    *os.File
	size    int64
	number  uint64
	untold  uint64 // lines lost since the last one that said so
	failing bool
}

// Open continues the series in dir, which is made where there is none. Errors: what the file system says of dir; a disk
// that takes no lines is no error, but Options.Fault is told.
func Open(dir, series string, o Options) (*Log, error) {
	if o.FileBytes <= 0 {
		o.FileBytes = 8 << 20
	}
	if o.Files <= 0 {
		o.Files = 8
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := &Log{dir: dir, series: series, opts: o, wanted: make(chan struct{}, 1),
		ended: make(chan struct{})}
	l.added = sync.NewCond(&l.mu)
	files, err := l.files()
	if err != nil {
		return nil, err
	}
	for _, f := range slices.Backward(files) {
		found, err := lastOf(l.path(f))
		if err != nil {
			return nil, err
		}
		l.number = max(l.number, found, f-1)
		if found > 0 {
			break
		}
	}
	l.last = l.number
	l.running.Go(l.write)
	return l, nil
}

// Add records an event; Number, and Time where it is zero, are set here. It waits for nothing.
func (l *Log) Add(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	for _, s := range []*string{&e.Node, &e.What, &e.Who, &e.From, &e.Tenant, &e.Of, &e.Detail, &e.Error} {
		if len(*s) > maxText {
			*s = strings.ToValidUTF8((*s)[:maxText], "") + "…"
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
	case len(l.queue) >= queued:
		l.lost.Add(1)
	default:
		l.queue = append(l.queue, e)
		l.added.Signal()
	}
}

// Lost is how many lines could not be written since Open.
func (l *Log) Lost() uint64 { return l.lost.Load() }

// Close writes what waits and ends the writer. Nothing is recorded afterwards.
func (l *Log) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		l.added.Signal()
		close(l.ended)
	}
	l.mu.Unlock()
	l.running.Wait()
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// writeRest is how long the writer rests once all is written, unless somebody reads or each line is to be on disk: who
// adds much wakes it so for many lines at a time.
const writeRest = 10 * time.Millisecond

// rest is the writer's.
func (l *Log) rest() {
	if l.opts.Sync {
		return
	}
	timer := time.NewTimer(writeRest)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.wanted:
	case <-l.ended:
	}
}

// take waits for events and gives the first of them, in order; none: the log is closed, and all of them were given.
// more: others wait. A queue that has become empty leaves no memory behind: a node has three logs, most of them with
// nothing to write, and what they hold every garbage collection scans.
func (l *Log) take() (batch []Event, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && !l.closed {
		l.added.Wait()
	}
	if len(l.queue) <= maxBatch {
		batch, l.queue = l.queue, nil
		return batch, false
	}
	batch = slices.Clone(l.queue[:maxBatch])
	clear(l.queue[:maxBatch]) // the next ones may be behind them in the same memory
	l.queue = l.queue[maxBatch:]
	return batch, true
}

// write is the writer.
func (l *Log) write() {
	var seen uint64 // of lost, that untold has
	for {
		batch, more := l.take()
		if len(batch) == 0 {
			return
		}
		now := l.lost.Load()
		l.untold, seen = l.untold+now-seen, now
		err := l.append(batch)
		if err != nil {
			l.untold += uint64(len(batch))
			seen = l.lost.Add(uint64(len(batch)))
		}
		if l.opts.Fault != nil && (err != nil) != l.failing {
			l.opts.Fault(err)
		}
		l.failing = err != nil
		if !more { // else others are lost while it rests
			l.rest()
		}
	}
}

// append writes a batch in one call, or nothing of it that a reader would take for a line.
func (l *Log) append(batch []Event) error {
	if err := l.roll(); err != nil {
		return err
	}
	var b bytes.Buffer
	number := l.number
	for i, e := range batch {
		number++
		e.Number, e.Lost = number, 0
		if i == 0 {
			e.Lost = l.untold
		}
		raw, err := json.Marshal(e)
		if err != nil {
			return err
		}
		b.Write(raw)
		b.WriteByte('\n')
	}
	n, err := l.file.Write(b.Bytes())
	if err == nil && l.opts.Sync {
		err = l.file.Sync()
	}
	if err != nil { // the next batch begins a file of its own: a torn line is passed over
		err = errors.Join(err, l.file.Truncate(l.size), l.file.Close())
		l.file = nil
		return err
	}
	l.size, l.number, l.untold = l.size+int64(n), number, 0
	l.mu.Lock()
	l.last = number
	l.mu.Unlock()
	return nil
}

// roll has a file to write to, and lets the oldest go.
func (l *Log) roll() error {
	if l.file != nil && l.size < l.opts.FileBytes {
		return nil
	}
	if l.file != nil {
		err := l.file.Close()
		if l.file = nil; err != nil {
			return err
		}
	}
	files, err := l.files()
	if err != nil {
		return err
	}
	for len(files) >= l.opts.Files {
		if err := os.Remove(l.path(files[0])); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		files = files[1:]
	}
	f, err := os.OpenFile(l.path(l.number+1), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err == nil && end > 0 { // of a batch that was torn, or of the daemon before, which hands over
		_, err = f.Write([]byte{'\n'})
	}
	if err != nil {
		f.Close()
		return err
	}
	l.file, l.size = f, end
	return nil
}

func (l *Log) path(first uint64) string {
	return filepath.Join(l.dir, fmt.Sprintf("%s-%020d%s", l.series, first, suffix))
}

// files lists the first numbers of the files, in order.
func (l *Log) files() (list []uint64, err error) {
	entries, err := os.ReadDir(l.dir)
	for _, e := range entries {
		text, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), suffix), l.series+"-")
		if n, bad := strconv.ParseUint(text, 10, 64); ok && bad == nil && n > 0 {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list, err
}

// lastOf gives the number of a file's last event; 0: there is none.
func lastOf(path string) (last uint64, err error) {
	err = each(path, func(e Event, _ int) bool { last = e.Number; return true })
	return last, err
}

// each calls f with the events of a file, and their lines' lengths in bytes, until f answers false.
func each(path string, f func(e Event, size int) bool) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) { // it was the oldest
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 0, maxLine), maxLine)
	for lines.Scan() {
		var e Event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Number == 0 {
			continue
		}
		if !f(e, len(lines.Bytes())) {
			return nil
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return nil
	}
	return lines.Err()
}

// Read gives up to limit events behind the number after that want says yes to, in order, and the number behind which
// to go on; fewer where their lines are long. more: there may be others.
func (l *Log) Read(after uint64, limit int, want func(Event) bool) (list []Event, next uint64, more bool, err error) {
	select {
	case l.wanted <- struct{}{}:
	default:
	}
	l.mu.Lock()
	last := l.last
	l.mu.Unlock()
	next = max(after, last)
	if after >= last {
		return nil, after, false, nil
	}
	files, err := l.files()
	bytes := 0
	for i, first := range files {
		if err != nil || more {
			break
		}
		if i+1 < len(files) && files[i+1] <= after+1 {
			continue
		}
		err = each(l.path(first), func(e Event, size int) bool {
			switch {
			case e.Number <= after || e.Number > last:
			case len(list) == limit || bytes > maxRead:
				more = true
				return false
			case want(e):
				list, bytes = append(list, e), bytes+size
			}
			return true
		})
	}
	if more {
		next = list[len(list)-1].Number
	}
	return list, next, more, err
}
