package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// helpOf is what a command's --help prints into a pipe (columns: 0) or on a terminal.
func helpOf(t *testing.T, columns int, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	on := terminal{in: os.Stdin, out: &out, err: &errs, screen: screen{columns: columns}}
	if code := run(context.Background(), on, append(args, "--help")); code != 0 || errs.Len() > 0 {
		t.Fatalf("%v: %d %s", args, code, &errs)
	}
	return out.String()
}

// The help of every command fits 80 columns, on a terminal and in a pipe; wider terminals get longer lines.
func TestHelpOfEveryCommandFits(t *testing.T) {
	commands := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		commands++
		args := strings.Fields(c.CommandPath())[1:]
		what := strings.Join(args, " ")
		piped := helpOf(t, 0, args...)
		fitted(t, what, 80, piped)
		if piped != helpOf(t, 80, args...) {
			t.Errorf("%s: a pipe has other lines than a terminal of 80 columns", what)
		}
		if strings.Contains(piped, "(default [])") || strings.Contains(piped, "(default )") {
			t.Errorf("%s: a default that says nothing: %s", what, piped)
		}
		if c.HasExample() && !strings.Contains(piped, "\nExamples:\n") || !strings.Contains(piped, "\nFlags:\n") ||
			!strings.Contains(piped, "Usage:\n  tendril") {
			t.Errorf("%s: %s", what, piped)
		}
		for _, below := range c.Commands() {
			if !below.Hidden {
				visit(below)
			}
		}
	}
	visit((&cli{}).root(nil))
	if commands < 40 {
		t.Errorf("%d commands", commands)
	}
	if wide := helpOf(t, 160, "doctor"); widest(wide) <= 80 {
		t.Error(wide)
	}
}

func widest(text string) (most int) {
	for line := range strings.SplitSeq(text, "\n") {
		most = max(most, widths.StringWidth(line))
	}
	return most
}

// The first page that a newcomer sees.
func TestHelpOfTendril(t *testing.T) { goldenText(t, "help-80", helpOf(t, 80)) }

// An example that is too long says its remark first, and is broken where a shell goes on.
func TestLongExamples(t *testing.T) {
	for _, x := range []struct{ line, want string }{
		{"  tendril ls # all", "  tendril ls # all\n"},
		{"  tendril put photo.jpg --replace # a remark that takes more than there is",
			"  # a remark that takes more than\n  # there is\n  tendril put photo.jpg --replace\n"},
		{"  tendril compose x --meta '{\"a b\": 1}' --label kind=raw",
			"  tendril compose x --meta \\\n      '{\"a b\": 1}' --label kind=raw\n"},
	} {
		if got := fitExample(x.line, 36); got != x.want {
			t.Errorf("%q: %q, want %q", x.line, got, x.want)
		}
	}
}
