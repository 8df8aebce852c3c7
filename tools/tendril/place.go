package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon"
)

func (c *cli) placeVerb() *cobra.Command {
	var policy string
	var explain bool
	cmd := &cobra.Command{
		Use:   "place NAME|ID",
		Short: "Show where a published object's next replica would go, and where a get fetches it from",
		Long: "Show which node would get a published object's next replica, and which node a get on this one would fetch it from.\n" +
			"Policies: spread (the default: evenly, by free memory), pack (the fullest node that has room), near NODE. With\n" +
			"--explain every node is listed with the reason for its rank.",
		Example: "  tendril place weights\n  tendril place weights --policy 'near gpubox' --explain\n  tendril place weights --json",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			return c.place(cmd.Context(), conn, args[0], policy, explain)
		})(cmd, args)
	}
	cmd.Flags().StringVar(&policy, "policy", "", "the `POLICY`: spread, pack or 'near NODE'")
	cmd.Flags().BoolVar(&explain, "explain", false, "list every node with the reason for its rank")
	return c.jsonFlag(cmd)
}

func (c *cli) place(ctx context.Context, conn *client.Conn, what, policy string, explain bool) error {
	id, name, err := idOrName(ctx, conn, what)
	if err != nil {
		return err
	}
	raw, err := admin.Of(conn).Place(ctx, id, name, policy)
	if err != nil {
		return fmt.Errorf("place %s: %w", what, err)
	}
	var s daemon.PlaceStatus
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("the daemon's answer: %w", err)
	}
	switch {
	case c.json:
		return c.printJSON(s)
	case explain:
		return c.explainPlace(s)
	}
	fmt.Fprintf(c.term.out, "next replica: %s\nget here: %s\n", first(s.Targets, "no node (--explain says why)"),
		first(s.Sources, "from this node's memory"))
	return nil
}

// first names the best node that can be.
func first(list []daemon.PlaceChoice, none string) string {
	if len(list) == 0 || !list[0].Can {
		return none
	}
	return plain(list[0].Node)
}

func (c *cli) explainPlace(s daemon.PlaceStatus) error {
	var rows [][]string
	for _, x := range []struct {
		what string
		list []daemon.PlaceChoice
	}{{"replica", s.Targets}, {"get", s.Sources}} {
		for i, p := range x.list {
			place := fmt.Sprint(i + 1)
			if !p.Can {
				place = "-"
			}
			rows = append(rows, []string{x.what, place, plain(p.Node), plain(p.Why)})
		}
	}
	return table(c.term.out, c.term.screen, "FOR | PLACE | NODE | WHY", rows)
}
