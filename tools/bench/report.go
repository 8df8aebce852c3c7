package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
)

// report is what came of the figures: a table of those that were measured, and below it what misses its reach, what
// this machine does not have, and what went wrong.
type report struct {
	figures        []Figure
	missed         []string
	absent, failed []string // "name: why"
}

// add takes one figure in, or what became of it, and says it in a few words.
func (r *report) add(b benchmark, f Figure, err error) string {
	if missing := (*missingError)(nil); errors.As(err, &missing) {
		r.absent = append(r.absent, fmt.Sprintf("%s: %v", b.name, missing))
		return "not measured: " + missing.why
	}
	if err != nil {
		r.failed = append(r.failed, fmt.Sprintf("%s: %v", b.name, err))
		return "FAILED: " + err.Error()
	}
	r.figures = append(r.figures, f)
	if !f.OK {
		r.missed = append(r.missed, f.Name+": "+f.verdict())
		return f.verdict() + " MISSED"
	}
	return f.verdict() + " ok"
}

// print ends with an error where a figure failed; one that misses its reach is none.
func (r *report) print(w io.Writer) error {
	if err := table(w, r.figures); err != nil {
		return err
	}
	for _, part := range []struct {
		title string
		lines []string
	}{
		{fmt.Sprintf("%d of %d miss their reach", len(r.missed), len(r.figures)), r.missed},
		{"not measured on this machine", r.absent},
		{"failed", r.failed},
	} {
		if len(part.lines) > 0 {
			fmt.Fprintf(w, "\n%s:\n  %s\n", part.title, strings.Join(part.lines, "\n  "))
		}
	}
	if n := len(r.failed); n > 0 {
		return fmt.Errorf("%d figures could not be measured", n)
	}
	return nil
}

// trips is how many round trips a step needed, "-" where nothing was forwarded.
func (f Figure) trips() string {
	if f.RoundTrips == 0 && !strings.HasPrefix(f.Name, "opencl/") {
		return "-"
	}
	return strconv.FormatFloat(math.Round(10*f.RoundTrips)/10, 'f', -1, 64)
}

func (f Figure) verdict() string {
	return fmt.Sprintf("%.2f × (%s)", f.Ratio, f.Reach)
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
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%s %s\t%.1f\t%s\t%s\n", f.Name, show(f.Value, f.Unit),
			show(f.Reference, f.Unit), f.Ratio, f.Reach, mark, f.Spread, f.trips(), f.Against)
	}
	return t.Flush()
}

func show(v float64, unit string) string {
	switch unit {
	case "B/s":
		if v < 100e6 {
			return fmt.Sprintf("%.2f MB/s", v/1e6)
		}
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
