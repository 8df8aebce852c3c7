package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/store/object"
)

// publishable says of a publication that is refused what to do: an object has one name in the cluster.
func publishable(err error) error {
	if errors.Is(err, object.ErrExists) && strings.Contains(err.Error(), "is published already as") {
		return hinted{err, "An object has one published name. To give it another one: tendril unpublish, then publish it again."}
	}
	return replaceable(err)
}

func (c *cli) publishVerb() *cobra.Command {
	var name string
	var replace bool
	var replicas uint16
	cmd := &cobra.Command{
		Use:   "publish NAME|ID",
		Short: "List an object of this node for the whole cluster",
		Long: "List an object of this node under a name in the cluster's metadata. Every node can get it then: the first get at a\n" +
			"node brings a copy there, which stays until memory is short. The object stays here until tendril unpublish or rm.",
		Example: "  tendril publish weights\n  tendril publish 0123456789abcdef0123456789abcdef --name weights --replace\n" +
			"  tendril publish weights --replicas 3",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReplicas(cmd, replicas); err != nil {
			return err
		}
		return c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			info, err := lookup(ctx, conn, args[0])
			if err != nil {
				return fmt.Errorf("publish %s: %w", args[0], err)
			}
			if _, err = conn.Publish(ctx, info.ID, name, replace); err != nil {
				return publishable(err)
			}
			return c.publishedOn(ctx, conn, info.ID, args[0], replicas)
		})(cmd, args)
	}
	cmd.Flags().StringVar(&name, "name", "", "the published name (default: the object's own)")
	cmd.Flags().BoolVar(&replace, "replace", false, "take the name from the object that is published under it")
	cmd.Flags().Uint16Var(&replicas, "replicas", 0, "keep it on `N` nodes; wait until they have it")
	return cmd
}

// publishedOn waits until as many nodes have what was published as are wanted; 0: this one is enough.
func (c *cli) publishedOn(ctx context.Context, conn *client.Conn, id object.ID, what string, replicas uint16) error {
	if replicas == 0 {
		return nil
	}
	_, err := c.replicas(ctx, conn, id, "", client.ReplicateOptions{Wanted: replicas}, true)
	if err != nil {
		return halfway{fmt.Errorf("%s is published, but its replicas could not be made: %w", what, err)}
	}
	return nil
}

func (c *cli) unpublishVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "unpublish NAME|ID",
		Short: "Take an object out of the cluster's list",
		Long: "Take an object out of the cluster's list. Copies and replicas on other nodes are deleted; programs\n" +
			"that use one keep it until they release it. On the node where it was put, the object stays as long as it has a name\n" +
			"or is in use.",
		Example: "  tendril unpublish weights",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			id, name, err := idOrName(ctx, conn, args[0])
			switch {
			case err != nil:
				return err
			case name != "":
				return conn.Unpublish(ctx, name)
			}
			return conn.UnpublishObject(ctx, id)
		}),
	}
}
