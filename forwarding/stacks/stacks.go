// Package stacks says where a process of ours is that does not go on: asked by SIGQUIT, it writes the stacks of all
// goroutines to a file. The daemon, its workers, the verbs and the driver library inside a program use it where
// TENDRIL_STACKS names a directory.
//
// Trust: the directory is whoever's who set the variable; a file there is replaced, never written through. It has no
// lock.
package stacks

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// Variable is the environment variable that names the directory.
const Variable = "TENDRIL_STACKS"

// Bounds of what is written, in bytes.
const (
	firstBytes = 1 << 20
	mostBytes  = 16 << 20
)

// Path is the file of a process in a directory.
func Path(dir string, pid int) string { return filepath.Join(dir, fmt.Sprintf("stacks.%d", pid)) }

// OnQuit has SIGQUIT no longer end this process, but write Path(dir) and go on, until stop is called, which joins its
// goroutine. Nobody is told of a file that cannot be written.
func OnQuit(dir string) (stop func()) {
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGQUIT)
	go func() {
		defer close(done)
		for range signals {
			_ = Write(dir)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
		<-done
	}
}

// Write makes the file, whole at once.
func Write(dir string) error {
	f, err := os.CreateTemp(dir, ".stacks-")
	if err != nil {
		return err
	}
	_, err = f.Write(all())
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), Path(dir, PID()))
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// PID is this process's number as those who see the same /proc know it. In a PID namespace of its own, getpid(2) says
// 1.
func PID() int {
	said, err := os.Readlink("/proc/self")
	if pid, bad := strconv.Atoi(said); err == nil && bad == nil {
		return pid
	}
	return os.Getpid()
}

func all() []byte {
	for size := firstBytes; ; size *= 2 {
		b := make([]byte, size)
		if n := runtime.Stack(b, true); n < size || size >= mostBytes {
			return b[:n]
		}
	}
}
