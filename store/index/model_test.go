package index

import (
	"fmt"
	"slices"
	"testing"
)

// The protocol of PROTOCOL.md, explored whole: two clients and the daemon, each a little program over a few words of
// shared memory, in every order of their steps. Each store goes into its thread's buffer first and reaches memory some
// time later, in order (total store order, x86), or in any order but past a release (weak; loads stay in order, as
// acquiring ones do). A fence waits until the buffer is empty. Clients may be killed before any step.
//
// The daemon retires an object, looks at the slots until nobody has it, gives its memory away, uses the record for a
// second object in another place, and ends that one the same way. The clients look at the memory of what they hold.

// The words of memory.
const (
	varWord  = iota // the record's word: its generation, or 0
	varPlace        // the record's one field: where the object lies
	varMemory
	_
	varSlot
	_
	varUsed
	_
	varEnded // the daemon looks at the slots no longer
	numVars
)

const (
	threads   = 3 // two clients, then the daemon
	daemonID  = 2
	bufferMax = 6
	goneMark  = 9 // what memory holds that was given away
)

type buffered struct {
	at, value uint8
	release   bool
}

type thread struct {
	pc, rounds uint8
	reg        [3]uint8
	dead       bool
	queued     uint8
	queue      [bufferMax]buffered
}

type world struct {
	mem     [numVars]uint8
	threads [threads]thread
	retired uint8 // generation that the daemon has retired
}

// fault is a way in which an implementation could be wrong.
type fault int

const (
	noFault fault = iota
	clientWithoutFence
	clientWithoutReread
	clientRereadsFirst
	clientCountsLate
	daemonWithoutFence
	daemonLooksFirst
	daemonCountsFirst
	daemonFreesUnseen
	daemonLooksAtOneOnly
	sameGeneration
	wordBeforeFields
	fieldsWhileValid
	clientDropsEarly
	numFaults

	// Of an end of the connections.
	clientIgnoresEnd
	clientReadsEndFirst
	daemonLooksBeforeEnd
	daemonEndsWithoutFence
	numEndFaults
)

func (f fault) String() string {
	return [...]string{"none", "the client has no fence", "the client does not read again",
		"the client reads again before its slot",
		"the client counts its slot late", "the daemon has no fence", "the daemon looks before it retires",
		"the daemon counts slots before it retires",
		"the daemon frees without a look", "the daemon looks at one client only",
		"a record's next life has the same generation",
		"the record's word is written before its fields", "the record's fields change while it is valid",
		"the client drops before its last look", "", "the client does not ask for the end",
		"the client asks for the end before its slot", "the daemon looks before the end",
		"the daemon has no fence after the end"}[f]
}

// explorer walks every state.
type explorer struct {
	fault  fault
	weak   bool
	ends   bool // the daemon ends the connections, and then keeps what slots have: its successor will
	seen   map[world]struct{}
	stack  []world
	broken string
	done   int // states in which everybody had finished
}

func (x *explorer) push(w world) {
	if _, known := x.seen[w]; known {
		return
	}
	x.seen[w] = struct{}{}
	x.stack = append(x.stack, w)
}

func (x *explorer) run() {
	first := world{}
	first.mem[varWord], first.mem[varMemory] = 1, 1
	x.seen = map[world]struct{}{}
	x.push(first)
	for len(x.stack) > 0 && x.broken == "" {
		w := x.stack[len(x.stack)-1]
		x.stack = x.stack[:len(x.stack)-1]
		x.checkEnd(&w)
		for t := range threads {
			x.drain(w, t)
			x.kill(w, t)
			if t == daemonID {
				x.daemon(w)
			} else {
				x.client(w, t)
			}
		}
	}
}

// drain lets one buffered store reach memory.
func (x *explorer) drain(w world, t int) {
	th := w.threads[t]
	for i := range th.queued {
		if i > 0 && !x.weak {
			break
		}
		b := th.queue[i]
		if x.weak && i > 0 && (b.release || blocked(th, i)) {
			continue
		}
		next := w
		n := &next.threads[t]
		copy(n.queue[i:], n.queue[i+1:n.queued])
		n.queued--
		n.queue[n.queued] = buffered{}
		next.mem[b.at] = b.value
		x.push(next)
	}
}

// blocked reports whether an earlier store to the same word waits.
func blocked(th thread, i uint8) bool {
	for _, b := range th.queue[:i] {
		if b.at == th.queue[i].at {
			return true
		}
	}
	return false
}

func (x *explorer) kill(w world, t int) {
	if t != daemonID && !w.threads[t].dead {
		w.threads[t].dead = true
		w.threads[t].reg, w.threads[t].rounds = [3]uint8{}, 0
		x.push(w)
	}
}

// load reads as the thread sees memory: its own stores first.
func (w *world) load(t int, at uint8) uint8 {
	th := &w.threads[t]
	for i := int(th.queued) - 1; i >= 0; i-- {
		if th.queue[i].at == at {
			return th.queue[i].value
		}
	}
	return w.mem[at]
}

func (w *world) store(t int, at, value uint8, release bool) bool {
	th := &w.threads[t]
	if th.queued == bufferMax {
		return false // it waits
	}
	th.queue[th.queued] = buffered{at, value, release}
	th.queued++
	return true
}

// clientRounds is how often a client gets and releases.
const clientRounds = 2

// clientProgram is a client's steps in order.
func (x *explorer) clientProgram() []string {
	p := []string{"word", "place", "count", "slot", "fence", "again", "look", "look", "drop"}
	without := func(name string) {
		for i, s := range p {
			if s == name {
				p = append(append([]string{}, p[:i]...), p[i+1:]...)
				return
			}
		}
	}
	switch x.fault {
	case clientWithoutFence:
		without("fence")
	case clientWithoutReread:
		without("again")
	case clientRereadsFirst:
		p = []string{"word", "place", "again", "count", "slot", "fence", "look", "look", "drop"}
	case clientCountsLate:
		p = []string{"word", "place", "slot", "fence", "again", "count", "look", "look", "drop"}
	case clientDropsEarly:
		p = []string{"word", "place", "count", "slot", "fence", "again", "look", "drop", "look"}
	}
	switch {
	case x.fault == clientReadsEndFirst:
		p = append([]string{"end?"}, p...)
	case x.ends && x.fault != clientIgnoresEnd:
		p = slices.Insert(p, slices.Index(p, "again"), "end?")
	}
	return p
}

// client makes the client's next step. Registers: the word, the place.
func (x *explorer) client(w world, t int) {
	th := &w.threads[t]
	program := x.clientProgram()
	if th.dead || th.rounds == clientRounds {
		return
	}
	step := program[th.pc]
	th.pc++
	ok := true
	switch step {
	case "word":
		th.reg[0] = w.load(t, varWord)
		if th.reg[0] == 0 {
			th.pc = uint8(len(program))
		}
	case "place":
		th.reg[1] = w.load(t, varPlace)
	case "count":
		ok = w.store(t, varUsed+uint8(t), 1, false)
	case "slot":
		ok = w.store(t, varSlot+uint8(t), th.reg[0], true)
	case "fence":
		ok = th.queued == 0
	case "again":
		if w.load(t, varWord) != th.reg[0] {
			th.pc = uint8(len(program))
			ok = w.store(t, varSlot+uint8(t), 0, true)
		}
	case "end?":
		if w.load(t, varEnded) != 0 {
			th.pc = uint8(len(program))
			ok = w.store(t, varSlot+uint8(t), 0, true)
		}
	case "look":
		if got := w.load(t, varMemory+th.reg[1]); got != th.reg[0] {
			x.broken = fmt.Sprintf("client %d holds object %d and finds %d in its memory", t, th.reg[0], got)
		}
	case "drop":
		ok = w.store(t, varSlot+uint8(t), 0, true)
	}
	if !ok {
		return
	}
	if int(th.pc) == len(program) {
		th.pc, th.reg = 0, [3]uint8{}
		th.rounds++
	}
	x.push(w)
}

// daemonProgram is what happens to each of the two objects in turn; or to the one that is there when the connections
// end.
func (x *explorer) daemonProgram() []string {
	switch {
	case x.fault == daemonLooksBeforeEnd:
		return []string{"clear", "look0", "look1", "end", "fence", "free"}
	case x.fault == daemonEndsWithoutFence:
		return []string{"end", "clear", "look0", "look1", "free"}
	case x.ends:
		return []string{"end", "fence", "clear", "look0", "look1", "free"}
	}
	end := []string{"retire", "fence", "clear", "look0", "look1", "free"}
	switch x.fault {
	case daemonWithoutFence:
		end = []string{"retire", "clear", "look0", "look1", "free"}
	case daemonLooksFirst:
		end = []string{"clear", "look0", "look1", "retire", "fence", "free"}
	case daemonCountsFirst:
		end = []string{"count0", "count1", "retire", "fence", "clear", "read0", "read1", "free"}
	case daemonFreesUnseen:
		end = []string{"retire", "fence", "free"}
	case daemonLooksAtOneOnly:
		end = []string{"retire", "fence", "clear", "look1", "free"}
	}
	begin := []string{"memory", "field", "publish"}
	switch x.fault {
	case wordBeforeFields:
		begin = []string{"publish", "memory", "field"}
	case fieldsWhileValid:
		return append(append([]string{"memory", "field"}, end...), append([]string{"publish"}, end...)...)
	}
	return append(append(append([]string{}, end...), begin...), end...)
}

// daemon makes the daemon's next step. Registers: whether a slot was found; the clients' counts.
func (x *explorer) daemon(w world) {
	th := &w.threads[daemonID]
	program := x.daemonProgram()
	if int(th.pc) == len(program) {
		return
	}
	step := program[th.pc]
	th.pc++
	ok, second := true, uint8(2)
	if x.fault == sameGeneration {
		second = 1
	}
	switch step {
	case "retire":
		ok = w.store(daemonID, varWord, 0, true)
		w.retired++
	case "end":
		ok = w.store(daemonID, varEnded, 1, true)
	case "fence":
		ok = th.queued == 0
	case "clear":
		th.reg[0] = 0
	case "count0", "count1":
		c := step[5] - '0'
		th.reg[1+c] = w.load(daemonID, varUsed+c)
	case "read0", "read1":
		c := step[4] - '0'
		if th.reg[1+c] > 0 {
			x.lookAt(&w, c)
		}
	case "look0", "look1":
		c := step[4] - '0'
		if w.load(daemonID, varUsed+c) > 0 {
			x.lookAt(&w, c)
		}
	case "free":
		if th.reg[0] != 0 { // somebody has it: look again later
			for program[th.pc-1] != "clear" {
				th.pc--
			}
			th.pc--
			break
		}
		at := uint8(0)
		if w.retired == 2 {
			at = 1
		}
		ok = w.store(daemonID, varMemory+at, goneMark, false)
	case "memory":
		ok = w.store(daemonID, varMemory+1, second, false)
	case "field":
		ok = w.store(daemonID, varPlace, 1, false)
	case "publish":
		ok = w.store(daemonID, varWord, second, true)
	}
	if ok {
		x.push(w)
	}
}

func (x *explorer) lookAt(w *world, c uint8) {
	if w.threads[c].dead { // the daemon knows: the connection has ended
		return
	}
	want := w.retired
	if x.fault == sameGeneration || x.ends {
		want = 1
	}
	if w.load(daemonID, varSlot+c) == want {
		w.threads[daemonID].reg[0] = 1
	}
}

// checkEnd looks at states in which the clients have ended: no slot may be left, and so the daemon comes to its end.
func (x *explorer) checkEnd(w *world) {
	for t := range threads {
		th := &w.threads[t]
		ended := th.rounds == clientRounds || th.dead
		if t == daemonID {
			ended = int(th.pc) == len(x.daemonProgram())
		}
		if !ended || th.queued > 0 {
			return
		}
		if t != daemonID && !th.dead && w.mem[varSlot+t] != 0 {
			x.broken = fmt.Sprintf("client %d ended and its slot has %d", t, w.mem[varSlot+t])
		}
	}
	x.done++
}

// TestProtocolInEveryOrder finds no order of steps in which a client looks at memory that was given away.
func TestProtocolInEveryOrder(t *testing.T) {
	for _, x := range []*explorer{{}, {weak: true}, {ends: true}, {ends: true, weak: true}} {
		x.run()
		t.Logf("weak %v, ends %v: %d states, %d of them ends", x.weak, x.ends, len(x.seen), x.done)
		if x.broken != "" || x.done == 0 {
			t.Errorf("weak %v, ends %v: %s; %d ends", x.weak, x.ends, x.broken, x.done)
		}
	}
}

// TestProtocolMissesNothing takes each part of the protocol away in turn: the exploration must find what breaks.
func TestProtocolMissesNothing(t *testing.T) {
	for f := clientWithoutFence; f < numEndFaults; f++ {
		if f == numFaults {
			continue
		}
		found := ""
		for _, weak := range []bool{false, true} {
			x := &explorer{fault: f, weak: weak, ends: f > numFaults}
			if x.run(); x.broken != "" {
				found += fmt.Sprintf(" weak=%v after %d states: %s.", weak, len(x.seen), x.broken)
			}
		}
		t.Logf("%s:%s", f, found)
		if found == "" {
			t.Errorf("nothing breaks where %s", f)
		}
	}
}
