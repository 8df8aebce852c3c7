package daemon

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Peers cause lines of the log: a connection that breaks a rule, a session that begins and ends. So that nobody fills
// the disk with them, or hides another one's lines among them, lines of one kind that one tenant or one address causes
// are counted, and after some the rest are left out for a while, and their number is said.
const (
	logBurst    = 10               // lines of one kind and origin in logEvery
	logBurstWho = 5 * logBurst     // lines of one origin, of all kinds: some name what a peer made
	logBurstAll = 100              // lines of one kind, whoever causes them
	logEvery    = 10 * time.Second // what is counted together
	logOrigins  = 2048             // counters at a time; what has none counts as one
)

// logLimit is a logrus.Formatter that formats what is left out as nothing. Safe for concurrent use.
type logLimit struct {
	inner logrus.Formatter // immutable
	log   logrus.FieldLogger
	every time.Duration

	mu     sync.Mutex // a leaf
	counts map[logOrigin]*logCount
}

// logOrigin is a kind of line and who causes it; "" is every kind, and everybody.
type logOrigin struct {
	message string
	who     string
}

// logCount counts since its first line.
type logCount struct {
	lines, left int
}

// LimitLog bounds what peers can make a log grow by: how many lines that name a tenant or a remote address it has.
func LimitLog(log *logrus.Logger) {
	log.SetFormatter(&logLimit{inner: log.Formatter, log: log, every: logEvery, counts: make(map[logOrigin]*logCount)})
}

// Format implements logrus.Formatter.
func (l *logLimit) Format(e *logrus.Entry) ([]byte, error) {
	if who := whoCaused(e); who != "" && !l.allows(e.Message, who) {
		return nil, nil
	}
	return l.inner.Format(e)
}

// whoCaused gives the tenant or the address that a line names; "": it is the daemon's own.
func whoCaused(e *logrus.Entry) string {
	if _, counted := e.Data["lines"]; counted {
		return "" // the limit's own
	}
	if tenant, _ := e.Data["tenant"].(string); tenant != "" {
		return "tenant " + tenant
	}
	if remote := e.Data["remote"]; remote != nil {
		address := fmt.Sprint(remote)
		if host, _, err := net.SplitHostPort(address); err == nil {
			address = host
		}
		return address
	}
	return ""
}

// allows counts a line, and says whether it may be written.
func (l *logLimit) allows(message, who string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	his := l.count(logOrigin{who: who})
	if his.lines >= logBurstWho { // before there are counters of more kinds
		his.left++
		return false
	}
	one := l.count(logOrigin{message, who})
	if one.lines >= logBurst {
		one.left++
		return false
	}
	all := l.count(logOrigin{message: message})
	if all.lines >= logBurstAll {
		all.left++
		return false
	}
	his.lines++
	if one != his { // where there are no counters left, all three are the one of all others
		one.lines++
	}
	if all != one {
		all.lines++
	}
	return true
}

// count finds a counter, or begins one, which ends by itself; where there are too many, it is that of all others. mu is
// held.
func (l *logLimit) count(origin logOrigin) *logCount {
	if l.counts[origin] == nil && len(l.counts) >= logOrigins {
		origin = logOrigin{who: "others"}
	}
	c := l.counts[origin]
	if c == nil {
		c = &logCount{}
		l.counts[origin] = c
		time.AfterFunc(l.every, func() { l.settle(origin) })
	}
	return c
}

// settle says how many lines were left out, and begins again.
func (l *logLimit) settle(origin logOrigin) {
	l.mu.Lock()
	left := l.counts[origin].left
	delete(l.counts, origin)
	l.mu.Unlock()
	if left == 0 {
		return
	}
	by := origin.who
	if by == "" {
		by = "everybody"
	}
	log := l.log.WithField("lines", left).WithField("from", by)
	if origin.message == "" {
		log.Warnf("%d more lines in the last %v, of several kinds", left, l.every)
		return
	}
	log.Warnf("%d more like this in the last %v: %s", left, l.every, origin.message)
}
