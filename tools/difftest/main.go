// Command difftest runs the same OpenCL programs natively and forwarded and
// compares what they say, line by line: every error code, every hash of data.
// Differences that are meant stand in allow.txt with their reason; any other
// one fails the run, and so does an allowed one that no longer occurs.
//
// It trusts the programs in tests/ and the binaries it is given.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"tendril/tools/e2e/rig"
)

const programLimit = 2 * time.Minute

func main() {
	bin := flag.String("bin", "bin", "directory of tendril and libtendril_opencl.so")
	dir := flag.String("tests", "tools/difftest/tests", "directory of the programs")
	allow := flag.String("allow", "tools/difftest/allow.txt", "accepted differences with their reasons")
	only := flag.String("only", "", "regular expression: run these programs alone")
	self := flag.Bool("self", false, "run natively twice: shows what differs from run to run")
	server := flag.String("server", "", "run forwarded programs on this server (HOST:PORT, logged in to) instead of on a node of the test's own")
	far := flag.String("far", "", "tls or tcp: reach the test's own node as if it were another machine")
	verbose := flag.Bool("v", false, "show accepted differences too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	d := &differ{bin: *bin, tests: *dir, self: *self, server: *server, far: *far, verbose: *verbose}
	ok, err := d.run(ctx, *allow, *only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "difftest:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

type differ struct {
	bin, tests    string
	self, verbose bool
	server        string // "": this machine's node
	far           string // "": the server is none of ours, or there is none
	work          string // compiled programs
	node          *rig.Node
	rules         []*rule
}

func (d *differ) run(ctx context.Context, allow, only string) (ok bool, err error) {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return false, fmt.Errorf("-only %q: %w", only, err)
	}
	if d.rules, err = readRules(allow); err != nil {
		return false, err
	}
	if d.work, err = os.MkdirTemp("", "tendril-difftest-"); err != nil {
		return false, err
	}
	defer os.RemoveAll(d.work)
	if !d.self && d.server == "" {
		if d.node, err = rig.Start(ctx, d.bin, "TENDRIL_LISTEN=127.0.0.1:0"); err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, d.node.Stop()) }()
	}
	if d.far != "" {
		if err := d.goFar(ctx); err != nil {
			return false, err
		}
	}
	programs, err := filepath.Glob(filepath.Join(d.tests, "*.c"))
	if err != nil || len(programs) == 0 {
		return false, fmt.Errorf("no programs in %s: %w", d.tests, errors.Join(err, os.ErrNotExist))
	}
	ok = true
	for _, source := range programs {
		name := strings.TrimSuffix(filepath.Base(source), ".c")
		if !pattern.MatchString(name) {
			continue
		}
		same, err := d.compare(ctx, name, source)
		if err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		ok = ok && same
	}
	if only == "" && !d.self {
		ok = d.reportUnused() && ok
	}
	return ok, nil
}

// compare builds one program, runs it both ways and prints what differs.
func (d *differ) compare(ctx context.Context, name, source string) (bool, error) {
	program := filepath.Join(d.work, name)
	cc := exec.CommandContext(ctx, "cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wno-unused-function", "-o", program, source, "-lOpenCL", "-lpthread")
	if _, err := rig.Output(cc); err != nil {
		return false, err
	}
	native := d.say(ctx, rig.Native(), program)
	var other said
	switch {
	case d.self:
		other = d.say(ctx, rig.Native(), program)
	case d.far != "":
		other = d.say(ctx, d.farEnv(), d.node.Tendril(), "run", "--server", d.server, fmt.Sprintf("--plaintext=%v", d.far == "tcp"), "--", program)
	case d.server != "":
		other = d.say(ctx, os.Environ(), filepath.Join(d.bin, "tendril"), "run", "--server", d.server, "--", program)
	default:
		other = d.say(ctx, d.node.Env(), d.node.Tendril(), "run", "--", program)
	}
	if native.end != "" {
		return false, fmt.Errorf("natively: %s\n%s", native.end, native.complaint)
	}
	bad, accepted := 0, 0
	for _, diff := range differences(native, other) {
		if r := d.rule(name, diff); r != nil {
			accepted++
			if d.verbose {
				fmt.Printf("%s: accepted: %s (%s)\n", name, diff, r.reason)
			}
			continue
		}
		bad++
		fmt.Printf("%s: %s\n", name, diff)
	}
	if other.end != "" {
		bad++
		fmt.Printf("%s: forwarded: %s\n%s\n", name, other.end, other.complaint)
	}
	verdict := "same"
	if bad > 0 {
		verdict = fmt.Sprintf("%d DIFFERENT", bad)
	}
	fmt.Printf("%-14s %4d lines, %d accepted differences, %s\n", name, len(native.order), accepted, verdict)
	return bad == 0, nil
}

// said is what a program printed, by label, and how it ended ("": well).
type said struct {
	order     []string
	lines     map[string]string
	end       string
	complaint string
}

func (d *differ) say(ctx context.Context, env []string, args ...string) said {
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = env
	cmd.WaitDelay = time.Second
	out, err := rig.Output(cmd)
	s := said{lines: map[string]string{}}
	if err != nil {
		s.complaint = err.Error()
		s.end = "failed"
		if ctx.Err() != nil {
			s.end = fmt.Sprintf("hangs (ended after %v)", programLimit)
		}
	}
	for l := range strings.Lines(out) {
		label, result, _ := strings.Cut(strings.TrimSuffix(l, "\n"), ": ")
		if _, twice := s.lines[label]; twice {
			s.end = fmt.Sprintf("the label %q occurs twice", label)
		}
		s.order = append(s.order, label)
		s.lines[label] = result
	}
	return s
}

func differences(a, b said) []difference {
	var all []difference
	for _, label := range a.order {
		was := a.lines[label]
		is, there := b.lines[label]
		if !there {
			is = "(not said)"
		}
		if was != is {
			all = append(all, difference{label, was, is})
		}
	}
	for _, label := range b.order {
		if _, there := a.lines[label]; !there {
			all = append(all, difference{label, "(not said)", b.lines[label]})
		}
	}
	return all
}
