package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

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
		Example: "  tendril ls\n  tendril ls photo --json\n  tendril ls --label kind=raw\n  tendril ls --shared\n  tendril ls --all     # unsealed ones too\n  sudo tendril ls --all-tenants",
		GroupID: "store",
		Args:    cobra.MaximumNArgs(1),
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			if len(args) == 1 {
				q.Prefix = args[0]
			}
			switch {
			case published:
				return c.listPublished(ctx, conn, q.Prefix)
			case q.AllTenants:
				return printListing(c, conn.Objects(ctx, q), noneOf(q, "No objects."), "TENANT | "+objectsHead,
					func(o object.Info) []string {
						return append([]string{o.Tenant}, objectRow(o)...)
					})
			}
			none := "You have no sealed objects (--all lists others, too). Make one of a file: tendril put FILE"
			switch {
			case q.Shared:
				none = "Nobody shares an object with you."
			case q.All:
				none = "You have no objects. Make one of a file: tendril put FILE"
			}
			row := objectRow
			if q.Shared { // by this name they are got
				row = func(o object.Info) []string {
					cells := objectRow(o)
					if o.Name != "" {
						cells[len(cells)-1] = plain(o.Tenant + "/" + o.Name)
					}
					return cells
				}
			}
			return printListing(c, conn.Objects(ctx, q), noneOf(q, none), objectsHead, row)
		}),
	}
	cmd.Flags().BoolVar(&published, "published", false, "list published objects of the whole cluster")
	cmd.Flags().BoolVar(&q.All, "all", false, "also list objects that are not sealed yet")
	cmd.Flags().BoolVar(&q.Shared, "shared", false, "list what others share with you, instead of your own")
	cmd.Flags().BoolVar(&q.AllTenants, "all-tenants", false,
		"list every tenant's objects, and whose they are: for root and the daemon's own user")
	cmd.Flags().StringToStringVar(&q.Labels, "label", nil, "only objects with this `KEY=VALUE`; may be repeated")
	cmd.MarkFlagsMutuallyExclusive("published", "shared", "all-tenants")
	return c.jsonFlag(cmd)
}

func (c *cli) listPublished(ctx context.Context, conn *client.Conn, prefix string) error {
	return c.printPublished(decoded[daemon.PublishedStatus](conn.EachPublished(ctx, prefix), "published objects"), prefix)
}

func (c *cli) printPublished(list iter.Seq2[daemon.PublishedStatus, error], prefix string) error {
	none := "You have no published objects. Publish one: tendril put FILE --publish"
	if prefix != "" {
		none = fmt.Sprintf("No published object has a name that begins with %q.", prefix)
	}
	var late error
	if c.json {
		list = untilTimeout(list, &late)
	}
	err := printListing(c, list, none, "ID | SIZE | AGE? | REPLICAS? | NODES? | NAME", func(o daemon.PublishedStatus) []string {
		return []string{o.ID.String(), size(o.SizeBytes), since(o.Created), fmt.Sprintf("%d/%d", o.Have, o.Wanted),
			strings.Join(o.Nodes, ","), plain(o.Name)}
	})
	return firstError(err, late)
}

// untilTimeout ends a listing of what a node knows where its cluster does not answer, which is said in late: what was
// listed is whole JSON all the same.
func untilTimeout[T any](seq iter.Seq2[T, error], late *error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for item, err := range seq {
			if errors.Is(err, object.ErrTimeout) {
				*late = err
				return
			}
			if !yield(item, err) {
				return
			}
		}
	}
}

// noneOf says that there is nothing like q; all is what to say where q does not narrow it down.
func noneOf(q client.Query, all string) string {
	switch {
	case len(q.Labels) > 0 && q.Prefix != "":
		return fmt.Sprintf("No object whose name begins with %q has the label %s.", q.Prefix, labelText(q.Labels))
	case len(q.Labels) > 0:
		return fmt.Sprintf("No object has the label %s.", labelText(q.Labels))
	case q.Prefix != "":
		return fmt.Sprintf("No object has a name that begins with %q.", q.Prefix)
	}
	return all
}

const objectsHead = "ID | SIZE | CLASS?? | STATE??? | REFS?? | AGE? | NAME"

func objectRow(o object.Info) []string {
	class := o.Class.String()
	if o.Kind != object.Host {
		class += " " + o.Kind.String()
	} else if o.CopiedFrom != object.Host {
		class += " of " + o.CopiedFrom.String()
	}
	if o.Expires != nil {
		class += ", " + max(0, time.Until(*o.Expires)).Round(time.Second).String() + " left"
	}
	return []string{o.ID.String(), size(o.SizeBytes), class, o.State.String(), strconv.Itoa(o.Refs),
		since(o.Created), nameOf(o)}
}

// nameOf is an object's name, or what it is: this node's replica or copy of what is published.
func nameOf(o object.Info) string {
	switch {
	case o.Name != "" || o.Published == "":
		return orDash(o.Name)
	case o.Cached:
		return "copy of " + plain(o.Published)
	}
	return "replica of " + plain(o.Published)
}
