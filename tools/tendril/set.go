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
		Short:   "Change an object's labels, lifetime and pinning",
		Example: "  tendril set model --persist\n  tendril set frame --ttl 10m        # from now on; 0: no limit\n  tendril set hot --pin\n  tendril set photo --label year=2026 --label kind=raw",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if pin || unpin {
				change.Pinned = &pin
			}
			if cmd.Flags().Changed("ttl") {
				change.TTL = &ttl
			}
			if ttl < 0 {
				return usagef("--ttl %v: want 0 (no limit) or more", ttl)
			}
			if change.Pinned == nil && change.TTL == nil && change.Labels == nil && !change.Persist {
				return usagef("nothing to set: give at least one flag")
			}
			conn, err := c.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			info, err := lookup(cmd.Context(), conn, args[0])
			if err == nil {
				err = conn.Update(cmd.Context(), info.ID, change)
			}
			if err != nil {
				return fmt.Errorf("set %s: %w", args[0], err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&pin, "pin", false, "keep it in memory, even when memory is short")
	cmd.Flags().BoolVar(&unpin, "unpin", false, "allow spilling it to disk again")
	cmd.Flags().BoolVar(&change.Persist, "persist", false, "also keep it on disk, so that it survives a restart")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long it lives from now on; 0: no limit")
	cmd.Flags().StringToStringVar(&change.Labels, "label", nil, "`KEY=VALUE`; the labels given replace all old ones")
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
