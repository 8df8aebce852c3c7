package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon"
	"tendril/store/object"
)

const clusterExample = `  tendril token create --role node --once        # on a node of the cluster
  tendril cluster join gpubox:7433               # on the node that joins; asks for the token
  tendril cluster status
  tendril cluster leave                          # this node is a cluster of one again
  tendril cluster remove oldbox                  # oldbox is dead for good
  tendril cluster backup cluster.age             # the metadata and the authority's key, encrypted`

func (c *cli) clusterVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Join nodes into a cluster, and show its state",
		Long: "The nodes of a cluster share one list of nodes, devices, tokens, certificates and published names. A node that joins\n" +
			"keeps its objects and its sessions. What it has published is published in the cluster; a name that another object has\n" +
			"there is reported. Its own tokens and logins are no longer valid; the cluster's are.",
		Example: clusterExample,
		GroupID: "node",
	}
	cmd.AddCommand(c.clusterJoinVerb(), c.clusterLeaveVerb(), c.clusterRemoveVerb(), c.clusterRecoverVerb(),
		c.clusterBackupVerb(), c.clusterRestoreVerb(), c.clusterRotateVerb(), c.clusterStatusVerb())
	return cmd
}

func (c *cli) clusterJoinVerb() *cobra.Command {
	var token string
	cmd := &cobra.Command{
		Use:   "join HOST[:PORT]",
		Short: "Make this node a member of another node's cluster",
		Long: "Make this node a member of the cluster that has a node at HOST:PORT. The token comes from there (tendril token create\n" +
			"--role node); the command asks for it, or reads it from standard input, from $TENDRIL_TOKEN, or from --token, which\n" +
			"other users of this machine can see. All nodes must be able to reach each other: start their daemons with --listen. Only root\n" +
			"and the daemon's own user may do this.",
		Example: "  tendril cluster join gpubox:7433\n  tendril cluster join gpubox < token.txt",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if token == "" {
				token = os.Getenv("TENDRIL_TOKEN")
			}
			if token == "" {
				var err error
				if token, err = c.askToken("tendril token create --role node"); err != nil {
					return err
				}
			}
			return c.joinCluster(cmd.Context(), args[0], token)
		},
	}
	cmd.Flags().StringVar(&token, "token", "", "the token")
	return c.jsonFlag(cmd)
}

func (c *cli) joinCluster(ctx context.Context, address, token string) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := admin.Of(conn).JoinCluster(ctx, address, token)
	if err != nil {
		return err
	}
	var r daemon.MoveResult
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("the daemon's answer: %w", err)
	}
	if c.json {
		return c.printJSON(r)
	}
	c.say(fmt.Sprintf("This node is in the cluster of %s.", plain(strings.Join(r.Nodes, ", "))))
	if !r.Entered {
		c.say("The cluster has not answered yet; the node tells it as soon as it does: " + plain(r.Why))
	} else if r.Why != "" {
		c.say("Not all is published there yet; the node tries again: " + plain(r.Why))
	}
	c.sayPublished(r)
	return nil
}

func (c *cli) sayPublished(r daemon.MoveResult) {
	if r.Republished > 0 {
		c.say(fmt.Sprintf("Published there: %s.", object.Counted(r.Republished, "object")))
	}
	for _, x := range r.Conflicts {
		c.say(fmt.Sprintf("Not published there: %s (tenant %s, object %s): %s", plain(x.Name), plain(x.Tenant), x.ID,
			plain(x.Why)))
	}
}

func (c *cli) clusterStatusVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "status",
		Short:   "Show the cluster's nodes and who leads it",
		Example: "  tendril cluster status --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			x, err := clusterOnceHeard(ctx, conn)
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(x)
			}
			return c.printCluster(x)
		}),
	})
}

// hearing is how long cluster status waits for nodes of which the daemon has not heard yet whether they answer, because
// it has just started or joined; it asks each within about a second.
const (
	hearing   = 3 * time.Second
	hearAgain = 100 * time.Millisecond
)

// clusterOnceHeard asks for the cluster, and again while it is not known of a node whether it answers.
func clusterOnceHeard(ctx context.Context, conn *client.Conn) (x daemon.ClusterInfo, err error) {
	for until := time.Now().Add(hearing); ; {
		raw, err := admin.Of(conn).ClusterStatus(ctx)
		if err != nil {
			return x, err
		}
		x = daemon.ClusterInfo{}
		if err := json.Unmarshal(raw, &x); err != nil {
			return x, fmt.Errorf("the daemon's answer: %w", err)
		}
		unheard := func(n daemon.ClusterNode) bool { return n.Answers && n.Since.IsZero() }
		if !slices.ContainsFunc(x.Nodes, unheard) || !time.Now().Before(until) {
			return x, nil
		}
		if err := pause(ctx, hearAgain); err != nil {
			return x, err
		}
	}
}

func (c *cli) printCluster(x daemon.ClusterInfo) error {
	if err := hanging(c.term.out, c.term.screen, "authority: ", nil, x.Authority); err != nil {
		return err
	}
	switch {
	case x.Fault != "":
		c.say("The metadata cannot be changed: " + plain(x.Fault))
	case x.Leader == "":
		c.say("No node leads the cluster just now: the metadata cannot be changed.")
	case !x.Entered:
		c.say("The cluster does not know yet that this node has started.")
	}
	if x.Why != "" {
		c.say(plain(x.Why))
	}
	if x.SnapshotFault != "" {
		c.say("Of this node: " + plain(x.SnapshotFault))
	}
	if x.Rotation != nil {
		c.say(rotationText(*x.Rotation))
	}
	rows := make([][]string, len(x.Nodes))
	for i, n := range x.Nodes {
		role := "non-voter"
		switch {
		case n.Leader:
			role = "leader"
		case n.Voter:
			role = "voter"
		}
		name := plain(n.Name)
		if n.Self {
			name += " (this one)"
		}
		rows[i] = []string{name, role, answers(n), orDash(plain(strings.Join(n.Addresses, " "))),
			orDash(plain(strings.Join(n.Devices, ", "))), plain(n.Version), n.ID}
	}
	return table(c.term.out, c.term.screen, "NODE | ROLE | ANSWERS | ADDRESSES? | DEVICES? | VERSION?? | ID??", rows)
}

// rotationText says how far a rotation of the authority is, and what comes next.
func rotationText(r daemon.ClusterRotation) string {
	text := fmt.Sprintf("The authority is being rotated. %d of %s sign with the new one (%s).", len(r.Followed),
		object.Counted(len(r.Followed)+len(r.Waiting), "node"), orDash(plain(strings.Join(r.Followed, ", "))))
	switch {
	case len(r.Waiting) > 0:
		text += fmt.Sprintf(" Not yet: %s.", plain(strings.Join(r.Waiting, ", ")))
	case r.Clients == 0:
		return text + " All clients have followed. To end the old one: tendril cluster rotate --finish"
	}
	if r.Clients > 0 {
		text += fmt.Sprintf(" Clients that have certificates of the old one alone: %d (tendril cluster rotate names them).",
			r.Clients)
	}
	return text
}

// answers says whether a node does.
func answers(n daemon.ClusterNode) string {
	switch {
	case n.Answers && n.Since.IsZero():
		return "not asked yet"
	case n.Answers:
		return "yes"
	}
	return "silent for " + since(n.Since)
}
