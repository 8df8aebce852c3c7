package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/daemon"
	"tendril/store/object"
)

func (c *cli) drainVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain [NODE]",
		Short: "Move your published objects away from a node",
		Long: "Move your published objects away from a node (default: this one) to the nodes with the most free memory, one by one.\n" +
			"Objects that are not published stay. If one cannot be moved, the command reports it and moves the others. It can be\n" +
			"stopped at any time, and started again.",
		Example: "  tendril drain\n  tendril drain oldbox",
		GroupID: "store",
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.asking(func(conn *client.Conn, args []string) error {
			return c.drain(cmd.Context(), conn, append(args, "")[0])
		})(cmd, args)
	}
	return cmd
}

// drain moves what the caller has published there. node "" is the daemon's.
func (c *cli) drain(ctx context.Context, conn *client.Conn, node string) error {
	raw, err := conn.ClusterStatus()
	if err != nil {
		return err
	}
	var cluster daemon.ClusterInfo
	if err := json.Unmarshal(raw, &cluster); err != nil {
		return fmt.Errorf("the daemon's answer: %w", err)
	}
	if node == "" {
		node = cluster.Name
	}
	if !slices.ContainsFunc(cluster.Nodes, func(n daemon.ClusterNode) bool { return n.Name == node }) {
		return fmt.Errorf("%w: the cluster has no node %q", object.ErrNotFound, node)
	}
	var there []daemon.PublishedStatus
	total := uint64(0)
	for o, err := range decoded[daemon.PublishedStatus](conn.EachPublished(""), "published objects") {
		if err != nil {
			return err
		}
		if slices.Contains(o.Nodes, node) {
			there = append(there, o)
			total += o.SizeBytes
		}
	}
	return c.drainAll(ctx, conn, node, there, total)
}

func (c *cli) drainAll(ctx context.Context, conn *client.Conn, node string, there []daemon.PublishedStatus,
	total uint64) error {
	p := c.newProgress("drain", total)
	defer p.end()
	var faults []error
	moved := 0
	for _, o := range there {
		_, err := c.awaitReplicas(ctx, conn, o.ID, "", client.ReplicateOptions{Move: true, From: node}, true)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, object.ErrNotFound): // it was deleted meanwhile
		case err != nil:
			faults = append(faults, fmt.Errorf("%s: %w", o.Name, err))
		default:
			moved++
		}
		p.add(int(o.SizeBytes))
	}
	c.say(fmt.Sprintf("%d of %d published objects were moved away from %s.", moved, len(there), plain(node)))
	return errors.Join(faults...)
}
