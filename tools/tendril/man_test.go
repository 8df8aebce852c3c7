package main

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestManPage checks that every command and flag stands in tendril(1), and that nothing in it is taken for a request by
// mistake.
func TestManPage(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(context.Background(), terminal{in: os.Stdin, out: &out, err: &errs}, []string{"man"}); code != 0 {
		t.Fatalf("%d: %s", code, &errs)
	}
	page := out.String()
	for _, section := range []string{"NAME", "SYNOPSIS", "OPTIONS", "OBJECTS", "OPENCL PROGRAMS", "THE NODE",
		"EXAMPLES", "ENVIRONMENT", "FILES", "EXIT STATUS"} {
		if !strings.Contains(page, "\n.SH "+section+"\n") {
			t.Errorf("no section %s", section)
		}
	}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		_, after, ok := strings.Cut(page, "\n.SS "+roff(c.UseLine())+"\n")
		if !ok {
			t.Errorf("no %q", c.UseLine())
		}
		own, _, _ := strings.Cut(after, "\n.S")
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" && !strings.Contains(own, roff("--"+f.Name)+`"`) {
				t.Errorf("%s: no --%s", c.CommandPath(), f.Name)
			}
		})
		for _, below := range c.Commands() {
			visit(below)
		}
	}
	for _, c := range (&cli{}).root(nil).Commands() {
		visit(c)
	}
	known := regexp.MustCompile(`^\.(TH|SH|SS|PP|TP|EX|EE|B|BR|I|RI)( |$)`)
	for l := range strings.SplitSeq(page, "\n") {
		if (strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'")) && !known.MatchString(l) {
			t.Errorf("%q is a request that is not meant", l)
		}
	}
	_, after, _ := strings.Cut(page, ".SH EXIT STATUS")
	codes, _, _ := strings.Cut(after, ".SH")
	for code := exitOK; code <= exitTimeout; code++ {
		if n := strings.Count(codes, "\n.B "+strconv.Itoa(code)+"\n"); n != 1 {
			t.Errorf("exit status %d is told %d times", code, n)
		}
	}
	for _, code := range []int{exitNotRunnable, exitNoProgram, 130} {
		if !strings.Contains(codes, strconv.Itoa(code)) {
			t.Errorf("exit status %d is not told", code)
		}
	}
}
