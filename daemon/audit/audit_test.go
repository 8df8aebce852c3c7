package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tendril/tools/e2e/await"
)

func TestMain(m *testing.M) { await.Main(m) }

func open(t *testing.T, dir string, o Options) *Log {
	t.Helper()
	l, err := Open(dir, "admin", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func all(Event) bool { return true }

// read gives what the events are of, page by page.
func read(t *testing.T, l *Log, after uint64, want func(Event) bool) (list []string) {
	t.Helper()
	for more := true; more; {
		var events []Event
		var err error
		if events, after, more, err = l.Read(after, 3, want); err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			list = append(list, e.Of)
		}
	}
	return list
}

func TestLinesComeBackInOrder(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for run := range 3 {
		l := open(t, dir, Options{FileBytes: 400, Files: 100})
		for i := range 10 {
			of := fmt.Sprint(run, ".", i)
			want = append(want, of)
			l.Add(Event{What: "x", Of: of, Tenant: fmt.Sprint("t", i%2)})
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l.Add(Event{Of: "after the end"})
		// a kill in the middle of a line
		files, _ := filepath.Glob(filepath.Join(dir, "admin-*"))
		f, err := os.OpenFile(files[len(files)-1], os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(`{"number":99999,"of":"to`)
		f.Close()
	}
	l := open(t, dir, Options{})
	if got := read(t, l, 0, all); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := read(t, l, 25, all); !slices.Equal(got, want[25:]) {
		t.Errorf("after 25: %q", got)
	}
	if got := read(t, l, 0, func(e Event) bool { return e.Tenant == "t1" }); len(got) != 15 {
		t.Errorf("of one tenant: %q", got)
	}
	if got := read(t, l, 30, all); got != nil {
		t.Errorf("behind the end: %q", got)
	}
}

func TestFilesAreBounded(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{FileBytes: 1000, Files: 3})
	for i := range 2000 {
		l.Add(Event{Of: fmt.Sprint(i), Detail: strings.Repeat("x", 2*maxText)})
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(files) == 0 || len(files) > 3 {
		t.Errorf("%d files", len(files))
	}
	got, _, _, err := l.Read(0, 1<<20, all)
	if err != nil || l.Lost() == 0 && (len(got) == 0 || got[len(got)-1].Of != "1999") {
		t.Errorf("%d events, %d lost, %v", len(got), l.Lost(), err)
	}
}

// A disk that takes nothing holds nobody up; what is lost is counted, and the next line says so.
func TestAFullDiskIsCounted(t *testing.T) {
	dir := t.TempDir()
	told := make(chan error, 8)
	l := open(t, dir, Options{Files: 100, Fault: func(err error) { told <- err }})
	full := filepath.Join(dir, "admin-00000000000000000001.log")
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	for range 3 * queued {
		l.Add(Event{Of: "lost"})
	}
	if err := <-told; err == nil {
		t.Fatal("nothing was said of lost lines")
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	for written := false; !written; {
		l.Add(Event{Of: "there"})
		select {
		case err := <-told:
			written = err == nil
		case <-time.After(time.Millisecond):
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	events, _, _, err := l.Read(0, 1, all)
	if err != nil || len(events) != 1 || events[0].Lost == 0 || events[0].Number != 1 {
		t.Fatalf("%+v, %v", events, err)
	}
	lost := uint64(0)
	count := func(e Event) bool { lost += e.Lost; return false }
	if _, _, _, err := l.Read(0, 1<<20, count); err != nil || lost > l.Lost() {
		t.Errorf("the lines say that %d are lost, the log %d", lost, l.Lost())
	}
}

// An answer is bounded in bytes, however long the lines are that somebody has made.
func TestAnswersAreBounded(t *testing.T) {
	l := open(t, t.TempDir(), Options{})
	const lines = 600
	for range lines {
		l.Add(Event{Of: strings.Repeat("\x01", maxText), Error: strings.Repeat("\x01", maxText)})
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got, after := 0, uint64(0)
	for more := true; more; {
		var list []Event
		var err error
		list, after, more, err = l.Read(after, lines, all)
		if err != nil || len(list) == 0 || len(list) > lines/3 {
			t.Fatalf("%d events, then %d, %v, %v", len(list), after, more, err)
		}
		got += len(list)
	}
	if got != lines {
		t.Errorf("%d events in all", got)
	}
}

// TestTheWriterRestsOnlyWhenAllIsWritten: else who adds many lines would have others' lost.
func TestTheWriterRestsOnlyWhenAllIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, t.TempDir(), Options{})
		const many = queued / 2
		for range many {
			l.Add(Event{What: "x"})
		}
		synctest.Wait()       // it may rest once, behind the first lines
		time.Sleep(writeRest) // Pause: the writer's, of this bubble's clock
		synctest.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.last != many {
			t.Errorf("%d lines of %d are written", l.last, many)
		}
	})
}

// TestTheQueueIsAsLongAsWhatWaits: up to its bound all is kept while the disk is slow, and what has been written takes
// no memory.
func TestTheQueueIsAsLongAsWhatWaits(t *testing.T) {
	dir := t.TempDir()
	told, goOn := make(chan error), make(chan struct{})
	l := open(t, dir, Options{Fault: func(err error) { told <- err; <-goOn }})
	full := filepath.Join(dir, "admin-00000000000000000001.log")
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	l.Add(Event{Of: "lost"})
	if err := <-told; err == nil {
		t.Fatal("nothing was said of lost lines")
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	for i := range queued { // the writer waits for the test
		l.Add(Event{Of: fmt.Sprint(i)})
	}
	if n := l.Lost(); n != 1 {
		t.Errorf("%d events are lost before the queue is full", n)
	}
	l.Add(Event{Of: "one too many"})
	if n := l.Lost(); n != 2 {
		t.Errorf("%d events are lost where the queue has had one too many", n)
	}
	goOn <- struct{}{}
	if err := <-told; err != nil {
		t.Fatal(err)
	}
	goOn <- struct{}{}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	events, _, _, err := l.Read(0, 2*queued, all)
	for i, e := range events {
		if e.Of != fmt.Sprint(i) || e.Lost != map[int]uint64{0: 2}[i] {
			t.Fatalf("line %d is %+v", i, e)
		}
	}
	if err != nil || len(events) != queued {
		t.Errorf("%d events, %v", len(events), err)
	}
	if n := cap(l.queue); n != 0 {
		t.Errorf("a queue with nothing in it has room for %d events", n)
	}
}
