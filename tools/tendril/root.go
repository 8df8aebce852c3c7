package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tendril/ipc"
)

// cli is one run of the command line.
type cli struct {
	term    terminal
	socket  string   // --socket
	servers []string // --server
	json    bool     // --json
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, t terminal, args []string) int {
	c := &cli{term: t}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(t.in)
	root.SetOut(t.out)
	root.SetErr(t.err)
	return report(t.err, markUsage(root.ExecuteContext(ctx)))
}

// markUsage tells cobra's own complaints, which have no type, from those of the verbs.
func markUsage(err error) error {
	if err == nil {
		return nil
	}
	for _, prefix := range []string{"unknown command", "unknown flag", "unknown shorthand", "flag needs", "invalid argument", "accepts ", "requires at least", "required flag", "if any flags in the group", "bad flag syntax"} {
		if strings.HasPrefix(err.Error(), prefix) {
			return usageError{err}
		}
	}
	return err
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "tendril",
		Short: "A shared-memory object store that reaches remote GPUs",
		Long: "Tendril keeps buffers that processes share without copying, and lets unmodified OpenCL programs use\n" +
			"devices through the node's daemon.\n\n" + exitHelp,
		Example:       "  tendril daemon &\n  tendril put photo.jpg\n  tendril ls\n  tendril run -- clinfo -l",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	root.PersistentFlags().StringVar(&c.socket, "socket", "", "the daemon's socket (default "+ipc.DefaultSocket()+")")
	root.PersistentFlags().StringArrayVar(&c.servers, "server", nil, "the daemon of another machine: HOST:PORT (after tendril login), ssh://USER@HOST or local; run takes several")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddGroup(&cobra.Group{ID: "node", Title: "The node:"}, &cobra.Group{ID: "store", Title: "Objects:"}, &cobra.Group{ID: "opencl", Title: "OpenCL programs:"})
	root.AddCommand(
		c.daemonVerb(), c.statusVerb(), c.versionVerb(), c.configVerb(), c.tokenVerb(), c.peerVerb(), c.loginVerb(), c.uiVerb(), c.proxyVerb(),
		c.putVerb(), c.getVerb(), c.lsVerb(), c.statVerb(), c.rmVerb(), c.setVerb(), c.mvVerb(), c.shareVerb(), c.topVerb(), c.watchVerb(), c.composeVerb(), c.streamVerb(), c.scrubVerb(),
		c.devicesVerb(), c.runVerb(), c.traceVerb(), c.envVerb(), c.sessionVerb(),
		workerVerb(), probeVerb(), c.manVerb(),
	)
	return root
}

// socketPath is where the daemon is looked for.
func (c *cli) socketPath() string {
	if c.socket != "" {
		return c.socket
	}
	return ipc.DefaultSocket()
}

// serverList is which other machines are asked: --server, else TENDRIL_SERVER (commas between them) unless a socket is named.
func (c *cli) serverList() ([]string, error) {
	list := c.servers
	if len(list) == 0 && c.socket == "" {
		list = strings.FieldsFunc(os.Getenv("TENDRIL_SERVER"), func(r rune) bool { return r == ',' })
	}
	if len(c.servers) > 0 && c.socket != "" {
		return nil, usagef("--server and --socket: one or the other")
	}
	for _, s := range list {
		if s == "" || strings.ContainsAny(s, ", \t\n") {
			return nil, usagef("--server %q: want HOST:PORT, ssh://USER@HOST, or local", s)
		}
	}
	return list, nil
}

// jsonFlag gives a listing its --json.
func (c *cli) jsonFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&c.json, "json", false, "print JSON")
	return cmd
}

// printJSON writes v as indented JSON.
func (c *cli) printJSON(v any) error {
	enc := json.NewEncoder(c.term.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
