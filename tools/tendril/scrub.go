package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/store/object"
)

func (c *cli) scrubVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scrub",
		Short: "Compare objects with their checksums, in memory and on disk",
		Long: "Compare objects with their checksums, in memory and on disk. An object has checksums from its seal on if it is\n" +
			"persisted or was put with --checksum; others get them when they first go to disk, or at their first scrub. Root and\n" +
			"the daemon's own user scrub all objects, other users their own. With --scrub-interval the daemon scrubs by itself.\n" +
			"Damaged objects are listed, and the exit code is 1: delete them and put them again.",
		Example: "  tendril scrub\n  tendril scrub --json",
		GroupID: "store",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			return c.scrub(cmd,
				conn)
		})(cmd, nil)
	}
	return c.jsonFlag(cmd)
}

func (c *cli) scrub(cmd *cobra.Command, conn *client.Conn) error {
	var bar progress
	var shown uint64
	all, err := admin.Of(conn).Scrub(cmd.Context(), func(r object.ScrubReport) {
		if bar.bar == nil && shown == 0 && r.Next != "" {
			bar = c.newProgress("scrub", r.TotalBytes)
		}
		now := r.MemoryBytes + r.DiskBytes
		bar.add(int(now - shown))
		shown = now
	})
	bar.end()
	if err != nil {
		return err
	}
	if c.json {
		err = c.printJSON(all)
	} else {
		err = c.printScrub(all)
	}
	if n := all.Damages(); n > 0 && err == nil {
		return fmt.Errorf("%s: delete with tendril rm, and put again", object.Counted(n, "damaged object"))
	}
	return err
}

func (c *cli) printScrub(all object.ScrubReport) error {
	fmt.Fprintf(c.term.out,
		"%s: %s in memory and %s on disk compared, %d got checksums, %d could not be read, %d damaged\n",
		object.Counted(all.Objects, "object"), size(all.MemoryBytes), size(all.DiskBytes), all.New, all.Unread, all.Damages())
	if len(all.Damaged) == 0 {
		return nil
	}
	var rows [][]string
	for _, d := range all.Damaged {
		rows = append(rows, []string{d.ID.String(), d.Tenant, orDash(plain(d.Name)), size(d.SizeBytes), d.Where,
			plain(d.Why)})
	}
	return table(c.term.out, c.term.screen, "ID | TENANT? | NAME | SIZE? | WHERE | WHY", rows)
}
