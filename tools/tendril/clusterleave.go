package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon"
	"tendril/store/object"
)

func (c *cli) clusterLeaveVerb() *cobra.Command {
	var anyway bool
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Take this node out of its cluster",
		Long: "Take this node out of its cluster. First other nodes take replicas of the published objects that this node alone has.\n" +
			"Then the cluster forgets the node, and the node goes on as a cluster of one: it keeps its objects and its sessions,\n" +
			"and publishes again what it had published. Its clients on other machines must log in again. The command can be\n" +
			"stopped at any time, and started again.\n\n" +
			"With --anyway the node leaves even if no other node can take everything, or the cluster does not answer. In the latter\n" +
			"case remove this node from the cluster afterwards: tendril cluster remove, on another node. A node\n" +
			"that has left may have kept the authority's key: tendril cluster rotate gives the cluster another one.\n" +
			"Only root and the daemon's own user may do this.",
		Example: "  tendril cluster leave\n  tendril cluster leave --anyway --json",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			return c.leaveCluster(cmd.Context(), conn, anyway)
		})(cmd, args)
	}
	cmd.Flags().BoolVar(&anyway, "anyway", false, "leave although objects cannot be moved, or the cluster does not answer")
	return c.jsonFlag(cmd)
}

// leaveEvery is the time between two questions how far a leave is.
const leaveEvery = 200 * time.Millisecond

// leaveCluster asks until the node has left.
func (c *cli) leaveCluster(ctx context.Context, conn *client.Conn, anyway bool) error {
	var p progress
	begun, done := false, uint64(0)
	for {
		raw, err := admin.Of(conn).LeaveCluster(ctx, anyway)
		if err != nil {
			return err
		}
		var s daemon.LeaveStatus
		if err := json.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("the daemon's answer: %w", err)
		}
		if !begun {
			p = c.newProgress("moving objects", s.LeftBytes)
			defer p.end()
			begun, done = true, s.LeftBytes
		}
		if s.LeftBytes < done {
			p.add(int(done - s.LeftBytes))
			done = s.LeftBytes
		}
		switch {
		case s.Done:
			return c.hasLeft(s)
		case len(s.Stuck) > 0 && !anyway:
			return stuckError(s)
		}
		if err := pause(ctx, leaveEvery); err != nil {
			return err
		}
	}
}

// pause waits, or gives the context's error.
func pause(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// stuckError says what keeps a node in its cluster.
func stuckError(s daemon.LeaveStatus) error {
	faults := []error{fmt.Errorf("%w: this node alone has %s, and cannot move all",
		object.ErrUnsupported, object.Counted(s.LeftObjects, "published object"))}
	for _, x := range s.Stuck {
		faults = append(faults, fmt.Errorf("%s (tenant %s): %s", x.Name, x.Tenant, x.Why))
	}
	return hinted{errors.Join(faults...),
		"To leave all the same: tendril cluster leave --anyway. The objects stay on this node, and the cluster loses them."}
}

func (c *cli) hasLeft(s daemon.LeaveStatus) error {
	if c.json {
		return c.printJSON(s)
	}
	if s.Result == nil {
		c.say("This node is a cluster of one already.")
		return nil
	}
	c.say("This node has left the cluster, and is one of its own now.")
	if s.LeftObjects > 0 {
		c.say(fmt.Sprintf("The cluster has lost %s: it is on this node alone.",
			object.Counted(s.LeftObjects, "published object")))
	}
	c.sayPublished(*s.Result)
	if !s.Told {
		c.say("The cluster does not know yet: " + plain(s.Why))
	}
	return nil
}

func (c *cli) clusterRemoveVerb() *cobra.Command {
	var anyway bool
	cmd := &cobra.Command{
		Use:   "remove NODE",
		Short: "Take a dead node out of the cluster",
		Long: "Take a node that is dead for good out of the cluster: its devices, its replicas, its certificates. NODE is its name or\n" +
			"its identifier. If the node answers, run tendril cluster leave on it instead. With --anyway it is removed even if it\n" +
			"answers, or is the only node with some published objects, which are then lost. If the node comes back, the\n" +
			"cluster refuses it and says so; there, tendril cluster leave --anyway makes it a cluster of one. Only root and\n" +
			"the daemon's own user may do this.",
		Example: "  tendril cluster remove oldbox\n  tendril cluster remove oldbox --anyway --json",
		Args:    cobra.ExactArgs(1),
	}
	cmd.RunE = c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
		raw, err := admin.Of(conn).RemoveNode(ctx, args[0], anyway)
		if err != nil {
			return err
		}
		var r daemon.RemoveResult
		if err := json.Unmarshal(raw, &r); err != nil {
			return fmt.Errorf("the daemon's answer: %w", err)
		}
		if c.json {
			return c.printJSON(r)
		}
		c.say(fmt.Sprintf("Node %s is removed from the cluster.", plain(r.Node)))
		var names []string
		for _, x := range r.Lost {
			names = append(names, plain(x.Name))
		}
		if r.LostObjects > 0 {
			c.say(fmt.Sprintf("%d published objects are lost with it: %s", r.LostObjects, strings.Join(names, ", ")))
		}
		return nil
	})
	cmd.Flags().BoolVar(&anyway, "anyway", false, "remove it even if it answers, or is the only node with some published objects")
	return c.jsonFlag(cmd)
}
