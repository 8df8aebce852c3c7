package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon"
	"tendril/daemon/audit"
	"tendril/store/object"
)

// auditPause is how often --follow asks again.
const auditPause = time.Second

func (c *cli) auditVerb() *cobra.Command {
	var since time.Duration
	var tenant string
	var follow bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who did what in the cluster: tokens, nodes, tenants, publications, leases",
		Long: "Show the audit events of every node that answers, oldest first: tokens that were created, used and revoked,\n" +
			"nodes that joined and left, changes of tenants, backups, publications, deletes and leases. Refused requests\n" +
			"are listed with the reason. Each node keeps its own events, up to a limit; beyond it the oldest are deleted.\n" +
			"Only root and the daemon's own user see them.",
		Example: "  tendril audit --since 24h\n  tendril audit --tenant lab --follow\n  tendril audit --json | jq 'select(.error)'",
		GroupID: "node",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("since") && since <= 0 {
			return usagef("--since %v: want how long ago, such as 24h", since)
		}
		return c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			q := admin.AuditQuery{Tenant: tenant}
			if since > 0 {
				q.Since = time.Now().Add(-since)
			}
			return c.showAudit(ctx, conn, q, follow)
		})(cmd, args)
	}
	cmd.Flags().DurationVar(&since, "since", 0, "only events of the last `DURATION`, such as 24h")
	cmd.Flags().StringVar(&tenant, "tenant", "", "only events of this tenant")
	cmd.Flags().BoolVar(&follow, "follow", false, "print new events as they come, until interrupted")
	return c.jsonFlag(cmd)
}

func (c *cli) showAudit(ctx context.Context, conn *client.Conn, q admin.AuditQuery, follow bool) error {
	said, none := false, true
	for {
		raw, err := admin.Of(conn).Audit(ctx, q)
		if err != nil {
			return err
		}
		var page daemon.AuditPage
		if err := json.Unmarshal(raw, &page); err != nil {
			return fmt.Errorf("the daemon's answer: %w", err)
		}
		for _, e := range page.Events {
			none = false
			if err := c.printAudited(e); err != nil {
				return err
			}
		}
		if !said {
			said = true
			for _, name := range page.Silent {
				c.say(fmt.Sprintf("Node %s does not answer: its events are missing.", plain(name)))
			}
			if page.Lost > 0 {
				c.say(fmt.Sprintf("Not recorded: %s. See the logs of the daemons.", object.Counted(page.Lost, "event")))
			}
		}
		q.Cursor = page.Next
		switch {
		case page.More:
		case follow:
			if err := pause(ctx, auditPause); err != nil {
				return err
			}
		default:
			if none && !c.json {
				c.say("No such events.")
			}
			return nil
		}
	}
}

func (c *cli) printAudited(e audit.Event) error {
	if c.json {
		return json.NewEncoder(c.term.out).Encode(e)
	}
	line := fmt.Sprintf("%s  %s  %s  by %s from %s", e.Time.Local().Format(time.DateTime), plain(e.Node), e.What,
		plain(e.Who), plain(e.From))
	for _, x := range []struct{ what, text string }{{"tenant", e.Tenant}, {"of", e.Of}, {"refused:", e.Error}} {
		if x.text != "" {
			line += "  " + x.what + " " + plain(x.text)
		}
	}
	_, err := fmt.Fprintln(c.term.out, line)
	return err
}
