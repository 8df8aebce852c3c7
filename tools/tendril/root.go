package main

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"tendril/ipc"
)

// run executes one command line and returns its exit code.
func run(ctx context.Context, t terminal, args []string) int {
	c := &cli{term: t}
	root := c.root(args)
	root.SetArgs(args)
	root.SetIn(t.in)
	root.SetOut(t.out)
	root.SetErr(t.err)
	cmd, err := root.ExecuteContextC(ctx)
	return report(t.err, markUsage(cmd, err))
}

// markUsage tells cobra's own complaints about cmd, which have no type, from those of the verbs. Those about flags and
// about the arguments of our verbs have one already (flagError, sayUsage).
func markUsage(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	if m := exclusive.FindStringSubmatch(err.Error()); m != nil {
		return inLine(cmd, usagef("--%s: use one of them", strings.Join(strings.Fields(m[1]), " and --")))
	}
	if m := unknownVerb.FindStringSubmatch(err.Error()); m != nil {
		near := strings.Join(strings.Fields(m[2]), " or ")
		if near != "" {
			near = ": did you mean " + near + "?"
		}
		return usagef("there is no command %s%s", m[1], near)
	}
	for _, prefix := range []string{`unknown command "`, "requires at least ", "required flag(s) "} {
		if strings.HasPrefix(err.Error(), prefix) {
			if cmd.HasParent() {
				return inLine(cmd, usageError{err})
			}
			return usageError{err}
		}
	}
	return err
}

// unknownVerb is what cobra says of a command that is not there, with those that are near.
var unknownVerb = regexp.MustCompile(`^unknown command ("[^"]*") for "tendril"(?s:\s+Did you mean this\?\s+(.*))?`)

// exclusive is what cobra says of flags that exclude each other.
var exclusive = regexp.MustCompile(`^if any flags in the group .*\[([^]]+)\] were all set$`)

// root makes the command line for args. It leaves out what args cannot ask for and what takes long to make: a worker
// and a probe, which start often, want nothing of what users call, and only a shell that completes wants to know how.
func (c *cli) root(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "tendril",
		Short: "A shared-memory object store that reaches remote GPUs",
		Long: "Tendril keeps objects in memory that processes share without copying them. It runs the OpenCL commands of\n" +
			"unmodified programs on this node's devices, or on another machine's.\n\n" + exitHelp,
		Example:       "  tendril daemon &\n  tendril put photo.jpg\n  tendril ls\n  tendril run -- clinfo -l",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	root.PersistentFlags().StringVar(&c.socket, "socket", "",
		"`PATH` of the daemon's socket (default: your own daemon's where it answers, else "+ipc.SystemSocket+")")
	root.PersistentFlags().StringArrayVar(&c.servers, "server", nil,
		"the daemon of another machine: `HOST:PORT` (after tendril login), ssh://USER@HOST, local or "+
			"the path of a socket; run accepts several")
	root.SetFlagErrorFunc(flagError)
	root.AddGroup(&cobra.Group{ID: "node", Title: "The node:"}, &cobra.Group{ID: "store", Title: "Objects:"},
		&cobra.Group{ID: "opencl", Title: "OpenCL programs:"})
	first := ""
	if len(args) > 0 {
		first = args[0]
	}
	own := []*cobra.Command{workerVerb(), probeVerb(), keeperVerb(), importGPUVerb(), guardVerb()}
	root.AddCommand(own...)
	if slices.ContainsFunc(own, func(v *cobra.Command) bool { return v.Name() == first }) {
		root.CompletionOptions.DisableDefaultCmd = true
	} else {
		c.addUsersVerbs(root)
	}
	if strings.HasPrefix(first, cobra.ShellCompRequestCmd) {
		c.completeArguments(root)
	}
	sayUsage(root)
	fitHelp(root, c.term.screen.columns)
	endBySignals(root)
	return root
}

func (c *cli) addUsersVerbs(root *cobra.Command) {
	root.AddCommand(
		c.daemonVerb(), c.statusVerb(), c.versionVerb(), c.configVerb(), c.tokenVerb(), c.certificateVerb(),
		c.tenantVerb(), c.auditVerb(), c.clusterVerb(),
		c.peerVerb(), c.loginVerb(), c.logoutVerb(), c.serversVerb(), c.doctorVerb(), c.uiVerb(), c.proxyVerb(),
		c.putVerb(), c.getVerb(), c.lsVerb(), c.statVerb(), c.rmVerb(), c.setVerb(), c.mvVerb(), c.shareVerb(),
		c.publishVerb(), c.unpublishVerb(), c.placeVerb(), c.replicateVerb(), c.migrateVerb(), c.drainVerb(),
		c.topVerb(), c.watchVerb(), c.composeVerb(), c.streamVerb(), c.scrubVerb(),
		c.devicesVerb(), c.runVerb(), c.leaseVerb(), c.leasesVerb(), c.traceVerb(), c.envVerb(), c.sessionVerb(),
		c.manVerb(),
	)
	root.SetHelpCommandGroupID("node")
	root.SetCompletionCommandGroupID("node")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
}
