package main

import (
	"context"

	"github.com/spf13/cobra"

	"tendril/client"
)

// mostCompleted bounds what a shell is offered.
const mostCompleted = 200

// completing is what a shell asks that completes with what a daemon has: nothing where none answers. Nothing else may
// be said then.
func (c *cli) completing(offer func(ctx context.Context, conn *client.Conn,
	typed string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		c.quietBuild = true
		conn, err := c.dial(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer conn.Close()
		return offer(cmd.Context(), conn, typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// files has the shell offer files.
func files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// words has the shell offer these, and no files.
func words(list ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
}
