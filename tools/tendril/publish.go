package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/store/object"
)

func (c *cli) publishVerb() *cobra.Command {
	var name string
	var replace bool
	cmd := &cobra.Command{
		Use:   "publish NAME|ID",
		Short: "List an object of this node for the whole cluster",
		Long: "List an object of this node under a name in the cluster's metadata. Every node can get it then: the first get at a\n" +
			"node brings a copy there, which stays until memory is short. The object stays here until tendril unpublish or rm.",
		Example: "  tendril publish weights\n  tendril publish 0123456789abcdef0123456789abcdef --name weights --replace",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: c.asking(func(conn *client.Conn, args []string) error {
			info, err := lookup(conn, args[0])
			if err != nil {
				return fmt.Errorf("publish %s: %w", args[0], err)
			}
			_, err = conn.Publish(info.ID, name, replace)
			return replaceable(err)
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "the published name (default: the object's own)")
	cmd.Flags().BoolVar(&replace, "replace", false, "take the name from the object that is published under it")
	return cmd
}

func (c *cli) unpublishVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "unpublish NAME|ID",
		Short: "Take an object out of the cluster's list",
		Long: "Take an object out of the cluster's list. Copies that gets brought to other nodes are deleted; who uses one keeps it\n" +
			"as long. On the node where it was put the object stays while its name, or somebody, holds it there.",
		Example: "  tendril unpublish weights",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: c.asking(func(conn *client.Conn, args []string) error {
			if id, err := object.ParseID(args[0]); err == nil {
				return conn.UnpublishObject(id)
			}
			return conn.Unpublish(args[0])
		}),
	}
}
