package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/daemon"
)

const sessionExample = `  tendril session ls
  tendril session kill 17          # its program's calls fail from then on; what it had is given back`

func (c *cli) sessionVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "List the OpenCL programs that use the node, and end one's session",
		Long: "A session is one OpenCL program's use of this node: its workers, its buffers, its place in the queues. To end one leaves the program\n" +
			"running: its calls return errors, as when a device is lost. Yours are the sessions of your tenant; root and the daemon's own user may\n" +
			"end any. The daemon asked is this machine's.",
		Example: sessionExample,
		GroupID: "opencl",
	}
	cmd.AddCommand(c.sessionListVerb(), c.sessionKillVerb())
	return cmd
}

func (c *cli) sessionListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls",
		Short:   "List the sessions of this node",
		Example: "  tendril session ls\n  tendril session ls --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(conn *client.Conn, _ []string) error {
			s, err := nodeStatus(conn)
			switch {
			case err != nil:
				return err
			case c.json && s.Sessions == nil:
				return c.printJSON([]daemon.SessionStatus{})
			case c.json:
				return c.printJSON(s.Sessions)
			}
			return table(c.term.out, sessionHead, sessionRows(s))
		}),
	})
}

func (c *cli) sessionKillVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "kill ID…",
		Short:   "End sessions: their workers, and all that they have",
		Long:    "End sessions: their workers, and all that they have. Those that cannot be ended are reported and the others are.",
		Example: "  tendril session kill 17\n  tendril session kill 17 18 --json",
		Args:    cobra.MinimumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return c.sessionsToComplete(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			ids := make([]uint64, len(args))
			for i, text := range args {
				id, err := strconv.ParseUint(text, 10, 64)
				if err != nil || id == 0 {
					return usagef("%q: want the number of a session: tendril session ls", text)
				}
				ids[i] = id
			}
			return c.endSessions(ids)
		},
	}
	return c.jsonFlag(cmd)
}

func (c *cli) endSessions(ids []uint64) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ended := []uint64{}
	var faults []error
	for _, id := range ids {
		if err := conn.EndSession(id); err != nil {
			faults = append(faults, fmt.Errorf("session kill %d: %w", id, err))
			continue
		}
		ended = append(ended, id)
	}
	if c.json {
		faults = append(faults, c.printJSON(map[string][]uint64{"ended": ended}))
	}
	return errors.Join(faults...)
}

// sessionsToComplete are the sessions' numbers with their programs, for the shell; none where nobody answers.
func (c *cli) sessionsToComplete() (list []string) {
	conn, err := c.dial()
	if err != nil {
		return nil
	}
	defer conn.Close()
	s, err := nodeStatus(conn)
	if err != nil {
		return nil
	}
	for _, x := range s.Sessions {
		list = append(list, fmt.Sprintf("%d\t%s, pid %d", x.ID, plain(x.Program), x.PID))
	}
	return list
}

// nodeStatus asks for the whole status.
func nodeStatus(conn *client.Conn) (s daemon.Status, err error) {
	raw, err := conn.Status()
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("the daemon's status: %w", err)
	}
	return s, nil
}
