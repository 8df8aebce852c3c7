package workers

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

// TestLastWordsAreReadLate: what a process said before it died is read though nobody had a processor to read it in the
// time for that, and a descendant of it holds the pipe. Who goes on to write is not read for ever.
func TestLastWordsAreReadLate(t *testing.T) {
	out, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	defer held.Close()
	if _, err := held.WriteString("the first\ncannot go on\n"); err != nil {
		t.Fatal(err)
	}
	if err := out.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	log, said := logrus.New(), &safeBuffer{}
	log.SetOutput(said)
	l := &lineLog{log: log}
	l.run(&outputEnd{out, pipeBytes})
	if l.tail() != "the first; cannot go on" || !strings.Contains(said.String(), "cannot go on") {
		t.Errorf("kept %q, logged %q", l.tail(), said)
	}
	if _, err := held.WriteString("more\nand more\n"); err != nil {
		t.Fatal(err)
	}
	l = &lineLog{log: log}
	if l.run(&outputEnd{out, 5}); l.tail() != "more" {
		t.Errorf("of 5 bytes it kept %q", l.tail())
	}
}
