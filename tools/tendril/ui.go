package main

import (
	"fmt"
	"tendril/client"

	"github.com/spf13/cobra"
)

func (c *cli) uiVerb() *cobra.Command {
	return &cobra.Command{
		Use:     "ui",
		Short:   "Print the address of the daemon's page, with a key to it",
		Long:    "Print the address of the daemon's page. It carries a key that is good for a day: who has the address sees what you see.\nThe daemon shows a page when it was started with --http 127.0.0.1:7434.",
		Example: "  tendril ui\n  firefox \"$(tendril ui)\"",
		GroupID: "node",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(conn *client.Conn, _ []string) error {
			address, err := conn.OpenPage()
			if err == nil {
				fmt.Fprintln(c.term.out, address)
			}
			return err
		}),
	}
}
