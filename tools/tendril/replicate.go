package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/daemon"
	"tendril/store/object"
)

// replicateEvery is the time between two questions how far a replica is.
const replicateEvery = 100 * time.Millisecond

// maxReplicas is what the cluster's metadata takes.
const maxReplicas = 64

func (c *cli) replicateVerb() *cobra.Command {
	var o client.ReplicateOptions
	var wait bool
	cmd := &cobra.Command{
		Use:   "replicate NAME|ID",
		Short: "Set how many nodes keep a published object",
		Long: "Set how many nodes keep a published object, or name a node that gets a replica, and wait until it is there. A replica\n" +
			"stays when memory is short. The cluster makes a new one when a node with a replica does not answer for some time.\n" +
			"More replicas than nodes are allowed: nodes that join get theirs then.",
		Example: "  tendril replicate weights --replicas 3\n  tendril replicate weights --to gpubox\n" +
			"  tendril replicate weights --replicas 2 --json",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReplicas(cmd, o.Wanted); err != nil {
			return err
		}
		if o.Wanted == 0 && o.To == "" {
			return usagef("replicate needs --replicas N or --to NODE")
		}
		return c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			return c.replicate(cmd.Context(), conn, args[0], o, wait)
		})(cmd, args)
	}
	cmd.Flags().Uint16Var(&o.Wanted, "replicas", 0, "keep it on `N` nodes")
	cmd.Flags().StringVar(&o.To, "to", "", "the `NODE` that gets it")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the replicas are there")
	return c.jsonFlag(cmd)
}

// checkReplicas checks --replicas, which has to be a number of nodes where it is given.
func checkReplicas(cmd *cobra.Command, n uint16) error {
	if cmd.Flags().Changed("replicas") && (n < 1 || n > maxReplicas) {
		return usagef("--replicas %d: want 1 to %d", n, maxReplicas)
	}
	return nil
}

func (c *cli) migrateVerb() *cobra.Command {
	o := client.ReplicateOptions{Move: true}
	cmd := &cobra.Command{
		Use:   "migrate NAME|ID --to NODE",
		Short: "Move a published object to another node",
		Long: "Move a published object to another node, and wait until it is there. The node that it leaves deletes it; programs there\n" +
			"that use it keep its memory until they release it. Of several replicas the one on this node is moved,\n" +
			"else the oldest, unless --from names another node.",
		Example: "  tendril migrate weights --to gpubox\n  tendril migrate weights --from old --to new",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.To == "" {
			return usagef("migrate needs --to NODE (tendril drain chooses the nodes itself)")
		}
		return c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			return c.replicate(cmd.Context(), conn, args[0], o, true)
		})(cmd, args)
	}
	cmd.Flags().StringVar(&o.To, "to", "", "the `NODE` that gets it")
	cmd.Flags().StringVar(&o.From, "from", "", "the `NODE` that gives it up (default: this one, else the oldest)")
	return c.jsonFlag(cmd)
}

// replicate asks until the object is as wanted, and shows what it came to.
func (c *cli) replicate(ctx context.Context, conn *client.Conn, what string, o client.ReplicateOptions,
	wait bool) error {
	id, name, err := idOrName(ctx, conn, what)
	if err != nil {
		return err
	}
	s, err := c.replicas(ctx, conn, id, name, o, wait)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if c.json {
		return c.printJSON(s)
	}
	fmt.Fprintf(c.term.out, "%s  %d of %s  %s\n", s.ID, s.Have, object.Counted(s.Wanted, "replica"), plain(strings.Join(s.Nodes, ", ")))
	return nil
}

// replicas asks for replicas until they are there, or where not to wait once.
func (c *cli) replicas(ctx context.Context, conn *client.Conn, id object.ID, name string, o client.ReplicateOptions,
	wait bool) (s daemon.ReplicateStatus, err error) {
	what := "replicating"
	if o.Move {
		what = "moving"
	}
	done := c.doing(what + " " + name)
	s, err = c.awaitReplicas(ctx, conn, id, name, o, wait)
	done()
	if err == nil && wait && s.Have < s.Wanted {
		c.say(fmt.Sprintf("%d of %s made; for the others there is no node now (%s).", s.Have, object.Counted(s.Wanted, "replica"),
			plain(s.Why)))
	}
	return s, err
}

// awaitReplicas is replicas without a word.
func (c *cli) awaitReplicas(ctx context.Context, conn *client.Conn, id object.ID, name string,
	o client.ReplicateOptions, wait bool) (s daemon.ReplicateStatus, err error) {
	for {
		raw, err := conn.Replicate(ctx, id, name, o)
		if err != nil {
			return s, err
		}
		if err := json.Unmarshal(raw, &s); err != nil {
			return s, fmt.Errorf("the daemon's answer: %w", err)
		}
		if s.Done || !wait {
			return s, nil
		}
		o.To, o.From = s.To, s.From // the nodes that were asked: a second look might choose others
		pause := time.NewTimer(replicateEvery)
		select {
		case <-ctx.Done():
			pause.Stop()
			return s, ctx.Err()
		case <-pause.C:
		}
	}
}
