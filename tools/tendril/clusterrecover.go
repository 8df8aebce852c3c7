package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon"
)

func (c *cli) clusterRecoverVerb() *cobra.Command {
	var do bool
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Go on with this node alone when most voters are gone for good",
		Long: "Make this node a cluster of one, with the metadata that it has. This is for a cluster that accepts no more changes\n" +
			"because most of its voters are gone for good. Without --yes the command only says what would be lost.\n\n" +
			"All other nodes are dropped. The surviving ones join again, with tendril cluster leave --anyway and tendril cluster\n" +
			"join on each, and publish again what they had published. Logins and tokens of clients stay valid. Changes that only\n" +
			"the lost nodes knew are lost. If the lost nodes come back, this node refuses them.\n\n" +
			"Run it on one node only, the one with the newest metadata. If a node that answers has newer metadata, the command\n" +
			"names it. Only root and the daemon's own user may do this.",
		Example: "  tendril cluster recover          # what would be lost\n  tendril cluster recover --yes",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
		raw, err := admin.Of(conn).RecoverCluster(ctx, do)
		if err != nil {
			return err
		}
		var s daemon.RecoverStatus
		if err := json.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("the daemon's answer: %w", err)
		}
		if c.json {
			return c.printJSON(s)
		}
		return c.sayRecovery(s)
	})
	cmd.Flags().BoolVar(&do, "yes", false, "recover; without it nothing is changed")
	return c.jsonFlag(cmd)
}

func (c *cli) sayRecovery(s daemon.RecoverStatus) error {
	if s.Alone {
		c.say("This node is a cluster of one already: there is nothing to recover.")
		return nil
	}
	rows := make([][]string, len(s.Nodes))
	for i, n := range s.Nodes {
		answers := "no"
		switch {
		case n.KnowsMore:
			answers = "yes, with newer metadata"
		case n.Answers:
			answers = "yes"
		}
		rows[i] = []string{plain(n.Name), answers, n.ID}
	}
	if err := table(c.term.out, c.term.screen, "DROPPED | ANSWERS | ID??", rows); err != nil {
		return err
	}
	if s.LostObjects > 0 {
		var names []string
		for _, x := range s.Lost[:min(len(s.Lost), 8)] {
			names = append(names, plain(x.Name))
		}
		c.say(fmt.Sprintf("%d published objects have no replica on this node, and are no longer published: %s",
			s.LostObjects, strings.Join(names, ", ")))
	}
	if s.Done {
		c.say("This node is the cluster's only member now. On each other node that is left: tendril cluster leave --anyway, " +
			"then tendril cluster join.")
		return nil
	}
	c.say(fmt.Sprintf("This node knows the cluster up to entry %d of term %d; what came later is lost. Nothing was done: "+
		"to go on, add --yes.", s.Index, s.Term))
	return nil
}
