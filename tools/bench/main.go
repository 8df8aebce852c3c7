// Command bench measures Tendril's figures, each against a reference of the
// same run: the two alternate for several rounds, and the medians' ratio is
// held against its reach. It prints a table and writes one JSON object a line.
//
// It trusts the machine it runs on; it starts a daemon of its own in a
// temporary directory and leaves nothing behind. It takes no locks.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Figure is one line of bench.json. Times are in ns, rates in bytes per second.
type Figure struct {
	Name      string  `json:"name"`
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"`
	Reference float64 `json:"reference"` // the same unit
	Against   string  `json:"against"`   // what the reference is
	Ratio     float64 `json:"ratio"`     // value ÷ reference
	Reach     string  `json:"reach"`
	OK        bool    `json:"ok"`
	// Spread is the largest of the rounds' ratios ÷ the smallest.
	Spread float64 `json:"spread"`
	// RoundTrips is how many a step of the measured program needed, of which a batch or a chain is one.
	RoundTrips float64 `json:"round_trips"`
}

// benchmark describes one figure: measure runs one round of each side.
type benchmark struct {
	name    string
	unit    string // "ns", "B/s", "B", "1/s" or "" for a plain number
	against string
	atMost  float64 // ratio's limit, or 0
	atLeast float64
	measure func() (value, reference float64, err error)
	note    func() string // what else the rounds showed, said behind against; nil: nothing

	// rounds: so few of them are enough, for a link's fixed rate decides; 0: as many as asked for.
	rounds int
	// once: one round alone, of a measurement that takes its time and repeats what it measures by itself.
	once bool
	// best: the better side of the rounds counts, for both: a scheduler puts the two ends of a socket on one core or
	// on two as it likes, which differ tenfold on a virtual machine, and so the rounds of either side.
	best bool
}

// missingError says why a figure cannot be measured on this machine.
type missingError struct{ why string }

func (e *missingError) Error() string { return e.why }

func main() {
	rounds := flag.Int("rounds", 5, "rounds a figure, at least 5")
	out := flag.String("out", "bench.json", "where the figures go, one JSON object a line")
	bin := flag.String("bin", "bin", "directory of tendril and libtendril_opencl.so")
	only := flag.String("only", "", "regular expression: measure these figures alone")
	attack := flag.String("attack", "", "what bench starts itself with, as another user, to attack -socket")
	socket := flag.String("socket", "", "for -attack")
	cluster := flag.Bool("cluster", false, "measure the figures of a cluster instead, of daemons on this machine")
	flag.Parse()
	if *attack != "" {
		fmt.Fprintln(os.Stderr, "bench: the attacker:", runAttack(*attack, *socket))
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	measure := run
	if *cluster {
		measure = runCluster
	}
	if err := measure(ctx, *rounds, *out, *bin, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rounds int, out, bin, only string) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only %q: %w", only, err)
	}
	rig, err := newRig(ctx, bin)
	if err != nil {
		return err
	}
	defer rig.close()
	all := slices.Concat(storeBenchmarks(rig), indexBenchmarks(rig), httpBenchmarks(rig), attackBenchmarks(ctx, rig),
		openclBenchmarks(rig),
		rowBenchmarks(rig), remoteBenchmarks(ctx, rig), frameBenchmarks(ctx, rig), spanBenchmarks(ctx, rig))
	chosen := slices.DeleteFunc(all, func(b benchmark) bool { return !pattern.MatchString(b.name) })
	if slices.ContainsFunc(chosen, isOpenCL) {
		if err := rig.noDevice(); err != nil {
			fmt.Fprintln(os.Stderr, "bench: no OpenCL figures: no native OpenCL device to compare with:", err)
			chosen = slices.DeleteFunc(chosen, isOpenCL)
		}
	}
	var report report
	for _, b := range chosen {
		start := time.Now()
		f, err := rig.roundTripsOf(b, func(b benchmark) (Figure, error) { return b.run(ctx, max(rounds, 5)) })
		fmt.Fprintf(os.Stderr, "  %-60s %s (%.1f s)\n", b.name, report.add(b, f, err), time.Since(start).Seconds())
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := write(out, report.figures); err != nil {
		return err
	}
	return report.print(os.Stdout)
}

// runCluster is run for the figures of a cluster.
func runCluster(ctx context.Context, rounds int, out, bin, only string) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only %q: %w", only, err)
	}
	r := &clusterRig{bin: bin}
	defer r.close()
	var report report
	for _, b := range append(stateBenchmarks(), clusterBenchmarks(ctx, r)...) {
		if !pattern.MatchString(b.name) {
			continue
		}
		start := time.Now()
		f, err := b.run(ctx, rounds)
		fmt.Fprintf(os.Stderr, "  %-60s %s (%.1f s)\n", b.name, report.add(b, f, err), time.Since(start).Seconds())
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := write(out, report.figures); err != nil {
		return err
	}
	return report.print(os.Stdout)
}

func isOpenCL(b benchmark) bool { return strings.HasPrefix(b.name, "opencl/") }

// run alternates the two sides and takes medians. The first round warms up and is dropped.
func (b benchmark) run(ctx context.Context, rounds int) (Figure, error) {
	var values, references, ratios []float64
	first := 1
	if b.rounds > 0 {
		rounds = min(rounds, b.rounds)
	}
	if b.once {
		rounds, first = 0, 0
	}
	for i := range rounds + 1 {
		if err := ctx.Err(); err != nil {
			return Figure{}, err
		}
		v, r, err := b.measure()
		if err != nil {
			return Figure{}, err
		}
		if i >= first {
			values, references, ratios = append(values, v), append(references, r), append(ratios, v/r)
		}
	}
	f := Figure{Name: b.name, Unit: b.unit, Against: b.against, Value: median(values), Reference: median(references)}
	if b.best && b.atMost > 0 {
		f.Value, f.Reference = slices.Min(values), slices.Min(references)
	} else if b.best {
		f.Value, f.Reference = slices.Max(values), slices.Max(references)
	}
	f.Ratio = f.Value / f.Reference
	if b.note != nil {
		f.Against += " (" + b.note() + ")"
	}
	f.Spread = 1 // of a count that may be zero
	if least := slices.Min(ratios); least > 0 {
		f.Spread = slices.Max(ratios) / least
	}
	if b.atMost > 0 {
		f.Reach, f.OK = fmt.Sprintf("≤ %g ×", b.atMost), f.Ratio <= b.atMost
	} else {
		f.Reach, f.OK = fmt.Sprintf("≥ %g ×", b.atLeast), f.Ratio >= b.atLeast
	}
	return f, nil
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
