// Command tendril is the one binary of a node: the command line, the daemon, and, started again by the daemon, its probes and
// workers. Each verb stands in a file of its own; this package wires rooms together and holds no logic that they could hold.
//
// Trust: what the daemon answers is believed (the socket's owner is the kernel's word); what stands in files, arguments and the
// environment is checked here.
//
// Locks: none. A process runs one verb.
package main

import (
	"context"
	"io"
	"os"

	"tendril/forwarding/stacks"
)

// version is stamped by the build (Makefile); the driver library is stamped with the same.
var version = "dev"

// terminal is what a verb talks to, so that tests can stand in for it.
type terminal struct {
	in       *os.File
	out, err io.Writer
	isOut    bool // out is a terminal
	isErr    bool // err is a terminal: progress may be shown
}

func main() {
	if dir := os.Getenv(stacks.Variable); dir != "" {
		stacks.OnQuit(dir) // for as long as the process is
	}
	t := terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr, isOut: isTerminal(os.Stdout), isErr: isTerminal(os.Stderr)}
	os.Exit(run(context.Background(), t, os.Args[1:]))
}
