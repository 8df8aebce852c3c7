package main

import (
	"context"
	"errors"
	"fmt"
	"tendril/client"

	"github.com/spf13/cobra"
)

func (c *cli) rmVerb() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm NAME|ID…",
		Short: "Delete objects",
		Long: "Delete objects. Their names are free at once; their memory is freed when nobody uses them any more. If one object cannot\n" +
			"be deleted, the command reports it and deletes the others. A published object is deleted on every node.",
		Example: "  tendril rm photo.jpg\n  tendril rm a b 0123456789abcdef0123456789abcdef\n  tendril rm --force perhaps",
		GroupID: "store",
		Args:    cobra.MinimumNArgs(1),
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			var faults []error
			for _, what := range args {
				info, err := lookup(ctx, conn, what)
				if err == nil {
					err = conn.Delete(ctx, info.ID)
				}
				if code, _ := classify(err); err != nil && !(force && code == exitNotFound) {
					faults = append(faults, fmt.Errorf("rm %s: %w", what, err))
				}
			}
			return errors.Join(faults...)
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "ignore objects that do not exist")
	return cmd
}
