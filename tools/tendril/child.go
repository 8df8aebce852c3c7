package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// endTime is how long a program may take to end when it is told to.
const endTime = 10 * time.Second

// runChild runs a program to its end, with this process's standard streams; it is told to end where this process dies.
// Signals from the terminal reach it by themselves; those sent to this process go on to it, but for those that own
// takes. Once over is closed the program is to end (SIGTERM), and is killed where it has not within endTime. over may
// be nil.
func runChild(program string, args, env []string, over <-chan struct{}, own func(os.Signal) bool) (*os.ProcessState,
	error) {
	runtime.LockOSThread() // Pdeathsig is sent when the thread that started it ends (prctl(2))
	defer runtime.UnlockOSThread()
	cmd := exec.Command(program)
	cmd.Args, cmd.Env = args, env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var kill <-chan time.Time
	for {
		select {
		case <-over:
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended meanwhile, here and below
			over, kill = nil, time.After(endTime)
		case <-kill:
			_ = cmd.Process.Kill()
		case err := <-ended:
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				return nil, fmt.Errorf("run %s: %w", program, err)
			}
			return cmd.ProcessState, nil
		case s := <-signals:
			keys := s == syscall.SIGINT || s == syscall.SIGQUIT
			if own(s) || keys && foreground() { // the terminal has sent it to both
				continue
			}
			_ = cmd.Process.Signal(s)
		}
	}
}

// foreground says whether this process gets the signals of its terminal's keys, and so does the program.
func foreground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
