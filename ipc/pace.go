package ipc

import "time"

// pace has a socket that listens rest now and then, while others than those who connect there are at work. Whoever
// opens and closes connections in a loop has the poller's thread run without end, and a processor that it runs on is
// lost to other clients and to those who linger for them: on two cores their requests then waited for some ms, one in
// a hundred. Of the poller's goroutine.
type pace struct {
	lingers *Lingers      // immutable; nil: nobody lingers
	worked  time.Duration // since the last rest, or the last time that nobody came
	latest  time.Time     // when that ended
}

const (
	paceWork = 500 * time.Microsecond // of turns in a row, between two rests
	paceRest = time.Millisecond
)

// tires takes note of a turn. true: the socket is to rest for paceRest. other is when somebody else had a turn last.
func (x *pace) tires(began, ended, other time.Time) bool {
	if began.Sub(x.latest) >= paceRest {
		x.worked = 0
	}
	x.worked, x.latest = x.worked+min(ended.Sub(began), pollerMost), ended
	othersWork := ended.Sub(other) < paceRest || x.lingers != nil && x.lingers.now.Load() > 0
	if x.worked < paceWork || !othersWork {
		return false
	}
	x.worked = 0
	return true
}
