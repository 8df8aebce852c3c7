package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
)

func (c *cli) topVerb() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "top",
		Short:   "Show your largest objects, who holds them and since when",
		Example: "  tendril top\n  tendril top -n 5 --json",
		GroupID: "store",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			conn, err := c.dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			list, err := conn.Top(limit)
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(list)
			}
			return c.printTop(list)
		},
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
