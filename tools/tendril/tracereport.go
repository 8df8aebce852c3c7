package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"tendril/forwarding/trace"
)

// report prints the summary: where the time went.
func (t *tracer) report(s *trace.Summary) error {
	if t.c.json {
		return t.c.printJSON(s)
	}
	w := t.c.term.err
	if s.Wall == 0 {
		_, err := fmt.Fprintf(w,
			"tendril: wrote %s, which is empty: the program made no OpenCL call through Tendril\n", t.o.out)
		return err
	}
	fmt.Fprintf(w, "\ntendril: wrote %s; open it at https://ui.perfetto.dev\n", t.o.out)
	fmt.Fprintf(w, "%s from the first OpenCL call to the last\n", took(s.Wall))
	return firstError(
		reportTable(w, t.c.term.errScreen, "where the threads were", "THREAD | DURATION | IN OPENCL | WAITING THERE? | ELSEWHERE?",
			threadRows(s)),
		reportTable(w, t.c.term.errScreen, "calls by time", "CALL | COUNT | TOTAL | WAITING? | MEAN?? | LONGEST? | BYTES??", callRows(s)),
		reportTable(w, t.c.term.errScreen, "round trips: "+strconv.Itoa(s.TripCount),
			"CAUSE | COUNT | TOTAL | MEAN?? | CALL? | DETAIL", tripRows(s)),
		reportTable(w, t.c.term.errScreen, "commands", "PART | COUNT | TOTAL | MEAN? | LONGEST?? | WHAT", stageRows(s)),
		reportTable(w, t.c.term.errScreen, "kernels by time on the device",
			"KERNEL | LAUNCHES | TOTAL | MEAN? | LONGEST?? | MEAN WAIT IN QUEUE??", kernelRows(s)),
		reportTable(w, t.c.term.errScreen, "transfers by time", "TRANSFER | COUNT? | BYTES | TOTAL? | RATE", transferRows(s)),
		reportTable(w, t.c.term.errScreen, "wire", "DIRECTION | WORKER | RECORDS? | CHUNKS? | BYTES | CHUNKS COMPRESSED??", wireRows(s)),
		reportTable(w, t.c.term.errScreen, "from worker to worker", "FROM | TO | PUSHES? | BYTES | SENT THROUGH THE PROGRAM INSTEAD?",
			pushRows(s)),
		reportTable(w, t.c.term.errScreen, "clocks", "WORKER | PLATFORM | ERROR OF ITS TIMES AT MOST", clockRows(s)),
		reportLines(w, t.c.term.errScreen, "fallbacks", s.Notes),
		reportLines(w, t.c.term.errScreen, "not in the file", missing(s)),
	)
}

// most is how many rows of a ranking are shown.
const most = 12

func reportTable(w io.Writer, on screen, title, head string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	more := len(rows) - most
	fmt.Fprintf(w, "\n%s\n", on.in(titles, title+":"))
	if err := table(w, on, head, rows[:min(len(rows), most)]); err != nil || more <= 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "and %d more (--json has all)\n", more)
	return err
}

func reportLines(w io.Writer, on screen, title string, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s\n", on.in(titles, title+":"))
	for _, l := range lines {
		if err := hanging(w, on, "  ", nil, plain(l)); err != nil {
			return err
		}
	}
	return nil
}

// took prints ns with three digits that count.
func took(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d >= time.Second:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}

func mean(total int64, n int) string {
	if n == 0 {
		return "-"
	}
	return took(total / int64(n))
}

func share(part, whole int64) string {
	if whole <= 0 {
		return took(part)
	}
	return fmt.Sprintf("%s (%d %%)", took(part), part*100/whole)
}

func threadRows(s *trace.Summary) (rows [][]string) {
	for _, t := range s.Threads {
		rows = append(rows, []string{orDash(t.Process) + " / " + orDash(t.Thread), took(t.Span),
			share(t.InCalls, t.Span), share(t.Waiting, t.Span), share(t.Span-t.InCalls, t.Span)})
	}
	return rows
}

func callRows(s *trace.Summary) (rows [][]string) {
	for _, c := range s.Calls {
		bytes := "-"
		if c.Bytes > 0 {
			bytes = size(c.Bytes)
		}
		rows = append(rows, []string{c.Name, strconv.Itoa(c.Count), took(c.Total), took(c.Waiting),
			mean(c.Total, c.Count), took(c.Longest), bytes})
	}
	return rows
}

func tripRows(s *trace.Summary) (rows [][]string) {
	for _, t := range s.Trips {
		if !t.Own {
			detail := t.Detail
			if t.Behind != "" {
				detail = strings.TrimPrefix(detail+", behind "+t.Behind, ", ")
			}
			rows = append(rows, []string{t.Cause, strconv.Itoa(t.Count), took(t.Total), mean(t.Total, t.Count),
				orDash(t.Call), orDash(detail)})
		}
	}
	return rows
}

// stageWhat says what the parts of a command's life are, in the order of Summary.Stages.
var stageWhat = []string{
	"from the enqueue call to the worker", "in the worker, until the driver has it", "in the driver, until it starts",
	"on the device",
}

func stageRows(s *trace.Summary) (rows [][]string) {
	for i, st := range s.Stages {
		if st.Count > 0 && i < len(stageWhat) {
			rows = append(rows, []string{st.Name, strconv.Itoa(st.Count), took(st.Total), mean(st.Total, st.Count),
				took(st.Longest), stageWhat[i]})
		}
	}
	return rows
}

func kernelRows(s *trace.Summary) (rows [][]string) {
	for _, k := range s.Kernels {
		rows = append(rows, []string{k.Name, strconv.Itoa(k.Launches), took(k.Device), mean(k.Device, k.Launches),
			took(k.Longest), mean(k.Queue, k.Launches)})
	}
	return rows
}

func transferRows(s *trace.Summary) (rows [][]string) {
	for _, t := range s.Transfers {
		rows = append(rows, []string{t.Name, strconv.Itoa(t.Count), size(t.Bytes), took(t.Time),
			size(uint64(t.BytesPerSecond)) + "/s"})
	}
	return rows
}

func wireRows(s *trace.Summary) (rows [][]string) {
	for _, w := range s.Wire {
		rows = append(rows, []string{w.Direction, strconv.FormatUint(uint64(w.Worker), 10), strconv.Itoa(w.Records),
			strconv.Itoa(w.Chunks), size(w.Bytes), compressed(w.Moved, w.ChunkBytes)})
	}
	return rows
}

func pushRows(s *trace.Summary) (rows [][]string) {
	for _, p := range s.Pushes {
		rows = append(rows, []string{strconv.FormatUint(uint64(p.From), 10), strconv.FormatUint(uint64(p.To), 10),
			strconv.Itoa(p.Count), size(p.Bytes), strconv.Itoa(p.Lost)})
	}
	return rows
}

// compressed says to how much of itself something came down on a link.
func compressed(program, wire uint64) string {
	if wire >= program {
		return "-"
	}
	return fmt.Sprintf("%s to %.0f %%", size(program), 100*float64(wire)/float64(program))
}

func clockRows(s *trace.Summary) (rows [][]string) {
	for _, w := range s.Workers {
		rows = append(rows, []string{strconv.FormatUint(uint64(w.Number), 10), w.Name, w.Clock})
	}
	return rows
}

func missing(s *trace.Summary) (lines []string) {
	for _, m := range []struct {
		n    uint64
		what string
	}{
		{s.Lost, "records overwritten by newer ones (use a larger --max-size)"},
		{uint64(s.Dropped), "oldest events, which did not fit into the file (use a larger --max-size)"},
		{s.Torn, "records that are incomplete, as the program was killed while it wrote them"},
		{s.TextsLost, "names that did not fit"},
		{uint64(s.Unmatched),
			"commands without the worker's or the program's half: still running at the end, overwritten, or never reported"},
	} {
		if m.n > 0 {
			lines = append(lines, fmt.Sprintf("%s: %d", m.what, m.n))
		}
	}
	return lines
}
