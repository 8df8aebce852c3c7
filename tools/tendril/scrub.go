package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/store/object"
)

func (c *cli) scrubVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scrub",
		Short: "Compare objects with their checksums, in memory and on disk",
		Long: "Compare objects with their checksums: what lies on disk, and what lies in memory where checksums are known. They are from the seal on\n" +
			"where that was asked for (put --checksum) or the object is persisted, else from when it first went to disk or a scrub came by: an object\n" +
			"without any gets them. Root and the daemon's own user scrub everybody's objects, others their own. The daemon does it by itself with\n" +
			"--scrub-interval. Damaged objects are listed, and end it with exit code 1: delete them, and put them again.",
		Example: "  tendril scrub\n  tendril scrub --json",
		GroupID: "store",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.asking(func(conn *client.Conn, _ []string) error { return c.scrub(cmd, conn) })(cmd, nil)
	}
	return c.jsonFlag(cmd)
}

func (c *cli) scrub(cmd *cobra.Command, conn *client.Conn) error {
	var bar progress
	var shown uint64
	all, err := conn.Scrub(cmd.Context(), func(r object.ScrubReport) {
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
		return fmt.Errorf("%d damaged: delete what is listed (tendril rm), and put it again", n)
	}
	return err
}

func (c *cli) printScrub(all object.ScrubReport) error {
	fmt.Fprintf(c.term.out, "%d objects: %s in memory and %s on disk compared, %d got checksums, %d could not be read, %d damaged\n",
		all.Objects, size(all.MemoryBytes), size(all.DiskBytes), all.New, all.Unread, all.Damages())
	if len(all.Damaged) == 0 {
		return nil
	}
	var rows [][]string
	for _, d := range all.Damaged {
		rows = append(rows, []string{d.ID.String(), d.Tenant, orDash(plain(d.Name)), size(d.SizeBytes), d.Where, plain(d.Why)})
	}
	return table(c.term.out, "ID | TENANT | NAME | SIZE | WHERE | WHY", rows)
}
