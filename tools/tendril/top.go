package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/daemon"
)

func (c *cli) topVerb() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "top",
		Short:   "Show your largest objects, who holds them and since when, and what programs have of devices' memory",
		Example: "  tendril top\n  tendril top -n 5 --json",
		GroupID: "store",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(conn *client.Conn, _ []string) error {
			list, err := conn.Top(limit)
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(list)
			}
			if err := c.printTop(list); err != nil {
				return err
			}
			return c.printPrograms(conn)
		}),
	}
	cmd.Flags().IntVarP(&limit, "number", "n", 20, "how many")
	return c.jsonFlag(cmd)
}

func (c *cli) printTop(list []client.Held) error {
	rows := make([][]string, len(list))
	for i, o := range list {
		var holders []string
		for _, h := range o.Holders {
			holders = append(holders, fmt.Sprintf("%s (pid %d) for %s", orDash(h.Program), h.PID, since(h.Since)))
		}
		rows[i] = []string{
			o.ID.String(), size(o.SizeBytes), o.Class.String(), o.State.String(), since(o.Created), strconv.Itoa(o.Refs), orDash(o.Name), orDash(strings.Join(holders, ", ")),
		}
	}
	return table(c.term.out, "ID | SIZE | CLASS | STATE | AGE | REFS | NAME | HELD BY", rows)
}

// printPrograms shows the programs that have some of the devices' own memory, and those whose links are slow, where there are any.
func (c *cli) printPrograms(conn *client.Conn) error {
	raw, err := conn.Status()
	if err != nil {
		return err
	}
	var s daemon.Status
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	programs := map[uint64]daemon.SessionStatus{}
	for _, session := range s.Sessions {
		programs[session.ID] = session
	}
	var rows [][]string
	for _, w := range s.Workers {
		if p, ok := programs[w.Session]; ok && w.DeviceBytes > 0 {
			rows = append(rows, []string{orDash(p.Program), strconv.Itoa(p.PID), p.Tenant, size(w.DeviceBytes), w.Platform, since(p.Since)})
		}
	}
	if len(rows) == 0 {
		return c.compressedSection(s)
	}
	fmt.Fprintln(c.term.out)
	return firstError(table(c.term.out, "PROGRAM | PID | TENANT | DEVICE MEMORY | PLATFORM | FOR", rows), c.compressedSection(s))
}
