package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/fatih/color"
	"github.com/mattn/go-runewidth"
)

// A table fits the terminal. Where it is too wide, IDs are shortened first (every command takes their beginning).
// Then long cells get fewer columns and go on below, and columns marked with ? are left out, and named. Into a file or
// a pipe everything goes as it is.

// column is one of a table's.
type column struct {
	head     string
	optional int  // the ? behind its name; more of them are left out first, and of equals the last
	natural  int  // columns of the terminal that its widest cell takes
	ids      bool // all cells are IDs of objects
	hidden   bool
	width    int // what it gets
}

const (
	gap       = 2  // columns of the terminal between two of a table
	leastText = 16 // a cell this long is not broken while there are columns to leave out
	idDigits  = 32
	shortID   = 12 // digits
)

// widths measures text as terminals do; what is ambiguous is narrow.
var widths = &runewidth.Condition{}

// tabular prints rows under each other. What it has printed stays: later rows may make columns wider.
type tabular struct {
	w      *bufio.Writer
	screen screen
	cols   []column
	begun  bool // the heads are printed
}

// newTabular is a table with heads "A | B? | C"; a table of fields, whose first column is their names, has none: "".
func newTabular(w io.Writer, s screen, head string, columns int) *tabular {
	t := &tabular{w: bufio.NewWriter(w), screen: s, cols: make([]column, columns), begun: head == ""}
	for i, name := range strings.Split(head, " | ") {
		bare := strings.TrimRight(name, "?")
		t.cols[i] = column{head: bare, optional: len(name) - len(bare), ids: bare == "ID",
			natural: widths.StringWidth(bare)}
	}
	return t
}

// table prints rows under a head line, in aligned columns.
func table(w io.Writer, s screen, head string, rows [][]string) error {
	t := newTabular(w, s, head, strings.Count(head, " | ")+1)
	return firstError(t.print(rows), t.end())
}

// fields prints names and values in two columns.
func fields(w io.Writer, s screen, rows [][]string) error {
	t := newTabular(w, s, "", 2)
	return firstError(t.print(rows), t.end())
}

// print prints rows. Cells come from other processes, so control characters are left out.
func (t *tabular) print(rows [][]string) error {
	if len(rows) == 0 {
		return nil // no heads over nothing
	}
	for _, r := range rows {
		for i := range t.cols {
			r[i] = plain(r[i])
			t.cols[i].natural = max(t.cols[i].natural, widths.StringWidth(r[i]))
			t.cols[i].ids = t.cols[i].ids && len(r[i]) == idDigits
		}
	}
	t.fit()
	if !t.begun {
		t.begun = true
		heads := make([]string, len(t.cols))
		for i, c := range t.cols {
			heads[i] = c.head
		}
		t.row(heads, func(int) *color.Color { return titles })
	}
	for _, r := range rows {
		t.row(r, func(i int) *color.Color {
			if t.cols[i].head == "STATE" {
				return stateInk(r[i])
			}
			return nil
		})
	}
	return t.w.Flush()
}

// end says which columns were left out.
func (t *tabular) end() error {
	var out []string
	for _, c := range t.cols {
		if c.hidden {
			out = append(out, c.head)
		}
	}
	if len(out) > 0 {
		for _, line := range wrap("(too narrow for "+strings.Join(out, ", ")+")", t.screen.columns) {
			fmt.Fprintln(t.w, t.screen.in(remarks, line))
		}
	}
	return t.w.Flush()
}

// fit gives the columns their widths.
func (t *tabular) fit() {
	most := 0
	for i := range t.cols {
		t.cols[i].width = t.cols[i].natural
	}
	room := t.screen.columns
	if room <= 0 || t.sum(idDigits*idDigits) <= room {
		return
	}
	for i := range t.cols {
		if t.cols[i].ids {
			t.cols[i].width = min(t.cols[i].width, shortID)
		}
		most = max(most, t.cols[i].width)
	}
	for !t.begun && t.sum(leastText) > room && t.hide() {
	}
	for t.sum(most) > room && most > 1 {
		most--
	}
	for i := range t.cols {
		t.cols[i].width = min(t.cols[i].width, most)
	}
}

// sum is how wide the table is when no column is wider than most.
func (t *tabular) sum(most int) (sum int) {
	for _, c := range t.cols {
		if !c.hidden {
			sum += min(c.width, most) + gap
		}
	}
	return sum - gap
}

// hide leaves out one more column, if there is one that may be.
func (t *tabular) hide() bool {
	which := -1
	for i, c := range t.cols {
		if !c.hidden && c.optional > 0 && (which < 0 || c.optional >= t.cols[which].optional) {
			which = i
		}
	}
	if which >= 0 {
		t.cols[which].hidden = true
	}
	return which >= 0
}

// row prints one row, on as many lines as its longest cell needs.
func (t *tabular) row(cells []string, ink func(i int) *color.Color) {
	parts := make([][]string, len(t.cols))
	lines := 1
	for i, c := range t.cols {
		switch {
		case c.hidden:
			continue
		case c.ids && len(cells[i]) == idDigits:
			parts[i] = []string{cells[i][:min(c.width, idDigits)]}
		case t.screen.columns > 0:
			parts[i] = wrap(cells[i], c.width)
		default:
			parts[i] = []string{cells[i]}
		}
		lines = max(lines, len(parts[i]))
	}
	for n := range lines {
		blank := 0 // columns to fill before the next text
		for i, c := range t.cols {
			if c.hidden {
				continue
			}
			text := ""
			if n < len(parts[i]) {
				text = parts[i][n]
			}
			if text != "" {
				t.w.WriteString(strings.Repeat(" ", blank) + t.screen.in(ink(i), text)) // its error stays for Flush
				blank = 0
			}
			blank += max(c.width-widths.StringWidth(text), 0) + gap
		}
		t.w.WriteByte('\n')
	}
}

// wrap breaks text into lines of at most width columns: between words, and within those that are longer.
func wrap(text string, width int) (lines []string) {
	if width <= 0 || widths.StringWidth(text) <= width {
		return []string{text}
	}
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && widths.StringWidth(line)+1+widths.StringWidth(word) <= width {
			line += " " + word
			continue
		}
		if line != "" {
			lines = append(lines, line)
		}
		for widths.StringWidth(word) > width {
			part := widths.Truncate(word, width, "")
			if part == "" {
				part = string([]rune(word)[:1]) // a wide letter, and one column
			}
			lines, word = append(lines, part), word[len(part):]
		}
		line = word
	}
	return append(lines, line)
}

// say tells people something beside a verb's output.
func (c *cli) say(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		_ = hanging(c.term.err, c.term.errScreen, "", nil, line) // as all that is said on standard error
	}
}

// hanging prints text behind what stands before its first line, in lines that fit the screen.
func hanging(w io.Writer, s screen, before string, ink *color.Color, text string) error {
	indent := widths.StringWidth(before)
	before = s.in(ink, before)
	for _, line := range wrap(text, max(s.columns-indent, 0)) {
		if _, err := fmt.Fprintln(w, before+line); err != nil {
			return err
		}
		before = strings.Repeat(" ", indent)
	}
	return nil
}

// firstError returns the first error that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
