package daemon

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

// logBook is a log that may be read while it is written.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBook) count(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), what)
}

// What one peer causes is written some times, then counted; others' lines, other kinds and the daemon's own are not
// concerned.
func TestLogIsLimited(t *testing.T) {
	book := &logBook{}
	log := logrus.New()
	log.SetOutput(book)
	LimitLog(log)
	limit := log.Formatter.(*logLimit)
	limit.every = time.Hour
	const n = 5000
	for i := range n {
		log.WithField("tenant", "loud").WithField("pid", i).Info("a rule was broken")
		log.WithField("remote", fmt.Sprintf("192.0.2.1:%d", 1000+i)).Info("sent away")
	}
	log.WithField("tenant", "quiet").Info("a rule was broken")
	log.WithField("tenant", "loud").Info("something else")
	for range 2 * logBurst {
		log.Info("the daemon's own")
	}
	for what, want := range map[string]int{"tenant=loud": logBurst + 1, "tenant=quiet": 1,
		"the daemon's own": 2 * logBurst, "192.0.2.1": logBurst} {
		if got := book.count(what); got != want {
			t.Errorf("%q stands %d times in the log, want %d", what, got, want)
		}
	}
	for _, origin := range []logOrigin{{"a rule was broken", "tenant loud"}, {"sent away", "192.0.2.1"},
		{"something else", "tenant loud"}} {
		limit.settle(origin)
	}
	if got := book.count(fmt.Sprintf("%d more like this", n-logBurst)); got != 2 || book.count("more like this") != 2 {
		t.Errorf("what was left out is said %d times: %s", got, book.text.String())
	}
	log.WithField("tenant", "loud").Info("a rule was broken")
	if got := book.count("tenant=loud"); got != logBurst+2 {
		t.Errorf("%d lines once the time is over", got)
	}
}

// Where there are no counters left, a line of who has none counts once.
func TestLogWithoutCounters(t *testing.T) {
	book := &logBook{}
	log := logrus.New()
	log.SetOutput(book)
	LimitLog(log)
	limit := log.Formatter.(*logLimit)
	limit.every = time.Hour
	for i := range 2 * logOrigins {
		log.WithField("tenant", fmt.Sprint("t", i)).Info("a rule was broken")
	}
	limit.mu.Lock()
	n := len(limit.counts)
	delete(limit.counts, logOrigin{who: "others"})
	for i := 0; len(limit.counts) < logOrigins; i++ {
		limit.counts[logOrigin{who: fmt.Sprint("more", i)}] = &logCount{}
	}
	limit.mu.Unlock()
	if n < logOrigins || n > logOrigins+1 {
		t.Fatalf("%d counters", n)
	}
	for range 2 * logBurst {
		log.WithField("tenant", "late").Info("late")
	}
	if got := book.count("tenant=late"); got != logBurst {
		t.Errorf("%d lines of who has no counter, want %d", got, logBurst)
	}
}

// One tenant whose lines are each of a kind of their own, because they name what it made, fills no log either, and
// takes nobody's counters.
func TestLogOfManyKinds(t *testing.T) {
	book := &logBook{}
	log := logrus.New()
	log.SetOutput(book)
	LimitLog(log)
	limit := log.Formatter.(*logLimit)
	limit.every = time.Hour
	for i := range 5 * logOrigins {
		log.WithField("tenant", "loud").Infof("object %d is damaged", i)
	}
	log.WithField("tenant", "quiet").Info("a rule was broken")
	if got := book.count("is damaged"); got != logBurstWho || book.count("tenant=quiet") != 1 {
		t.Errorf("%d lines of one tenant, %d of the other", got, book.count("tenant=quiet"))
	}
	limit.mu.Lock()
	if got := len(limit.counts); got > 2*logBurstWho+4 {
		t.Errorf("%d counters", got)
	}
	limit.mu.Unlock()
	limit.settle(logOrigin{who: "tenant loud"})
	if book.count(fmt.Sprintf("%d more", 5*logOrigins-logBurstWho)) != 1 {
		t.Errorf("what was left out is not said: %s", book.text.String())
	}
}

// However many origins there are, few lines of a kind are written and few counters kept.
func TestLogOfManyOrigins(t *testing.T) {
	book := &logBook{}
	log := logrus.New()
	log.SetOutput(book)
	LimitLog(log)
	limit := log.Formatter.(*logLimit)
	limit.every = time.Hour
	for i := range 5 * logOrigins {
		log.WithField("remote", fmt.Sprintf("[2001:db8:%x::1]:7", i)).Info("sent away")
	}
	limit.mu.Lock()
	defer limit.mu.Unlock()
	if got := book.count("sent away"); got != logBurstAll || len(limit.counts) > logOrigins+2 {
		t.Errorf("%d lines, %d counters", got, len(limit.counts))
	}
}
