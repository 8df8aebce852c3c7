package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tendril/tools/e2e/await"
)

// openTerminal makes a terminal of so many columns, and 24 lines: what one types and sees is master's, the program's
// side is slave.
func openTerminal(t *testing.T, columns int) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("skipped: no terminals here: ", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("skipped: ", err)
	}
	t.Cleanup(func() { slave.Close() })
	resize(t, master, columns, 24)
	return master, slave
}

func resize(t *testing.T, master *os.File, columns, rows int) {
	t.Helper()
	size := &unix.Winsize{Col: uint16(columns), Row: uint16(rows)}
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, size); err != nil {
		t.Fatal(err)
	}
}

// shown is a program on a terminal.
type shown struct {
	t       *testing.T
	master  *os.File
	process *exec.Cmd

	mu  sync.Mutex
	out bytes.Buffer
	end chan struct{} // closed when out is whole
}

// onTerminal starts a command line on a terminal; env is added to the environment.
func (n *node) onTerminal(columns int, env []string, args ...string) *shown {
	n.t.Helper()
	master, slave := openTerminal(n.t, columns)
	s := &shown{t: n.t, master: master, process: exec.Command(filepath.Join(built, "tendril"), args...),
		end: make(chan struct{})}
	s.process.Env, s.process.Dir = append(append(n.env, "TERM=xterm", "NO_COLOR="), env...), n.dir
	s.process.Stdin, s.process.Stdout, s.process.Stderr = slave, slave, slave
	s.process.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.process.Start(); err != nil {
		n.t.Fatal(err)
	}
	slave.Close()
	go func() {
		defer close(s.end)
		b := make([]byte, 4096)
		for {
			count, err := master.Read(b)
			s.mu.Lock()
			s.out.Write(b[:count])
			s.mu.Unlock()
			if err != nil { // EIO: nobody has the other side
				if !errors.Is(err, unix.EIO) && !errors.Is(err, io.EOF) {
					n.t.Error(err)
				}
				return
			}
		}
	}()
	n.t.Cleanup(func() {
		s.process.Process.Kill() // it fails where the program has ended
		<-s.end
	})
	return s
}

func (s *shown) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// wait waits for the program's end.
func (s *shown) wait() (code int, out string) {
	s.t.Helper()
	<-s.end
	var exit *exec.ExitError
	if err := s.process.Wait(); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return s.process.ProcessState.ExitCode(), strings.ReplaceAll(s.out.String(), "\r\n", "\n")
}

// until waits until the terminal shows a text after its first from bytes, and gives how many there are then.
func (s *shown) until(text string, from int) int {
	s.t.Helper()
	shows := 0
	await.Until(s.t, fmt.Sprintf("%q on the terminal", text), func() bool {
		out := s.text()
		shows = len(out)
		return strings.Contains(out[from:], text)
	})
	return shows
}

// fitted fails where a line has more columns than there are.
func fitted(t *testing.T, what string, columns int, out string) {
	t.Helper()
	for line := range strings.SplitSeq(out, "\n") {
		if n := widths.StringWidth(sgr.ReplaceAllString(line, "")); n > columns {
			t.Errorf("%s: %d columns in %d: %q", what, n, columns, line)
		}
	}
}

// sgr is a colour's sequence.
var sgr = regexp.MustCompile("\x1b\\[[0-9;]*m")

// changing is what differs from run to run, and takes as many columns each time.
var changing = regexp.MustCompile(`\b[0-9a-f]{32}\b|\b[0-9a-f]{12}\b`)

// goldenText is golden for text.
func goldenText(t *testing.T, name, got string) {
	t.Helper()
	got = changing.ReplaceAllStringFunc(got, func(id string) string { return strings.Repeat("x", len(id)) })
	wantFile(t, filepath.Join("testdata", name+".txt"), got)
}
