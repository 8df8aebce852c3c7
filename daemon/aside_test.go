package daemon

import (
	"fmt"
	"testing"
	"time"

	"tendril/tools/e2e/await"
)

// Of two nodes one votes. When it ends, the other one goes on alone, and when it is back it is a member as before. Both
// may end, in either order, and start again in any.
func TestOneOfTwoEnds(t *testing.T) {
	w := newNetwork(t)
	x := w.cluster(2)
	begin := func(i int) {
		x.all[i] = x.ns.startWith(x.all[i].cfg, func(d *Daemon) { d.dialNode = w.dial(i) })
	}
	end := func(i int) { // the other one is there, and takes the vote
		x.all[i].endTime = time.Minute
		x.ns.end(x.all[i])
	}
	names := 0
	put := func(i int) {
		t.Helper()
		names++
		putPublished(t, x.all[i].cfg, fmt.Sprint("name ", names))
	}
	both := func() {
		t.Helper()
		answered(t, x)
		await.Until(t, "one of them votes", func() bool { return x.votersAt(0) == 1 && x.votersAt(1) == 1 })
		put(0)
		put(1)
	}
	both()
	for range 2 { // the one that votes, each time
		lead := x.leader(0, 1)
		end(lead)
		put(1 - lead)
		begin(lead)
		both()
	}
	for _, first := range []bool{true, false} { // ends the one that votes
		lead := x.leader(0, 1)
		if !first {
			lead = 1 - lead
		}
		end(lead)
		put(1 - lead)
		x.ns.end(x.all[1-lead])
		begin(lead)
		begin(1 - lead)
		both()
	}
}
