// Command tendril is the one binary of a node: the command line, the daemon, and, started again by the daemon, its
// probes and workers. Each verb stands in a file of its own; this package wires rooms together and holds no logic that
// they could hold.
//
// Trust: what the daemon answers is believed (the socket's owner is the kernel's word); what stands in files, arguments
// and the environment is checked here.
//
// Locks: none. A process runs one verb.
package main

import (
	"context"
	"os"

	"tendril/forwarding/stacks"
)

func main() {
	if dir := os.Getenv(stacks.Variable); dir != "" {
		stacks.OnQuit(dir) // for as long as the process is
	}
	os.Exit(run(context.Background(), ownTerminal(), os.Args[1:]))
}
