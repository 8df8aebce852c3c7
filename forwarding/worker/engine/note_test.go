package engine

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"tendril/forwarding/clwire"
	"tendril/forwarding/worker/journal"
	"tendril/tools/e2e/await"
)

// endingDriver ends all that it has once it is told to.
type endingDriver struct {
	handDriver
	all atomic.Bool
}

func (d *endingDriver) Statuses(events []Native, status []int32) {
	for i := range events {
		if status[i] = Submitted; d.all.Load() {
			status[i] = 0
		}
	}
}

// TestEveryCommandIsNoted: what is held, what the driver has, how each ended, with and without events.
func TestEveryCommandIsNoted(t *testing.T) {
	for _, o := range []Options{{}, {Submitters: true}} {
		for _, outOfOrder := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v out of order %v", o, outOfOrder), func(t *testing.T) { noted(t, o, outOfOrder) })
		}
	}
}

func noted(t *testing.T, o Options, outOfOrder bool) {
	d := &endingDriver{handDriver: handDriver{ended: map[Native]bool{}}}
	var log []string
	e := New(d, &quietSink{}, o)
	defer e.Close()
	j := journal.New()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(e.AddQueue(1, 1, outOfOrder, 0, func() {}))
	e.Note(1, j.Queue(1, 0, !outOfOrder))
	enqueue := func(kind Kind, label clwire.Type, event uint64, wait ...uint64) {
		t.Helper()
		c := &Command{Kind: kind, Queue: 1, Event: event, Wait: wait, Op: 9, Quick: true,
			Label: journal.Label{Type: label}}
		if kind == KindTask {
			c.Task = &plainTask{&quickTask{&d.handDriver, label.String(), &log}}
		}
		must(e.Enqueue(c))
	}
	states := func() string {
		var list []string
		for _, x := range j.Look(func(uint64, uint64) bool { return false }).Flying {
			list = append(list, x.Kind+" "+x.State)
		}
		return strings.Join(list, ",")
	}
	wants := func(what string, kinds ...string) {
		t.Helper()
		await.Until(t, fmt.Sprintf("%s: %q", what, kinds), func() bool { // submitters are goroutines
			e.Tick()
			got := states()
			good := strings.Count(got, ",")+1 == len(kinds) || got == "" && len(kinds) == 0
			for _, kind := range kinds {
				good = good && strings.Contains(got, kind)
			}
			return good
		})
	}
	must(e.UserEvent(50))
	enqueue(KindTask, clwire.TypeFill, 0)
	enqueue(KindTask, clwire.TypeCopy, 51)
	enqueue(KindTask, clwire.TypeNDRange, 52, 50)
	wants("before the user event", "Fill", "Copy", "NDRange queued")
	must(e.SetUserEvent(50, -1))
	wants("one that never ran", "Fill", "Copy")
	must(e.Finish(1, 3))
	d.all.Store(true)
	wants("after a finish")
	enqueue(KindHost, clwire.TypeHost, 0)
	wants("the program's turn", "Host")
	e.HostDone(9, 0)
	wants("the program is done")
	counts := map[string]uint64{}
	failed := uint64(0)
	for _, s := range j.Look(func(uint64, uint64) bool { return false }).Sums {
		counts[s.Kind], failed = s.Count, failed+s.Failed
	}
	if len(counts) != 4 || failed != 1 || counts["Fill"] != 1 || counts["NDRange"] != 1 {
		t.Errorf("sums %v, %d failed", counts, failed)
	}
}
