package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon"
	"tendril/store/object"
)

func (c *cli) topVerb() *cobra.Command {
	var limit int
	var once bool
	live := liveTop{c: c, order: orders[0]}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show your largest objects with their holders, and the device memory of programs",
		Long: "Show your largest objects with their holders, and the device memory of programs. On a terminal the list is live:\n" +
			"q quits, s, a, r and n sort by size, age, references and name. Elsewhere, or with --once, it is printed once.",
		Example: "  tendril top\n  tendril top --once -n 5\n  tendril top --json",
		GroupID: "store",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return usagef("--number %d: want a number from 1 on", limit)
			}
			if live.interval < leastInterval {
				return usagef("--interval %v: want a time from %v on", live.interval, leastInterval)
			}
			return c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
				if c.term.isOut && isTerminal(c.term.in) && !c.json && !once && !cmd.Flags().Changed("number") {
					live.conn = conn
					return live.run(cmd.Context())
				}
				return c.topOnce(ctx, conn, limit)
			})(cmd, nil)
		},
	}
	cmd.Flags().IntVarP(&limit, "number", "n", 20, "print this many objects, once")
	cmd.Flags().BoolVar(&once, "once", false, "print the list once, also on a terminal")
	cmd.Flags().DurationVar(&live.interval, "interval", 2*time.Second, "time between two updates of the live list")
	return c.jsonFlag(cmd)
}

const leastInterval = 100 * time.Millisecond

func (c *cli) topOnce(ctx context.Context, conn *client.Conn, limit int) error {
	list, err := admin.Of(conn).Top(ctx, limit)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(append([]object.Held{}, list...)) // none is [], not null
	}
	s, err := nodeStatus(ctx, conn)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		c.say("You have no objects.")
	}
	return firstError(table(c.term.out, c.term.screen, topHead, topRows(list)), c.printPrograms(s))
}

const topHead = "ID | SIZE | CLASS?? | STATE??? | AGE? | REFS?? | NAME | HELD BY?"

func topRows(list []object.Held) [][]string {
	rows := make([][]string, len(list))
	for i, o := range list {
		var holders []string
		for _, h := range o.Holders {
			holders = append(holders, fmt.Sprintf("%s (pid %d) for %s", orDash(h.Program), h.PID, since(h.Since)))
		}
		rows[i] = []string{
			o.ID.String(), size(o.SizeBytes), o.Class.String(), o.State.String(), since(o.Created),
			strconv.Itoa(o.Refs), nameOf(o.Info), orDash(strings.Join(holders, ", ")),
		}
	}
	return rows
}

// printPrograms shows the programs that have some of the devices' own memory, and those whose links are slow, where
// there are any.
func (c *cli) printPrograms(s daemon.Status) error {
	programs := map[uint64]daemon.SessionStatus{}
	for _, session := range s.Sessions {
		programs[session.ID] = session
	}
	var rows [][]string
	for _, w := range s.Workers {
		if p, ok := programs[w.Session]; ok && w.DeviceBytes > 0 {
			rows = append(rows, []string{orDash(p.Program), strconv.Itoa(p.PID), p.Tenant, size(w.DeviceBytes),
				w.Platform, since(p.Since)})
		}
	}
	if len(rows) == 0 {
		return c.compressedSection(s)
	}
	return firstError(c.section("programs on devices",
		"PROGRAM | PID | TENANT? | DEVICE MEMORY | PLATFORM?? | FOR?", rows), c.compressedSection(s))
}
