package trial

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"tendril/store/object"
)

// A lane alone changes the names that are its own, and writes into its ledger what it is about to do, and how that
// ended. Who reads a ledger knows what each name must give: one object, or none, or, where a process or a daemon was
// killed in the middle, one of several.

// deed is a line of a ledger.
type deed struct {
	N     int       // of the lane
	At    time.Time // when it was written
	Do    string    // what is about to be done; "" in the line that ends it
	Name  string    `json:",omitempty"`
	To    string    `json:",omitempty"` // rename
	Thing *thing    `json:",omitempty"` // put, replace, saw
	ID    string    `json:",omitempty"`
	End   string    `json:",omitempty"` // done, refused, open: nobody knows
	Why   string    `json:",omitempty"`
	Now   object.ID `json:",omitzero"` // the daemon's incarnation
}

// What a deed is.
const (
	doPut     = "put"     // a name that nobody has
	doReplace = "replace" // the name goes from its object, if there is one, to a new one
	doDelete  = "delete"
	doRename  = "rename"  // with replace
	doPersist = "persist" // an object that is there
	doSee     = "see"     // what a get gave; no Thing: nothing
	doRestart = "restart" // another daemon without the memory of the one before
	doLife    = "life"    // another process of the lane

	endDone, endRefused, endOpen = "done", "refused", "open"
)

// chance is what a name may have; number 0 is nothing.
type chance struct {
	number  uint64
	durable bool // it is on disk for good
}

// ledger is what a lane knows.
type ledger struct {
	file   *os.File
	n      int
	lives  int
	names  map[string][]chance
	things map[uint64]thing
	now    object.ID // the daemon's incarnation
	open   *deed     // begun and not ended
}

// openLedger reads what the lane's processes before wrote. A deed that one of them did not end is open.
func openLedger(path string) (*ledger, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	l := &ledger{file: f, names: make(map[string][]chance), things: make(map[uint64]thing)}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var d deed
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			f.Close()
			return nil, fmt.Errorf("%s: %w: %s", path, err, lines.Bytes())
		}
		l.follow(d)
	}
	if err := lines.Err(); err != nil {
		f.Close()
		return nil, err
	}
	return l, nil
}

// of gives what a name may have.
func (l *ledger) of(name string) []chance {
	if c := l.names[name]; c != nil {
		return c
	}
	return []chance{{}}
}

// certain gives what a name has, if that is known: number 0 is nothing.
func (l *ledger) certain(name string) (number uint64, known bool) {
	c := l.of(name)
	return c[0].number, len(c) == 1
}

// begin writes what is about to be done.
func (l *ledger) begin(d deed) error {
	l.n++
	d.N = l.n
	return l.write(d)
}

// end writes how it went. now is the daemon's incarnation afterwards.
func (l *ledger) end(end string, why error, now object.ID) error {
	d := deed{N: l.n, Name: l.open.Name, To: l.open.To, End: end, Now: now}
	if why != nil {
		d.Why = why.Error()
	}
	return l.write(d)
}

// write appends a line at once, so that it is there also when the process is killed, and follows it.
func (l *ledger) write(d deed) error {
	d.At = time.Now()
	b, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if _, err := l.file.Write(append(b, '\n')); err != nil {
		return err
	}
	l.follow(d)
	return nil
}

// follow brings what is known up to a line.
func (l *ledger) follow(d deed) {
	l.n = max(l.n, d.N)
	switch {
	case d.Do == doLife:
		l.lives++
		l.settle(endOpen)
	case d.Do == doSee:
		l.see(d.Name, d.Thing)
	case d.Do == doRestart:
		l.now = d.Now
		for name := range l.names {
			l.forget(name)
		}
	case d.Do != "":
		l.open = &d
	case l.open != nil && l.open.N == d.N:
		begun := *l.open
		if l.now != d.Now { // in the middle: it went to the one or to the other
			l.follow(deed{Do: doRestart, Now: d.Now})
			l.settle(d.End)
			l.forget(begun.Name)
			l.forget(begun.To)
			return
		}
		l.settle(d.End)
	}
}

// see narrows down what a name has to what a get gave.
func (l *ledger) see(name string, t *thing) {
	number := uint64(0)
	if t != nil {
		number = t.Number
	}
	var left []chance
	for _, c := range l.of(name) {
		if c.number == number {
			left = append(left, c)
		}
	}
	if left != nil {
		l.names[name] = left
	}
}

// forget notes that what is not on disk for good may have gone with the daemon.
func (l *ledger) forget(name string) {
	c := l.names[name]
	for _, one := range c {
		if one.number != 0 && !one.durable {
			l.names[name] = with(c, chance{})
			return
		}
	}
}

// settle ends the deed that is open, if there is one.
func (l *ledger) settle(end string) {
	d := l.open
	l.open = nil
	if d == nil || end == endRefused {
		return
	}
	before := l.of(d.Name)
	sure := end == endDone
	become := func(name string, fresh ...chance) {
		if !sure {
			fresh = with(l.of(name), fresh...)
		}
		l.names[name] = fresh
	}
	switch d.Do {
	case doPut, doReplace:
		l.things[d.Thing.Number] = *d.Thing
		become(d.Name, chance{d.Thing.Number, d.Thing.Class == object.Persisted})
	case doDelete:
		become(d.Name, chance{})
	case doRename:
		moved := slices.DeleteFunc(slices.Clone(before), func(c chance) bool { return c.number == 0 })
		become(d.To, moved...)
		become(d.Name, chance{})
	case doPersist:
		if sure {
			var fresh []chance
			for _, c := range before {
				fresh = with(fresh, chance{c.number, c.number != 0})
			}
			l.names[d.Name] = fresh
		}
	}
}

// with adds chances that are not there yet.
func with(list []chance, more ...chance) []chance {
	list = slices.Clone(list)
	for _, c := range more {
		if !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}

// liveBytes is what the names may hold.
func (l *ledger) liveBytes() (n uint64) {
	for _, list := range l.names {
		for _, c := range list {
			n += l.things[c.number].Size
		}
	}
	return n
}

// judge says whether a get of a name may have given t, nil for nothing.
func (l *ledger) judge(name string, t *thing) error {
	number := uint64(0)
	if t != nil {
		number = t.Number
	}
	for _, c := range l.of(name) {
		if c.number == number {
			return nil
		}
	}
	if t == nil {
		return fmt.Errorf("%q is lost: it must have one of %v", name, l.of(name))
	}
	return fmt.Errorf("%q gives number %d, must give one of %v", name, t.Number, l.of(name))
}
