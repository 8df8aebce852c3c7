package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// program is one that measures on request. The first figure that asks it starts it, and the first after it died; what
// keeps it from starting is an error of every figure that asks.
type program struct {
	rig     *rig
	start   func() (*reference, error)
	running *reference
	failed  error
}

// reference is a child that answers each line on its standard input with one number, and how many steps that took.
type reference struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ready string // its first line

	counters string // where a forwarded program counts its round trips; "": it does not
}

// begun gives the running child. It must not be kept: the next ask may be another child's.
func (p *program) begun() (*reference, error) {
	if p.running == nil && p.failed == nil {
		p.running, p.failed = p.start()
	}
	return p.running, p.failed
}

// ask runs one round of a test of the measured side, whose round trips a step the row shows.
func (p *program) ask(test string) (float64, error) {
	v, trips, err := p.round(test)
	p.rig.trips += trips
	return v, err
}

// reference runs one round of a test that is only to compare with.
func (p *program) reference(test string) (float64, error) {
	v, _, err := p.round(test)
	return v, err
}

func (p *program) round(test string) (value, trips float64, err error) {
	f, err := p.begun()
	if err != nil {
		return 0, 0, err
	}
	before := tripsSoFar(f.counters)
	value, steps, err := f.ask(test)
	if err != nil {
		p.running, err = nil, errors.Join(err, f.stop())
		return 0, 0, err
	}
	return value, (tripsSoFar(f.counters) - before) / steps, nil
}

func (f *reference) ask(test string) (value, steps float64, err error) {
	if _, err := fmt.Fprintln(f.in, test); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", test, err)
	}
	line, err := f.out.ReadString('\n')
	if err != nil {
		return 0, 0, fmt.Errorf("%s: the measuring program ended: %w", test, err)
	}
	steps = 1 // unless it says so
	if n, err := fmt.Sscan(line, &value, &steps); n == 0 || value <= 0 || steps < 1 {
		return 0, 0, fmt.Errorf("%s: answer %q: %w", test, line,
			errors.Join(err, errors.New("a number above 0 is wanted")))
	}
	return value, steps, nil
}

func (f *reference) stop() error {
	f.in.Close()
	return f.cmd.Wait()
}

// begin runs a child and reads its first line, which says that it is ready.
func (r *rig) begin(env []string, name string, args ...string) (*reference, error) {
	cmd := exec.Command(name, args...)
	var counters string
	cmd.Env, counters = r.counted(env)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	f := &reference{cmd: cmd, in: in, out: bufio.NewReader(out), counters: counters}
	if f.ready, err = f.out.ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("%s does not start: %w", filepath.Base(cmd.Args[len(cmd.Args)-1]),
			err), f.stop())
	}
	return f, nil
}

// program is a child that the rig ends at its own end.
func (r *rig) program(start func() (*reference, error)) *program {
	p := &program{rig: r, start: start}
	r.atEnd(func() {
		if p.running != nil {
			_ = p.running.stop() // its figures are in; how it leaves changes nothing
		}
	})
	return p
}

// plain is one of the C programs, run as it is: env nil for one that has nothing to do with Tendril.
func (r *rig) plain(env []string, name string, args ...string) *program {
	return r.program(func() (*reference, error) {
		path, err := r.built(name)
		if err != nil {
			return nil, err
		}
		return r.begin(env, path, args...)
	})
}

// under is one of the C programs behind a verb of tendril's with its flags.
func (r *rig) under(name string, verb ...string) *program {
	return r.program(func() (*reference, error) {
		path, err := r.built(name)
		if err != nil {
			return nil, err
		}
		return r.begin(r.env(), r.tendril(), append(verb, "--", path)...)
	})
}
