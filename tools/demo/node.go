package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// demo is one demonstration: its node and what the steps hand on.
type demo struct {
	options
	dir    string // temporary: socket, state, log, results
	daemon *exec.Cmd
	exited chan error // what Wait gave; closed with the daemon
	name   string     // of the photograph in the store

	width, height int
	digest        string // of the native result, SHA-256

	address string // where the node waits for other machines
}

func (d *demo) socket() string { return filepath.Join(d.dir, "tendril.sock") }

// environment is the caller's without OpenCL's and Tendril's own variables, and with our socket.
func (d *demo) environment(extra ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TENDRIL_") && !strings.HasPrefix(v, "OCL_ICD_") {
			env = append(env, v)
		}
	}
	return append(append(env, "TENDRIL_SOCKET="+d.socket()), extra...)
}

// start brings the node up and waits until it answers.
func (d *demo) start(ctx context.Context) (err error) {
	title("a node on this machine")
	if d.dir, err = os.MkdirTemp("", "tendril-demo-"); err != nil {
		return err
	}
	// Workers run as other users and reach their caches through it.
	if err := os.Chmod(d.dir, 0o711); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(d.dir, "daemon.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	began := time.Now()
	d.daemon = exec.Command(filepath.Join(d.bin, "tendril"), "daemon")
	d.daemon.Env = d.environment("TENDRIL_STATE_DIR="+filepath.Join(d.dir, "state"), "TENDRIL_LISTEN=127.0.0.1:0",
		"TENDRIL_HTTP=127.0.0.1:0")
	d.daemon.Stdout, d.daemon.Stderr = log, log
	d.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is ours to pass on
	if err := d.daemon.Start(); err != nil {
		d.daemon = nil
		return err
	}
	d.exited = make(chan error, 1)
	go func() { d.exited <- d.daemon.Wait() }() // ends with the daemon, which close ends
	if err := d.await(ctx); err != nil {
		return err
	}
	devices, err := d.devices(ctx)
	if err != nil {
		return err
	}
	line("daemon", began, "pid %d, %s", d.daemon.Process.Pid, devices)
	return nil
}

// await asks for the status until the daemon answers, has ended, or 30 s are over.
func (d *demo) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		if _, err := d.tendril(ctx, "status", "--json"); err == nil {
			return nil
		}
		select {
		case err := <-d.exited:
			d.daemon = nil
			return fmt.Errorf("the daemon ended at once (%v):\n%s", err, d.log())
		case <-ctx.Done():
			return fmt.Errorf("the daemon does not answer:\n%s", d.log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (d *demo) log() string {
	b, err := os.ReadFile(filepath.Join(d.dir, "daemon.log"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b[max(0, len(b)-4000):]))
}

// close ends the node and removes what the demonstration left, unless it is to be kept.
func (d *demo) close() {
	if d.daemon == nil || (d.keep && d.digest != "") {
		return
	}
	d.daemon.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.exited:
	case <-time.After(10 * time.Second):
		d.daemon.Process.Kill()
		<-d.exited
	}
	os.RemoveAll(d.dir)
}

// tendril runs a verb and returns its standard output.
func (d *demo) tendril(ctx context.Context, args ...string) (string, error) {
	return d.command(ctx, nil, filepath.Join(d.bin, "tendril"), args...)
}

// command runs a program to its end; its error carries what the program said.
func (d *demo) command(ctx context.Context, stdin []byte, name string, args ...string) (string, error) {
	return d.commandIn(ctx, d.environment("PYTHONPATH="+d.python), stdin, name, args...)
}

// commandIn is command with an environment of its own.
func (d *demo) commandIn(ctx context.Context, env []string, stdin []byte, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = env
	cmd.WaitDelay = 5 * time.Second
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &complaint
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%s is not installed: run make deps", name)
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err,
			strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}
