package stacks

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"testing"
	"time"

	"tendril/tools/e2e/await"
)

func TestMain(m *testing.M) { await.Main(m) }

// lost is what a goroutine waits in for ever.
func lost(c chan struct{}) { <-c }

func TestSIGQUITWritesWhereItIsAndGoesOn(t *testing.T) {
	dir, c := t.TempDir(), make(chan struct{})
	defer close(c)
	go lost(c)
	await.Blocked(t, 1, "stacks.lost") // its first step may come late
	stop := OnQuit(dir)
	for range 2 { // the second replaces the first
		if err := syscall.Kill(os.Getpid(), syscall.SIGQUIT); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Millisecond) {
			b, err := os.ReadFile(Path(dir, os.Getpid()))
			if bytes.Contains(b, []byte("stacks.lost(")) && bytes.Contains(b, []byte("TestSIGQUITWrites")) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%v: %s", err, b)
			}
		}
		if err := os.Remove(Path(dir, os.Getpid())); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestNoDirectory(t *testing.T) {
	if err := Write(t.TempDir() + "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
