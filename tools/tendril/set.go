package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
)

func (c *cli) setVerb() *cobra.Command {
	var change client.Change
	var pin, unpin bool
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:     "set NAME|ID",
		Short:   "Change an object's labels, how long it lives, and whether it may go to disk",
		Example: "  tendril set model --persist\n  tendril set frame --ttl 10m        # from now on; 0 ends the limit\n  tendril set hot --pin\n  tendril set photo --label year=2026 --label kind=raw",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if pin || unpin {
				change.Pinned = &pin
			}
			if cmd.Flags().Changed("ttl") {
				change.TTL = &ttl
			}
			if change.Pinned == nil && change.TTL == nil && change.Labels == nil && !change.Persist {
				return usagef("nothing to set: name a flag")
			}
			conn, err := c.dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			info, err := lookup(conn, args[0])
			if err == nil {
				err = conn.Update(info.ID, change)
			}
			if err != nil {
				return fmt.Errorf("set %s: %w", args[0], err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&pin, "pin", false, "keep it in memory whatever is short of it")
	cmd.Flags().BoolVar(&unpin, "unpin", false, "let it go to disk again")
	cmd.Flags().BoolVar(&change.Persist, "persist", false, "keep it on disk, too: it is there after a restart")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long it is to live from now on; 0: without end")
	cmd.Flags().StringToStringVar(&change.Labels, "label", nil, "KEY=VALUE; all labels given take the place of the old ones")
	cmd.MarkFlagsMutuallyExclusive("pin", "unpin")
	cmd.MarkFlagsMutuallyExclusive("persist", "ttl")
	return cmd
}

// labelText shows labels as a person writes them.
func labelText(labels map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ", ")
}
