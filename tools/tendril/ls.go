package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/daemon"
	"tendril/store/object"
)

func (c *cli) lsVerb() *cobra.Command {
	var published bool
	var q client.Query
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Short:   "List your objects, oldest first",
		Example: "  tendril ls\n  tendril ls photo --json\n  tendril ls --label kind=raw\n  tendril ls --shared\n  tendril ls --all     # with those that are still being filled",
		GroupID: "store",
		Args:    cobra.MaximumNArgs(1),
		RunE: c.asking(func(conn *client.Conn, args []string) error {
			if len(args) == 1 {
				q.Prefix = args[0]
			}
			if published {
				return c.listPublished(conn, q.Prefix)
			}
			return printListing(c, conn.Objects(q), objectsHead, objectRow)
		}),
	}
	cmd.Flags().BoolVar(&published, "published", false, "what the cluster knows of, wherever it is")
	cmd.Flags().BoolVar(&q.All, "all", false, "also objects that are not sealed yet")
	cmd.Flags().BoolVar(&q.Shared, "shared", false, "what others share with you, instead of your own")
	cmd.Flags().StringToStringVar(&q.Labels, "label", nil, "KEY=VALUE; may be given several times: all must be there")
	return c.jsonFlag(cmd)
}

func (c *cli) listPublished(conn *client.Conn, prefix string) error {
	list := decoded[daemon.PublishedStatus](conn.EachPublished(prefix), "published objects")
	return printListing(c, list, "ID | SIZE | AGE | NODES | NAME", func(o daemon.PublishedStatus) []string {
		return []string{o.ID.String(), size(o.SizeBytes), since(o.Created), strings.Join(o.Nodes, ","), plain(o.Name)}
	})
}

const objectsHead = "ID | SIZE | CLASS | STATE | REFS | AGE | NAME"

func objectRow(o object.Info) []string {
	return []string{o.ID.String(), size(o.SizeBytes), o.Class.String(), o.State.String(), strconv.Itoa(o.Refs), since(o.Created), orDash(o.Name)}
}
