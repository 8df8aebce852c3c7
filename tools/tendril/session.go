package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon"
	"tendril/store/object"
)

const sessionExample = `  tendril session ls
  tendril session show 17          # what it does now, and where its time went
  tendril session end 17           # its program's OpenCL calls fail from then on`

func (c *cli) sessionVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "List the OpenCL programs that use this node, show what they do, and end sessions",
		Long: "A session is one OpenCL program's use of this node, with its workers and buffers. If you end a session, the program\n" +
			"goes on, but its OpenCL calls return errors, as if a device were lost. You may end sessions of your tenant; root and\n" +
			"the daemon's own user may end any. The command works on this machine's daemon only.",
		Example: sessionExample,
		GroupID: "opencl",
	}
	cmd.AddCommand(c.sessionListVerb(), c.sessionShowVerb(), c.sessionEndVerb())
	return cmd
}

func (c *cli) sessionListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls",
		Short:   "List the sessions of this node",
		Example: "  tendril session ls\n  tendril session ls --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			return printListing(c, sessionsOf(ctx, conn), "No OpenCL program that you may see uses this node.", sessionHead,
				sessionRow)
		}),
	})
}

// sessionsOf lists the sessions page by page; a daemon that knows no pages of them has them in its status.
func sessionsOf(ctx context.Context, conn *client.Conn) iter.Seq2[daemon.SessionStatus, error] {
	return func(yield func(daemon.SessionStatus, error) bool) {
		for x, err := range decoded[daemon.SessionStatus](admin.Of(conn).EachSession(ctx), "sessions") {
			if errors.Is(err, object.ErrUnsupported) {
				sessionsOfStatus(ctx, conn, yield)
				return
			}
			if !yield(x, err) {
				return
			}
		}
	}
}

func sessionsOfStatus(ctx context.Context, conn *client.Conn, yield func(daemon.SessionStatus, error) bool) {
	s, err := nodeStatus(ctx, conn)
	if err != nil {
		yield(daemon.SessionStatus{}, err)
	}
	for _, x := range s.Sessions {
		if !yield(x, nil) {
			return
		}
	}
}

func (c *cli) sessionEndVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "end ID…",
		Aliases:           []string{"kill"},
		Short:             "End sessions with their workers and buffers",
		Long:              "End sessions with their workers and buffers. If one session cannot be ended, the command reports it and ends the others.",
		Example:           "  tendril session end 17\n  tendril session end 17 18 --json",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.completing(sessionsToComplete),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids := make([]uint64, len(args))
			for i, text := range args {
				var err error
				if ids[i], err = sessionNumber(text); err != nil {
					return err
				}
			}
			return c.endSessions(cmd.Context(), ids)
		},
	}
	return c.jsonFlag(cmd)
}

func sessionNumber(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 {
		return 0, usagef("%q: want the number of a session: tendril session ls", text)
	}
	return id, nil
}

func (c *cli) endSessions(ctx context.Context, ids []uint64) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	ended := []uint64{}
	var faults []error
	for _, id := range ids {
		if err := admin.Of(conn).EndSession(ctx, id); err != nil {
			faults = append(faults,
				hinted{fmt.Errorf("session end %d: %w", id, err), "See which there are with: tendril session ls"})
			continue
		}
		ended = append(ended, id)
	}
	if c.json {
		faults = append(faults, c.printJSON(map[string][]uint64{"ended": ended}))
	}
	return errors.Join(faults...)
}

// sessionsToComplete are the sessions' numbers with their programs, for the shell.
func sessionsToComplete(ctx context.Context, conn *client.Conn, _ string) (list []string) {
	for x, err := range sessionsOf(ctx, conn) {
		if err != nil || len(list) == mostCompleted {
			break
		}
		list = append(list, fmt.Sprintf("%d\t%s, pid %d", x.ID, plain(x.Program), x.PID))
	}
	return list
}

// nodeStatus asks for the whole status.
func nodeStatus(ctx context.Context, conn *client.Conn) (s daemon.Status, err error) {
	raw, err := admin.Of(conn).Status(ctx)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("the daemon's status: %w", err)
	}
	return s, nil
}
