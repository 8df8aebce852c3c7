package main

import (
	"context"
	"tendril/client"

	"github.com/spf13/cobra"
)

func (c *cli) mvVerb() *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use:     "mv NAME NEWNAME",
		Short:   "Rename an object",
		Example: "  tendril mv result.new result --replace",
		GroupID: "store",
		Args:    cobra.ExactArgs(2),
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			return replaceable(conn.Rename(ctx, args[0], args[1], replace))
		}),
	}
	cmd.Flags().BoolVar(&replace, "replace", false,
		"replace the object that has the name; it is deleted once nobody uses it")
	return cmd
}
