// Command bench measures Tendril's figures, each against a reference of the
// same run: the two alternate for several rounds, and the medians' ratio is
// held against its reach. It prints a table and writes one JSON object a line.
//
// It trusts the machine it runs on; it starts a daemon of its own in a
// temporary directory and leaves nothing behind. It takes no locks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
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
	// RoundTrips is how many round trips a round of the measured program needed.
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

	// once: one round alone, of a measurement that takes its time and repeats what it measures by itself.
	once bool
	// best: the better side of the rounds counts, for both: a scheduler puts the two ends of a socket on one core or
	// on two as it likes, which differ tenfold on a virtual machine, and so the rounds of either side.
	best bool
}

// missingError says why a figure cannot be had on this machine.
type missingError struct{ why string }

func (e *missingError) Error() string { return e.why }

func main() {
	rounds := flag.Int("rounds", 7, "rounds a figure, at least 5")
	out := flag.String("out", "bench.json", "where the figures go, one JSON object a line")
	bin := flag.String("bin", "bin", "directory of tendril and libtendril_opencl.so")
	only := flag.String("only", "", "regular expression: measure these figures alone")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *rounds, *out, *bin, *only); err != nil {
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
	all := append(append(storeBenchmarks(rig), indexBenchmarks(rig)...), append(append(openclBenchmarks(rig), remoteBenchmarks(ctx, rig)...), append(frameBenchmarks(ctx, rig), spanBenchmarks(ctx, rig)...)...)...)
	chosen := slices.DeleteFunc(all, func(b benchmark) bool { return !pattern.MatchString(b.name) })
	if slices.ContainsFunc(chosen, isOpenCL) {
		if err := rig.startOpenCL(); err != nil {
			return err
		}
	}
	if rig.noDevice != "" {
		fmt.Fprintln(os.Stderr, "bench: no OpenCL figures:", rig.noDevice)
		chosen = slices.DeleteFunc(chosen, isOpenCL)
	}
	var figures []Figure
	for _, b := range chosen {
		f, err := rig.roundTripsOf(b, func(b benchmark) (Figure, error) { return b.run(ctx, max(rounds, 5)) })
		if missing := (*missingError)(nil); errors.As(err, &missing) {
			fmt.Fprintf(os.Stderr, "  %-44s not measured: %v\n", b.name, missing)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		figures = append(figures, f)
		fmt.Fprintf(os.Stderr, "  %-44s %s\n", f.Name, f.verdict())
	}
	if err := write(out, figures); err != nil {
		return err
	}
	return table(os.Stdout, figures)
}

func isOpenCL(b benchmark) bool { return strings.HasPrefix(b.name, "opencl/") }

// run alternates the two sides and takes medians. The first round warms up and is dropped.
func (b benchmark) run(ctx context.Context, rounds int) (Figure, error) {
	var values, references, ratios []float64
	first := 1
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

// trips is how many round trips a round needed, "-" where nothing was forwarded.
func (f Figure) trips() string {
	if f.RoundTrips == 0 && !strings.HasPrefix(f.Name, "opencl/") {
		return "-"
	}
	return strconv.FormatFloat(math.Round(10*f.RoundTrips)/10, 'f', -1, 64)
}

func (f Figure) verdict() string {
	word := "ok"
	if !f.OK {
		word = "MISSED"
	}
	return fmt.Sprintf("%.2f × (%s) %s", f.Ratio, f.Reach, word)
}

func write(path string, figures []Figure) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if e := file.Close(); err == nil {
			err = e
		}
	}()
	enc := json.NewEncoder(file)
	for _, f := range figures {
		if err := enc.Encode(f); err != nil {
			return err
		}
	}
	return nil
}

func table(w io.Writer, figures []Figure) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "figure\tvalue\treference\tratio\treach\tspread\ttrips\tagainst")
	for _, f := range figures {
		mark := "✓"
		if !f.OK {
			mark = "✗"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%s %s\t%.1f\t%s\t%s\n", f.Name, show(f.Value, f.Unit), show(f.Reference, f.Unit), f.Ratio, f.Reach, mark, f.Spread, f.trips(), f.Against)
	}
	return t.Flush()
}

func show(v float64, unit string) string {
	switch unit {
	case "B/s":
		return fmt.Sprintf("%.2f GB/s", v/1e9)
	case "1/s":
		return fmt.Sprintf("%.0f/s", v)
	case "B":
		return fmt.Sprintf("%.1f KiB", v/1024)
	case "":
		return fmt.Sprintf("%.2f", v)
	}
	if v < 100e3 {
		return fmt.Sprintf("%.2f µs", v/1e3)
	}
	return strings.TrimSpace(fmt.Sprintf("%.2f ms", v/1e6))
}
