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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tendril/tools/e2e/rig"
)

// missing is how a script ends whose program is not installed.
const missing = 77

func main() {
	bin := flag.String("bin", "bin", "directory of tendril and libtendril_opencl.so")
	dir := flag.String("tests", "tools/difftest/tests", "directory of the programs, *.c and *.sh")
	limit := flag.Duration("limit", rig.Limit, "how long a program may say nothing before it is said to hang")
	allow := flag.String("allow", "tools/difftest/allow.txt", "accepted differences with their reasons")
	only := flag.String("only", "", "regular expression: run these programs alone")
	self := flag.Bool("self", false, "run natively twice: shows what differs from run to run")
	server := flag.String("server", "",
		"run forwarded programs on this server (HOST:PORT, logged in to) instead of on a node of the test's own")
	short := flag.Bool("short", false, "of scripts, what takes seconds")
	all := flag.Bool("all", false, "of scripts, also what takes a quarter of an hour")
	far := flag.String("far", "",
		"ways to the test's own node, with commas between them, each NAME or NAME=REGEX for some of the programs alone; each program runs natively once.\n"+
			"unix: by its socket (default); tls, tcp: as if it were another machine; span: contexts over its device twice, here and there; links: the same with a link between the two workers; copies: by the socket, with --in-place off")
	jobs := flag.Int("jobs", 1, "programs that run at a time")
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
	d := &differ{bin: *bin, tests: *dir, self: *self, server: *server, verbose: *verbose, limit: *limit, jobs: *jobs,
		nodes: map[string]*rig.Node{}}
	if *short {
		d.env = append(d.env, "DIFFTEST_SHORT=1")
	}
	if *all {
		d.env = append(d.env, "DIFFTEST_ALL=1")
	}
	ok, err := d.run(ctx, *allow, *only, *far)
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
	server        string // "": this machine's nodes
	ways          []*way
	limit         time.Duration
	jobs          int
	env           []string             // how much scripts do; nil: as always
	work          string               // compiled programs, and the credentials of ways that need some
	nodes         map[string]*rig.Node // by kind
	kernels       string               // what the first node has compiled; "" before

	mu    sync.Mutex // guards what rules were used, and standard output
	rules []*rule
}

func (d *differ) run(ctx context.Context, allow, only, far string) (ok bool, err error) {
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
	if d.ways, err = readWays(far); err != nil {
		return false, err
	}
	if d.work, err = os.MkdirTemp("", "tendril-difftest-"); err != nil {
		return false, err
	}
	defer os.RemoveAll(d.work)
	if far != "" && (d.self || d.server != "") {
		return false, fmt.Errorf("-far %s: neither with -server nor with -self", far)
	}
	programs, err := d.programs(pattern)
	if err != nil {
		return false, err
	}
	if d.self || d.server != "" {
		d.ways[0].server = d.server
		ok, err = d.compareAll(ctx, programs, d.ways)
	} else {
		ok, err = d.compareOnNodes(ctx, programs)
	}
	if err != nil {
		return false, err
	}
	if only == "" && !d.self && d.env == nil {
		var names []string
		for _, p := range programs {
			names = append(names, p.name)
		}
		ok = d.reportUnused(names) && ok
	}
	return ok, nil
}

// program is built, and runs natively, before its first comparison.
type program struct {
	name, source string
	argv         []string // nil: not yet
	native       said
}

// compareAll compares the programs on ways, so many at a time, and says whether all were the same. The first error ends
// it.
func (d *differ) compareAll(ctx context.Context, programs []*program, ways []*way) (same bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *program)
	var working sync.WaitGroup
	var different atomic.Bool
	for range max(1, d.jobs) {
		working.Go(func() {
			for p := range next {
				same, err := d.compare(ctx, p, ways)
				if err != nil {
					cancel(fmt.Errorf("%s: %w", p.name, err))
				}
				if !same {
					different.Store(true)
				}
			}
		})
	}
	for _, p := range programs {
		if ctx.Err() == nil {
			next <- p
		}
	}
	close(next)
	working.Wait()
	return !different.Load(), context.Cause(ctx)
}

func programName(source string) string {
	return strings.TrimSuffix(filepath.Base(source), filepath.Ext(source))
}

// programs are the C files, and the scripts but for what they share, whose names match.
func (d *differ) programs(only *regexp.Regexp) (programs []*program, err error) {
	sources, err := filepath.Glob(filepath.Join(d.tests, "*.c"))
	tables, _ := filepath.Glob(filepath.Join(d.tests, "*.table")) // a bad pattern is the only error
	sources = append(sources, tables...)
	scripts, err2 := filepath.Glob(filepath.Join(d.tests, "*.sh"))
	for _, script := range scripts {
		if filepath.Base(script) != "app.sh" {
			sources = append(sources, script)
		}
	}
	if err = errors.Join(err, err2); err == nil && len(sources) == 0 {
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("programs in %s: %w", d.tests, err)
	}
	for _, source := range sources {
		if name := programName(source); only.MatchString(name) {
			programs = append(programs, &program{name: name, source: source})
		}
	}
	if len(programs) == 0 {
		return nil, fmt.Errorf("no program in %s is called %s", d.tests, only)
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
	_, err := rig.Output(exec.CommandContext(ctx, "cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wno-unused-function",
		"-I", include, "-o", program, source, "-lOpenCL", "-lpthread"))
	return []string{program}, err
}

// compare runs one program on ways, and prints what differs from its native run.
func (d *differ) compare(ctx context.Context, p *program, ways []*way) (same bool, err error) {
	ways = slices.DeleteFunc(slices.Clone(ways), func(w *way) bool { return !w.only.MatchString(p.name) })
	if len(ways) == 0 {
		return true, nil
	}
	if p.argv == nil {
		if err := d.runNatively(ctx, p); err != nil {
			return false, err
		}
	}
	if p.native.lacks {
		return true, nil
	}
	same = true
	for _, w := range ways {
		title := p.name
		if len(d.ways) > 1 {
			title = fmt.Sprintf("%s (%s)", p.name, w.name)
		}
		same = d.judge(p.name, title, w, p.native, d.forwarded(ctx, w, p.argv)) && same
	}
	return same, nil
}

// runNatively builds a program and runs it natively.
func (d *differ) runNatively(ctx context.Context, p *program) (err error) {
	if p.argv, err = d.build(ctx, p.name, p.source); err != nil {
		return err
	}
	native := d.say(ctx, rig.Native(), p.argv...)
	if native.died { // of a fault of the driver's own, such as PoCL's heap among wrong arguments now and then
		d.print(fmt.Sprintf("%-14s natively: run again after %s\n", p.name, native.complaint))
		native = d.say(ctx, rig.Native(), p.argv...)
	}
	if native.lacks {
		d.spare(p.name)
		d.print(fmt.Sprintf("%-14s skipped: %s\n", p.name,
			native.complaint[strings.LastIndexByte(native.complaint, '\n')+1:]))
	} else {
		if native.end == "" && len(native.order) == 0 {
			native.end = "says nothing, which proves nothing"
		}
		if native.end != "" {
			return fmt.Errorf("natively: %s\n%s", native.end, native.complaint)
		}
	}
	p.native = native
	return nil
}

// forwarded runs a program on a way.
func (d *differ) forwarded(ctx context.Context, w *way, program []string) said {
	switch {
	case d.self:
		return d.say(ctx, rig.Native(), program...)
	case w.name == spans, w.name == links:
		far := []string{w.node.Tendril(), "run", "--server", "local", "--server", w.server, "--"}
		return d.say(ctx, w.node.Env("DT_SPAN=1", "XDG_CONFIG_HOME="+d.work), append(far, program...)...)
	case isFar(w.name):
		far := []string{w.node.Tendril(), "run", "--server", w.server,
			fmt.Sprintf("--plaintext=%v", w.name == tcp), "--"}
		return d.say(ctx, d.farEnv(), append(far, program...)...)
	case w.node == nil:
		return d.say(ctx, os.Environ(),
			append([]string{filepath.Join(d.bin, "tendril"), "run", "--server", w.server, "--"}, program...)...)
	default:
		return d.say(ctx, w.node.Env(), append([]string{w.node.Tendril(), "run", "--"}, program...)...)
	}
}

// judge prints what differs and is accepted by no rule, and whether that is nothing.
func (d *differ) judge(name, title string, w *way, native, other said) bool {
	var text strings.Builder
	bad, accepted := 0, 0
	for _, diff := range differences(native, other) {
		if r := d.rule(name, w, diff); r != nil {
			accepted++
			if d.verbose {
				fmt.Fprintf(&text, "%s: accepted: %s (%s)\n", title, diff, r.reason)
			}
			continue
		}
		bad++
		fmt.Fprintf(&text, "%s: %s\n", title, diff)
	}
	if other.end != "" {
		bad++
		fmt.Fprintf(&text, "%s: forwarded: %s\n%s\n", title, other.end, other.complaint)
	}
	verdict := "same"
	if bad > 0 {
		verdict = fmt.Sprintf("%d DIFFERENT", bad)
	}
	fmt.Fprintf(&text, "%-24s %4d lines, %d accepted differences, %s\n", title, len(native.order), accepted, verdict)
	d.print(text.String())
	return bad == 0
}

// print prints what belongs together.
func (d *differ) print(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Print(text)
}

// said is what a program printed, by label, and how it ended ("": well).
type said struct {
	order     []string
	lines     map[string]string
	end       string
	complaint string
	lacks     bool // its program is not installed
	died      bool // of a signal of its own
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
	out, err := rig.OutputWithin(cmd, d.limit)
	if err != nil {
		s.complaint = err.Error()
		s.end = "failed"
		if errors.Is(err, rig.ErrHung) {
			s.end = "hangs, after saying: " + out[strings.LastIndexByte(strings.TrimSuffix(out, "\n"), '\n')+1:]
		}
		s.lacks = cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == missing
		if cmd.ProcessState != nil && ctx.Err() == nil && !errors.Is(err, rig.ErrHung) {
			status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
			s.died = ok && status.Signaled()
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
