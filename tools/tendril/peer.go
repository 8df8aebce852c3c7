package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/pki"
	"tendril/daemon"
	"tendril/store/object"
)

const peerExample = `  tendril peer ls                                # on node b: prints its authority, AUTHORITY
  tendril peer add b:7433 --ca AUTHORITY         # on node a: its workers may connect to b's
  tendril peer rm b:7433`

func (c *cli) peerVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "peer",
		Short: "Name the nodes whose workers this node's workers may connect to",
		Long: "If a program's context spans two nodes, their workers exchange buffers and events directly. To do\n" +
			"so, one daemon must be able to connect to the other; either direction is enough. Nodes of one cluster know each\n" +
			"other. Of other nodes, a daemon dials only the addresses named here, and accepts there only the authority named\n" +
			"with the address. Where neither can connect, the data goes through the program. Only root and the daemon's own\n" +
			"user manage peers.",
		Example: peerExample,
		GroupID: "node",
	}
	cmd.AddCommand(c.peerAddVerb(), c.peerListVerb(), c.peerRemoveVerb())
	return cmd
}

func (c *cli) peerAddVerb() *cobra.Command {
	var authority string
	cmd := &cobra.Command{
		Use:     "add HOST:PORT --ca FINGERPRINT",
		Short:   "Let this node's workers connect to those of another node",
		Example: "  tendril peer add b:7433 --ca 0123…",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := pki.ParseFingerprint(authority)
			if err != nil {
				return usageError{err}
			}
			return c.setPeer(cmd.Context(), args[0], f)
		},
	}
	cmd.Flags().StringVar(&authority, "ca", "", "the authority of that node, as tendril peer ls prints it there")
	_ = cmd.MarkFlagRequired("ca") // fails only for a flag that is not there
	return cmd
}

func (c *cli) peerRemoveVerb() *cobra.Command {
	return &cobra.Command{
		Use:     "rm HOST:PORT",
		Short:   "Make no new connections to that node; existing ones stay",
		Example: "  tendril peer rm b:7433",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.setPeer(cmd.Context(), args[0], pki.Fingerprint{})
		},

		ValidArgsFunction: c.completing(peersToComplete),
	}
}

func (c *cli) setPeer(ctx context.Context, address string, authority pki.Fingerprint) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = admin.Of(conn).SetPeer(ctx, address, authority)
	if errors.Is(err, object.ErrNotFound) {
		return hinted{err, "See which there are with: tendril peer ls"}
	}
	return err
}

func (c *cli) peerListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls",
		Short:   "List the peers, and this node's own authority",
		Example: "  tendril peer ls --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			s, err := peersOf(ctx, conn)
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(s)
			}
			return c.printPeers(s)
		}),
	})
}

// peersOf asks for the peers.
func peersOf(ctx context.Context, conn *client.Conn) (s daemon.PeersStatus, err error) {
	raw, err := admin.Of(conn).Peers(ctx)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("the daemon's list of peers: %w", err)
	}
	return s, nil
}

func (c *cli) printPeers(s daemon.PeersStatus) error {
	if err := hanging(c.term.out, c.term.screen, "this node's authority: ", nil, s.Authority); err != nil {
		return err
	}
	if len(s.Peers) == 0 {
		c.say("No peers. Name one: tendril peer add HOST:PORT --ca FINGERPRINT")
		return nil
	}
	rows := make([][]string, len(s.Peers))
	for i, p := range s.Peers {
		rows[i] = []string{plain(p.Address), p.Authority}
	}
	return table(c.term.out, c.term.screen, "ADDRESS | AUTHORITY", rows)
}

// peersToComplete are the addresses of peers.
func peersToComplete(ctx context.Context, conn *client.Conn, typed string) (list []string) {
	s, err := peersOf(ctx, conn)
	if err != nil {
		return nil
	}
	for _, p := range s.Peers {
		if strings.HasPrefix(p.Address, typed) && len(list) < mostCompleted {
			list = append(list, plain(p.Address))
		}
	}
	return list
}
