package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon/inspect"
)

func (c *cli) sessionShowVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:   "show ID",
		Short: "Show the commands that a session has in flight, and where its time went",
		Long: "Show a session's commands: those in flight, those that ended last, the time by kind of command and by kernel, and\n" +
			"calls of the driver that have not returned. Only the session's tenant, root and the daemon's own user may see them.\n\n" +
			"States: queued (the worker holds the command: it waits for an event, a build, the program or its turn), giving (the\n" +
			"worker is in the driver's call), submitted, running. Times are the worker's own: commands that were seen to end\n" +
			"together share the time. Times, and what ended last, are kept from the first look on, for 60 s after the last: TIMED\n" +
			"says of how many commands TIME is. tendril trace measures each command by itself.",
		Example:           "  tendril session show 17\n  tendril session show 17 --json | jq .in_flight",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completing(sessionsToComplete),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := sessionNumber(args[0])
			if err != nil {
				return err
			}
			return c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
				raw, err := admin.Of(conn).SessionCommands(ctx, id)
				if err != nil {
					return hinted{fmt.Errorf("session show %d: %w", id, err), "See which there are with: tendril session ls"}
				}
				if c.json {
					return c.printJSON(raw)
				}
				var told inspect.Commands
				if err := json.Unmarshal(raw, &told); err != nil {
					return fmt.Errorf("the daemon's answer: %w", err)
				}
				return c.printCommands(told)
			})(cmd, args)
		},
	})
}

func (c *cli) printCommands(told inspect.Commands) error {
	for _, note := range told.Notes {
		c.say("Note: " + plain(note) + ".")
	}
	var flying, calls, sums, last [][]string
	for _, x := range told.InFlight {
		flying = append(flying, []string{x.State, x.Kind, orDash(x.Kernel), brief(x.AgeSeconds),
			strconv.FormatUint(x.Queue, 10), orDash(x.Device), x.Worker})
	}
	for _, x := range told.Calls {
		calls = append(calls, []string{x.What, brief(x.Seconds), x.Worker, strconv.Itoa(x.PID)})
	}
	for _, x := range told.Sums {
		sums = append(sums, []string{x.Kind, orDash(x.Kernel), strconv.FormatUint(x.Count, 10),
			strconv.FormatUint(x.Failed, 10), strconv.FormatUint(x.Timed, 10), brief(x.Seconds), x.Worker})
	}
	for _, x := range told.Last {
		last = append(last, []string{x.Kind, orDash(x.Kernel), statusText(x.Status), brief(x.Seconds),
			brief(x.AgoSeconds), strconv.FormatUint(x.Queue, 10)})
	}
	err := c.section("in flight", "STATE | KIND | KERNEL | AGE | QUEUE?? | DEVICE? | WORKER???", flying)
	if told.More > 0 {
		_, _ = fmt.Fprintf(c.term.out, "and %d more\n", told.More) // as the section's own failure, that of the next one
	}
	if len(calls) > 0 {
		err = firstError(err, c.section("calls of the driver that have not returned", "CALL | FOR | WORKER? | PID?", calls))
	}
	return firstError(err,
		c.section("time by kind and kernel", "KIND | KERNEL | COUNT | FAILED? | TIMED | TIME | WORKER??", sums),
		c.section("ended last", "KIND | KERNEL | STATUS? | TOOK | AGO | QUEUE??", last))
}

// statusText is how a command ended: OpenCL's numbers of errors are below 0.
func statusText(status int32) string {
	if status < 0 {
		return fmt.Sprintf("error %d", status)
	}
	return "complete"
}

// brief is a time in seconds, to three digits or so.
func brief(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}
