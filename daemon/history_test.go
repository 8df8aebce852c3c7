package daemon

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"

	"tendril/cluster/fsm"
	"tendril/store/object"
)

// What clients of a cluster did and were told while it had faults, and the check that it fits: each operation took
// effect at once, at some moment between its call and its answer (linearizability). An operation without an answer took
// effect at some moment after its call, or never.

// did is one operation, as its client saw it.
type did struct {
	Client int    `json:"client"`
	Number int    `json:"number"` // of the client's operations
	What   string `json:"what"`   // read, swap, bind, rebind, unbind, delete
	Key    string `json:"key"`
	Old    string `json:"old,omitempty"` // swap: what has to be there; delete: likewise
	New    string `json:"new,omitempty"` // swap, bind, rebind: what is there then
	Call   int64  `json:"call"`          // ns on the clock of the machine
	Return int64  `json:"return,omitempty"`
	Known  bool   `json:"known"` // there was an answer
	Done   bool   `json:"done"`  // which was no refusal
	Read   string `json:"read,omitempty"`
}

// monotonic is a clock that all processes of the machine share.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// oneKey is the model of what is at a key: the empty string is nothing.
var oneKey = porcupine.Model{
	Partition: func(list []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range list {
			key := o.Input.(did).Key
			byKey[key] = append(byKey[key], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		have, op := state.(string), input.(did)
		may, next := true, have
		switch op.What {
		case "read":
			return op.Read == have, have
		case "swap":
			may, next = have == op.Old, op.New
		case "bind":
			may, next = have == "", op.New
		case "rebind":
			next = op.New
		case "unbind":
			may, next = have != "", ""
		case "delete":
			may, next = have == op.Old, ""
		}
		if !may {
			next = have
		}
		return !op.Known || op.Done == may, next
	},
}

// history is a list of operations. It is safe for concurrent use.
type history struct {
	mu  sync.Mutex
	all map[[2]int]did
}

func newHistory() *history { return &history{all: map[[2]int]did{}} }

// note enters an operation at its call, and again at its return.
func (h *history) note(op did) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[[2]int{op.Client, op.Number}] = op
}

// read enters what a process wrote of its own.
func (h *history) read(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var op did
		if json.Unmarshal(lines.Bytes(), &op) == nil { // it says other things, too
			h.note(op)
		}
	}
}

// check fails the test where no order of the operations explains what the clients were told. faults is for the figures.
func (h *history) check(t *testing.T, faults int) {
	t.Helper()
	var list []porcupine.Operation
	var known, unknown int
	h.mu.Lock()
	for _, op := range h.all {
		o := porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: op.Return}
		switch {
		case op.Known:
			known++
		case op.What == "read":
			continue // it says nothing
		default:
			o.Return = math.MaxInt64
			unknown++
		}
		list = append(list, o)
	}
	h.mu.Unlock()
	gap, at := h.longestPause()
	t.Logf("%d operations with an answer, %d without, %d faults", known, unknown, faults)
	t.Logf("the longest time without a change: %v, %v after the first", gap.Round(time.Millisecond),
		at.Round(time.Millisecond))
	for _, part := range oneKey.Partition(list) {
		switch porcupine.CheckOperationsTimeout(oneKey, part, 5*time.Minute) {
		case porcupine.Illegal:
			t.Errorf("what the clients were told fits no order of what they did:\n%s", inOrder(part))
		case porcupine.Unknown:
			t.Errorf("the check did not end: take fewer operations than %d a key", len(part))
		}
	}
}

// inOrder writes the operations at one key, a line each, in the order of their calls.
func inOrder(part []porcupine.Operation) string {
	slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var all strings.Builder
	for _, o := range part {
		line, _ := json.Marshal(o.Input)
		all.Write(append(line, '\n'))
	}
	return all.String()
}

// longestPause is the longest time in which no change was done, and when it began.
func (h *history) longestPause() (gap, at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var done []int64
	for _, op := range h.all {
		if op.Done && op.What != "read" {
			done = append(done, op.Return)
		}
	}
	slices.Sort(done)
	for i := 1; i < len(done); i++ {
		if d := time.Duration(done[i] - done[i-1]); d > gap {
			gap, at = d, time.Duration(done[i-1]-done[0])
		}
	}
	return gap, at
}

// doneAfter is how long after a moment the first change was done.
func (h *history) doneAfter(at int64) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := int64(math.MaxInt64)
	for _, op := range h.all {
		if op.Done && op.What != "read" && op.Return > at {
			first = min(first, op.Return)
		}
	}
	return time.Duration(first - at)
}

// worker is a client of a node's that changes and reads what the cluster's nodes share.
type worker struct {
	d      *Daemon
	client int
	note   func(did)
	names  bool // published names, too: they go with the node that published them
	random *rand.Rand
	next   int
}

const (
	workKeys  = 3                    // that are in use at a time
	workTurn  = 25                   // operations of a client, after which others are
	workTurns = 300                  // before the first come again: there are fsm.MaxPolicies keys at most
	workTime  = 4 * time.Second      // for one operation
	workPause = 5 * time.Millisecond // between two
	workTest  = "work"               // the tenant of the published names
)

func newWorker(d *Daemon, client int, names bool, note func(did)) *worker {
	return &worker{d: d, client: client, note: note, names: names, random: rand.New(rand.NewPCG(uint64(client), 7))}
}

// run works until the context ends.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.one(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(workPause):
		}
	}
}

// one does one operation.
func (w *worker) one(ctx context.Context) {
	key := fmt.Sprintf("%d.%d", w.next/workTurn%workTurns, w.random.IntN(workKeys))
	ctx, cancel := context.WithTimeout(ctx, workTime)
	defer cancel()
	if w.names && w.random.IntN(2) == 0 {
		w.onName(ctx, "name "+key)
		return
	}
	w.onPolicy(ctx, "policy "+key)
}

// ask notes an operation, does it and notes what became of it. It gives false where that is not known.
func (w *worker) ask(op did, f func() (read string, err error)) bool {
	w.next++
	op.Client, op.Number, op.Call = w.client, w.next, monotonic()
	w.note(op)
	read, err := f()
	op.Return = monotonic()
	var refused *refusal
	op.Known = err == nil || errors.As(err, &refused)
	op.Done, op.Read = err == nil, read
	w.note(op)
	return op.Known
}

// refusal is what the state machine did not do.
type refusal struct{ error }

func (w *worker) propose(ctx context.Context, cmd fsm.Command) error {
	result, err := w.d.meta.now.Load().propose(ctx, cmd)
	if err != nil && result.Code != 0 {
		return &refusal{err}
	}
	return err
}

// onPolicy reads a policy, and changes it if it is still the same.
func (w *worker) onPolicy(ctx context.Context, key string) {
	var old fsm.Policy
	if !w.ask(did{What: "read", Key: key}, func() (string, error) {
		err := w.d.meta.now.Load().read(ctx, func(s *fsm.State) { old, _ = s.Policy(key) })
		old.Value = slices.Clone(old.Value)
		return string(old.Value), err
	}) {
		return
	}
	value := fmt.Sprintf("%d/%d", w.client, w.next)
	w.ask(did{What: "swap", Key: key, Old: string(old.Value), New: value}, func() (string, error) {
		return "", w.propose(ctx, &fsm.SetPolicy{Policy: fsm.Policy{Key: key, Value: []byte(value), Epoch: old.Epoch}})
	})
}

// onName publishes, takes over, unpublishes, deletes or looks up a name.
func (w *worker) onName(ctx context.Context, key string) {
	o := fsm.Object{ID: fsm.UUID(object.NewID()), Tenant: workTest, Name: key,
		Replicas: []fsm.Replica{{Node: w.d.meta.node, Incarnation: w.d.meta.incarnation}}}
	switch w.random.IntN(6) {
	case 5:
		w.ask(did{What: "read", Key: key}, func() (string, error) { return "", w.missed(ctx, key) })
	case 0, 1:
		w.ask(did{What: "bind", Key: key, New: o.ID.String()}, func() (string, error) {
			return "", w.propose(ctx, &fsm.Publish{Object: o})
		})
	case 2:
		w.ask(did{What: "rebind", Key: key, New: o.ID.String()}, func() (string, error) {
			return "", w.propose(ctx, &fsm.Publish{Object: o, Replace: true})
		})
	case 3:
		w.ask(did{What: "unbind", Key: key}, func() (string, error) {
			return "", w.propose(ctx, &fsm.Unpublish{Tenant: workTest, Name: key})
		})
	default:
		var have fsm.Object
		found := false
		if !w.ask(did{What: "read", Key: key}, func() (id string, err error) {
			err = w.d.meta.now.Load().read(ctx, func(s *fsm.State) { have, found = s.ObjectByName(workTest, key) })
			if found {
				id = have.ID.String()
			}
			return id, err
		}) || !found || w.random.IntN(2) == 0 {
			return
		}
		w.ask(did{What: "delete", Key: key, Old: have.ID.String()}, func() (string, error) {
			return "", w.propose(ctx, &fsm.Delete{ID: have.ID, Tenant: workTest, Gone: have.Replicas[0]})
		})
	}
}

// missed says nothing where a name is not published, as a client of the node is told. What is found may be from a
// moment ago, and is no answer here.
func (w *worker) missed(ctx context.Context, key string) error {
	_, _, err := w.d.publishedNow(ctx, workTest, object.ID{}, key)
	switch {
	case err == nil:
		return errors.New("it is there, or was")
	case errors.Is(err, object.ErrNotFound) && strings.HasSuffix(err.Error(), fmt.Sprintf("%q", key)):
		return nil // else the cluster did not answer
	}
	return err
}

// soakTime is how long the tests with faults go on: TENDRIL_SOAK, or a short time.
func soakTime(t *testing.T, short time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("TENDRIL_SOAK")
	if text == "" {
		return short
	}
	long, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("TENDRIL_SOAK: %v", err)
	}
	return long
}
