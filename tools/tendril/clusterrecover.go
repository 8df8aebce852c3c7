package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/daemon"
)

func (c *cli) clusterRecoverVerb() *cobra.Command {
	var do bool
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Go on with this node alone when most voters are gone for good",
		Long: "Make this node a cluster of one with what it knows of its cluster, if most of the voters are gone for good and the\n" +
			"cluster takes no change any more. Without --yes the command says what would be lost, and does nothing.\n\n" +
			"All other nodes are dropped. Those that are left join again: on each, tendril cluster leave --anyway, then tendril\n" +
			"cluster join. What they have published is published again then. Logins and tokens of clients stay valid. Changes\n" +
			"that only the lost nodes knew are lost. Should the lost nodes come back, this node refuses them.\n\n" +
			"Run it on one node only, the one that knows most; another one that answers and knows more is named. Only root and\n" +
			"the daemon's own user may do this.",
		Example: "  tendril cluster recover          # what would be lost\n  tendril cluster recover --yes",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = c.asking(func(conn *client.Conn, _ []string) error {
		raw, err := conn.RecoverCluster(do)
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
	cmd.Flags().BoolVar(&do, "yes", false, "do it")
	return c.jsonFlag(cmd)
}

func (c *cli) sayRecovery(s daemon.RecoverStatus) error {
	rows := make([][]string, len(s.Nodes))
	for i, n := range s.Nodes {
		answers := "no"
		switch {
		case n.KnowsMore:
			answers = "yes, and knows more"
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
		c.say(fmt.Sprintf("%d published objects have no replica on this node, and are published no longer: %s",
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
