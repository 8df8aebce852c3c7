package frontdoor

import "github.com/sirupsen/logrus"

// farewells says in the log why connections ended, for the poller, which may not wait for the log. One goroutine writes
// them all, in order; a goroutine for each would cost the tenants that break no rule more than the connection did.
type farewells struct {
	out     logrus.FieldLogger // immutable
	waiting chan farewell      // immutable; closed by close
	ended   chan struct{}      // closed when all is written
}

type farewell struct {
	who logrus.Fields
	why error
}

// maxFarewells is how many may wait for the log.
const maxFarewells = 64

func newFarewells(out logrus.FieldLogger) *farewells {
	f := &farewells{out: out, waiting: make(chan farewell, maxFarewells), ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		for one := range f.waiting {
			f.log(one.who, one.why)
		}
	}()
	return f
}

// say has a line written soon; false: too many wait, and the caller had better log it itself. It waits for nothing.
func (f *farewells) say(who logrus.Fields, why error) bool {
	select {
	case f.waiting <- farewell{who, why}:
		return true
	default:
		return false
	}
}

// log writes a line now.
func (f *farewells) log(who logrus.Fields, why error) {
	f.out.WithError(why).WithFields(who).Info("front door: connection ended")
}

// close waits until all is written. No say may follow.
func (f *farewells) close() {
	close(f.waiting)
	<-f.ended
}
