package main

import (
	"io"
	"os"

	"github.com/fatih/color"
	"golang.org/x/term"
)

// screen is what is known of where output goes. The zero value is a file or a pipe: there nothing is fitted or
// coloured.
type screen struct {
	columns, rows int // of the terminal; 0: no terminal, or one that does not say
	colours       bool
}

// terminal is what a verb talks to, so that tests can stand in for it.
type terminal struct {
	in                *os.File
	out, err          io.Writer
	isOut             bool // out is a terminal
	isErr             bool // err is a terminal: progress may be shown
	screen, errScreen screen
}

// ownTerminal is what this process was started with.
func ownTerminal() terminal {
	return terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr, isOut: isTerminal(os.Stdout),
		isErr: isTerminal(os.Stderr), screen: screenOf(os.Stdout), errScreen: screenOf(os.Stderr)}
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// screenOf looks at a file. NO_COLOR is what no-color.org says: set, and not empty.
func screenOf(f *os.File) (s screen) {
	if !isTerminal(f) {
		return screen{}
	}
	if columns, rows, err := term.GetSize(int(f.Fd())); err == nil {
		s.columns, s.rows = columns, rows
	}
	kind := os.Getenv("TERM")
	s.colours = os.Getenv("NO_COLOR") == "" && kind != "" && kind != "dumb"
	return s
}

// The colours, by what they say.
var (
	titles  = ink(color.Bold)
	fine    = ink(color.FgGreen)
	doubts  = ink(color.FgYellow)
	faults  = ink(color.FgRed)
	remarks = ink(color.Faint)
)

// ink is a colour that does not ask what the terminal is: a screen knows.
func ink(a color.Attribute) *color.Color {
	c := color.New(a)
	c.EnableColor()
	return c
}

// in writes s in a colour, where there are colours; nil is none.
func (s screen) in(c *color.Color, text string) string {
	if !s.colours || c == nil || text == "" {
		return text
	}
	return c.Sprint(text)
}

// stateInk is the colour of a state's word; nil for what is neither good nor bad.
func stateInk(state string) *color.Color {
	switch state {
	case good, "good", "ready", "up":
		return fine
	case notable:
		return doubts
	case faulty, "failed", "revoked", "expired", "damaged":
		return faults
	}
	return nil
}

// The states of what doctor found.
const (
	good    = "ok"
	notable = "warn" // it works, and not as well as it could
	faulty  = "bad"
)
