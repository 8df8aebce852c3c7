package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon"
	"tendril/store/object"
)

func (c *cli) drainVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain [NODE]",
		Short: "Move your published objects away from a node",
		Long: "Move your published objects away from a node (default: this one) to the nodes with the most free memory, one by one.\n" +
			"Objects that are not published stay. If one cannot be moved, the command reports it and moves the others; its exit\n" +
			"code is 0 only if the node has none of them any more. It can be stopped at any time, and started again.",
		Example: "  tendril drain\n  tendril drain oldbox\n  tendril drain oldbox --json",
		GroupID: "store",
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			return c.drain(cmd.Context(), conn, append(args, "")[0])
		})(cmd, args)
	}
	return c.jsonFlag(cmd)
}

// Times of a drain. A node remembers for 10 s that it could not take an object.
const (
	drainPatience = 30 * time.Second // for what may pass: a node that is busy, a leader that is being elected
	drainPause    = 500 * time.Millisecond
)

// drainStatus is the result of a drain.
type drainStatus struct {
	Node       string      `json:"node"`
	Moved      int         `json:"moved"`       // objects, those that were deleted meanwhile among them
	MovedBytes uint64      `json:"moved_bytes"` // of them
	Left       []drainLeft `json:"left"`        // that the node still has
}

// drainLeft is an object that was not moved.
type drainLeft struct {
	ID        object.ID `json:"id"`
	Name      string    `json:"name"`
	SizeBytes uint64    `json:"size_bytes"`
	Why       string    `json:"why"`
}

// drain moves what the caller has published there. node "" is the daemon's.
func (c *cli) drain(ctx context.Context, conn *client.Conn, node string) error {
	raw, err := admin.Of(conn).ClusterStatus(ctx)
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
	i := slices.IndexFunc(cluster.Nodes, func(n daemon.ClusterNode) bool { return n.Name == node })
	if i < 0 {
		return fmt.Errorf("%w: the cluster has no node %q", object.ErrNotFound, node)
	}
	s, err := c.drainAll(ctx, conn, node)
	if ctx.Err() != nil || err != nil && len(s.Left) == 0 {
		return err
	}
	if len(s.Left) > 0 {
		err = hinted{err, "They stay published at " + plain(node) + ". Have another node join (tendril cluster join) " +
			"or make room on one (tendril rm), then run tendril drain again. Or let them go: tendril unpublish"}
	}
	if c.json {
		return errors.Join(c.printJSON(s), err)
	}
	if all := s.Moved + len(s.Left); all > 0 {
		c.say(fmt.Sprintf("Moved away from %s: %d of %s.", plain(node), s.Moved, object.Counted(all, "published object")))
	} else {
		c.say(fmt.Sprintf("None of your published objects is at %s: there is nothing to move.", plain(node)))
	}
	return err
}

// publishedAt lists what the caller has published at a node.
func publishedAt(ctx context.Context, conn *client.Conn, node string) (list []daemon.PublishedStatus, bytes uint64,
	err error) {
	for o, err := range decoded[daemon.PublishedStatus](conn.EachPublished(ctx, ""), "published objects") {
		if err != nil {
			return nil, 0, err
		}
		if slices.Contains(o.Nodes, node) {
			list = append(list, o)
			bytes += o.SizeBytes
		}
	}
	return list, bytes, nil
}

// drainAll moves objects until the node has none that was not tried, those that are published meanwhile among them.
// What counts is what the node has then. The error has why, of each object that it still has.
func (c *cli) drainAll(ctx context.Context, conn *client.Conn, node string) (drainStatus, error) {
	s := drainStatus{Node: node, Left: []drainLeft{}}
	there, total, err := publishedAt(ctx, conn, node)
	if err != nil {
		return s, err
	}
	p := c.newProgress("drain", total)
	defer p.end()
	tried := map[object.ID]error{}
	sizes := uint64(0)
	for {
		fresh := slices.DeleteFunc(slices.Clone(there), func(o daemon.PublishedStatus) bool {
			_, before := tried[o.ID]
			return before
		})
		for _, o := range fresh {
			if tried[o.ID] = c.drainOne(ctx, conn, node, o.ID); ctx.Err() != nil {
				return s, ctx.Err()
			}
			sizes += o.SizeBytes
			p.add(int(o.SizeBytes))
		}
		if there, total, err = publishedAt(ctx, conn, node); err != nil {
			return s, err
		}
		if len(fresh) == 0 {
			break
		}
	}
	var faults []error
	for _, o := range there {
		why := tried[o.ID]
		if why == nil {
			why = fmt.Errorf("%w: it is still there", object.ErrBusy)
		}
		faults = append(faults, fmt.Errorf("%s: %w", o.Name, why))
		s.Left = append(s.Left, drainLeft{ID: o.ID, Name: o.Name, SizeBytes: o.SizeBytes, Why: why.Error()})
	}
	s.Moved, s.MovedBytes = len(tried)-len(there), sizes-total
	return s, errors.Join(faults...)
}

// drainOne moves one object. Where the node that was chosen cannot take it after all, others are asked; what may pass
// is waited for.
func (c *cli) drainOne(ctx context.Context, conn *client.Conn, node string, id object.ID) error {
	var since time.Time // it has failed
	for {
		s, err := c.awaitReplicas(ctx, conn, id, "", client.ReplicateOptions{Move: true, From: node}, true)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if since.IsZero() {
			since = time.Now()
		}
		passes := s.To != "" || errors.Is(err, object.ErrBusy) || errors.Is(err, object.ErrTimeout)
		if !passes || time.Since(since) > drainPatience {
			return err
		}
		if err := pause(ctx, drainPause); err != nil {
			return err
		}
	}
}
