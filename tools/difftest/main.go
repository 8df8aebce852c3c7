// Command difftest runs the same OpenCL programs natively and forwarded and
// compares what they say, line by line: every error code, every hash of data.
// Differences that are meant stand in allow.txt with their reason; any other
// one fails the run, and so does an allowed one that no longer occurs.
//
// A program is a C file, or a script (apps/) that runs one of Debian's programs and says what it saw; a script that
// ends with 77 lacks its program, and is skipped with the reason.
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
	"slices"
	"strings"
	"syscall"
	"time"

	"tendril/tools/e2e/rig"
)

// missing is how a script ends whose program is not installed.
const missing = 77

func main() {
	bin := flag.String("bin", "bin", "directory of tendril and libtendril_opencl.so")
	dir := flag.String("tests", "tools/difftest/tests", "directory of the programs, *.c and *.sh")
	limit := flag.Duration("limit", 2*time.Minute, "how long a program may run")
	allow := flag.String("allow", "tools/difftest/allow.txt", "accepted differences with their reasons")
	only := flag.String("only", "", "regular expression: run these programs alone")
	self := flag.Bool("self", false, "run natively twice: shows what differs from run to run")
	server := flag.String("server", "", "run forwarded programs on this server (HOST:PORT, logged in to) instead of on a node of the test's own")
	short := flag.Bool("short", false, "of scripts, what takes seconds")
	all := flag.Bool("all", false, "of scripts, also what takes a quarter of an hour")
	far := flag.String("far", "", "tls or tcp: reach the test's own node as if it were another machine; span: contexts over its device twice, here and there; links: the same with a link between the two workers; several with commas between them, unix being its socket: each program runs natively once")
	write := flag.String("write", "", "run nothing: write the C programs of the tables to this directory")
	verbose := flag.Bool("v", false, "show accepted differences too")
	flag.Parse()
	if *write != "" {
		if err := writeTables(*dir, *write); err != nil {
			fmt.Fprintln(os.Stderr, "difftest:", err)
			os.Exit(2)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &differ{bin: *bin, tests: *dir, self: *self, server: *server, ways: strings.Split(*far, ","), verbose: *verbose, limit: *limit}
	if *short {
		d.env = append(d.env, "DIFFTEST_SHORT=1")
	}
	if *all {
		d.env = append(d.env, "DIFFTEST_ALL=1")
	}
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
	server        string   // "": this machine's node
	ways          []string // to the test's own node: "" or unix, tls, tcp, span, links
	limit         time.Duration
	env           []string // how much scripts do; nil: as always
	work          string   // compiled programs
	node          *rig.Node
	rules         []*rule
}

func (d *differ) run(ctx context.Context, allow, only string) (ok bool, err error) {
	if d.bin, err = filepath.Abs(d.bin); err != nil {
		return false, err
	}
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
	if err := d.goFar(ctx); err != nil {
		return false, err
	}
	programs, err := d.programs()
	if err != nil {
		return false, err
	}
	ok = true
	met := !slices.Contains(d.ways, links)
	for _, source := range programs {
		name := strings.TrimSuffix(filepath.Base(source), filepath.Ext(source))
		if !pattern.MatchString(name) {
			continue
		}
		same, err := d.compare(ctx, name, source)
		if err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		ok = ok && same
		met = met || strings.Contains(d.node.Log(), linked)
	}
	if !met {
		return false, fmt.Errorf("-far %s: no link came up:\n%s", links, d.node.Log())
	}
	if only == "" && !d.self && d.env == nil {
		ok = d.reportUnused() && ok
	}
	return ok, nil
}

// programs are the C files, and the scripts but for what they share.
func (d *differ) programs() ([]string, error) {
	programs, err := filepath.Glob(filepath.Join(d.tests, "*.c"))
	tables, _ := filepath.Glob(filepath.Join(d.tests, "*.table")) // a bad pattern is the only error
	programs = append(programs, tables...)
	scripts, err2 := filepath.Glob(filepath.Join(d.tests, "*.sh"))
	for _, script := range scripts {
		if filepath.Base(script) != "app.sh" {
			programs = append(programs, script)
		}
	}
	if err = errors.Join(err, err2); err == nil && len(programs) == 0 {
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("programs in %s: %w", d.tests, err)
	}
	return programs, nil
}

// build compiles a C file; a script is run as it is.
func (d *differ) build(ctx context.Context, name, source string) ([]string, error) {
	if filepath.Ext(source) == ".sh" {
		return []string{"bash", filepath.Base(source)}, nil
	}
	program, include := filepath.Join(d.work, name), filepath.Dir(source)
	if filepath.Ext(source) == ".table" {
		if err := writeTable(source, program+".c"); err != nil {
			return nil, err
		}
		source = program + ".c"
	}
	_, err := rig.Output(exec.CommandContext(ctx, "cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wno-unused-function", "-I", include, "-o", program, source, "-lOpenCL", "-lpthread"))
	return []string{program}, err
}

// compare builds one program, runs it both ways and prints what differs.
func (d *differ) compare(ctx context.Context, name, source string) (bool, error) {
	program, err := d.build(ctx, name, source)
	if err != nil {
		return false, err
	}
	native := d.say(ctx, rig.Native(), program...)
	if native.lacks {
		fmt.Printf("%-14s skipped: %s\n", name, native.complaint[strings.LastIndexByte(native.complaint, '\n')+1:])
		d.spare(name)
		return true, nil
	}
	if native.end != "" {
		return false, fmt.Errorf("natively: %s\n%s", native.end, native.complaint)
	}
	same := true
	for _, way := range d.ways {
		title := name
		if len(d.ways) > 1 {
			title = fmt.Sprintf("%s (%s)", name, way)
		}
		same = d.judge(name, title, way, native, d.forwarded(ctx, way, program)) && same
	}
	return same, nil
}

// forwarded runs a program on a way.
func (d *differ) forwarded(ctx context.Context, way string, program []string) said {
	switch {
	case d.self:
		return d.say(ctx, rig.Native(), program...)
	case way == spans, way == links:
		far := []string{d.node.Tendril(), "run", "--server", "local", "--server", d.server, "--"}
		return d.say(ctx, d.node.Env("DT_SPAN=1", "XDG_CONFIG_HOME="+d.work), append(far, program...)...)
	case isFar(way):
		far := []string{d.node.Tendril(), "run", "--server", d.server, fmt.Sprintf("--plaintext=%v", way == "tcp"), "--"}
		return d.say(ctx, d.farEnv(), append(far, program...)...)
	case d.node == nil:
		return d.say(ctx, os.Environ(), append([]string{filepath.Join(d.bin, "tendril"), "run", "--server", d.server, "--"}, program...)...)
	default:
		return d.say(ctx, d.node.Env(), append([]string{d.node.Tendril(), "run", "--"}, program...)...)
	}
}

// judge prints what differs and is accepted by no rule, and whether that is nothing.
func (d *differ) judge(name, title, way string, native, other said) bool {
	bad, accepted := 0, 0
	for _, diff := range differences(native, other) {
		if r := d.rule(name, way, diff); r != nil {
			accepted++
			if d.verbose {
				fmt.Printf("%s: accepted: %s (%s)\n", title, diff, r.reason)
			}
			continue
		}
		bad++
		fmt.Printf("%s: %s\n", title, diff)
	}
	if other.end != "" {
		bad++
		fmt.Printf("%s: forwarded: %s\n%s\n", title, other.end, other.complaint)
	}
	verdict := "same"
	if bad > 0 {
		verdict = fmt.Sprintf("%d DIFFERENT", bad)
	}
	fmt.Printf("%-14s %4d lines, %d accepted differences, %s\n", title, len(native.order), accepted, verdict)
	return bad == 0
}

// said is what a program printed, by label, and how it ended ("": well).
type said struct {
	order     []string
	lines     map[string]string
	end       string
	complaint string
	lacks     bool // its program is not installed
}

func (d *differ) say(ctx context.Context, env []string, args ...string) said {
	s := said{lines: map[string]string{}}
	work, err := os.MkdirTemp(d.work, "run-")
	if err != nil {
		s.end, s.complaint = "failed", err.Error()
		return s
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = d.tests
	cmd.Env = append(append(env, d.env...), "DIFFTEST_WORK="+work)
	cmd.WaitDelay = time.Second
	out, err := rig.OutputWithin(cmd, d.limit)
	if err != nil {
		s.complaint = err.Error()
		s.end = "failed"
		if errors.Is(err, rig.ErrHung) {
			s.end = "hangs, after saying: " + out[strings.LastIndexByte(strings.TrimSuffix(out, "\n"), '\n')+1:]
		}
		s.lacks = cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == missing
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
