package workers

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Bounds of what a worker may write into the daemon's log.
const (
	maxLineBytes  = 1024
	lineBurst     = 40                     // lines at once
	lineEvery     = 100 * time.Millisecond // one more each
	keptLines     = 4                      // kept to explain a death
	keptLineBytes = 300
)

// lineLog passes a process's output to the log, line by line, with bounds. One goroutine feeds it; tail may be called
// by any.
type lineLog struct {
	log logrus.FieldLogger

	budget  int // of the feeding goroutine
	earned  time.Time
	dropped int

	mu   sync.Mutex
	kept []string // guarded by mu
}

// run reads r to its end.
func (l *lineLog) run(r io.Reader) {
	l.budget, l.earned = lineBurst, time.Now()
	buf := make([]byte, maxLineBytes)
	held := 0
	for {
		n, err := r.Read(buf[held:])
		held += n
		held = l.split(buf, held)
		if err != nil {
			break
		}
	}
	l.line(buf[:held])
	if l.dropped > 0 {
		l.log.WithField("lines", l.dropped).Warn("lines of a worker's output were left out")
	}
}

// split logs the whole lines in buf[:held], and a line that fills buf, and moves the rest to the front.
func (l *lineLog) split(buf []byte, held int) int {
	rest := buf[:held]
	for {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			break
		}
		l.line(rest[:i])
		rest = rest[i+1:]
	}
	if len(rest) == len(buf) {
		l.line(rest)
		return 0
	}
	return copy(buf, rest)
}

func (l *lineLog) line(raw []byte) {
	text := printable(raw)
	if text == "" {
		return
	}
	l.keep(text)
	now := time.Now()
	if earned := int(now.Sub(l.earned) / lineEvery); earned > 0 {
		l.budget = min(l.budget+earned, lineBurst)
		l.earned = now
	}
	if l.budget == 0 {
		l.dropped++
		return
	}
	l.budget--
	l.log.Info(text)
}

// printable takes control characters out: a log is often read on a terminal.
func printable(raw []byte) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, string(raw)))
}

func (l *lineLog) keep(text string) {
	if len(text) > keptLineBytes {
		text = text[:keptLineBytes]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kept) == keptLines {
		l.kept = append(l.kept[:0], l.kept[1:]...)
	}
	l.kept = append(l.kept, text)
}

// tail gives the last lines in one, or "".
func (l *lineLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.kept, "; ")
}
