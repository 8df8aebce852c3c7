package main

import (
	"context"
	"fmt"
	"tendril/client"
	"tendril/client/admin"

	"github.com/spf13/cobra"
)

func (c *cli) uiVerb() *cobra.Command {
	return &cobra.Command{
		Use:     "ui",
		Short:   "Print the address of the daemon's page, with a key",
		Long:    "Print the address of the daemon's page. The address contains a key that is valid for a day: whoever has it sees what\nyou see. The daemon has a page only if it was started with --http, such as --http 127.0.0.1:7434.",
		Example: "  tendril ui\n  firefox \"$(tendril ui)\"",
		GroupID: "node",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			address, err := admin.Of(conn).OpenPage(ctx)
			if err == nil {
				fmt.Fprintln(c.term.out, address)
			}
			return err
		}),
	}
}
