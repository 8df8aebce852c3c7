package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/cluster/pki"
	"tendril/daemon"
)

const peerExample = `  tendril peer ls                                # on node b: shows its authority, AUTHORITY
  tendril peer add b:7433 --ca AUTHORITY         # on node a: a's workers may be connected to b's
  tendril peer rm b:7433`

func (c *cli) peerVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "peer",
		Short: "Name the nodes that this one's workers may be connected to",
		Long: "A program whose context spans two nodes has their workers move buffers and tell of events directly, where one node's\n" +
			"daemon may dial the other's front door: one direction is enough. A daemon dials no other address than those named here, and\n" +
			"believes there no other authority than the one named with it. Without that the program carries what goes between the two.\n" +
			"Peers are for root and the daemon's own user.",
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
		Short:   "Let workers be connected to those of the node there",
		Example: "  tendril peer add b:7433 --ca 0123…",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := pki.ParseFingerprint(authority)
			if err != nil {
				return usageError{err}
			}
			return c.setPeer(args[0], f)
		},
	}
	cmd.Flags().StringVar(&authority, "ca", "", "the authority of the node there, as tendril peer ls shows it there")
	_ = cmd.MarkFlagRequired("ca") // fails only for a flag that is not there
	return cmd
}

func (c *cli) peerRemoveVerb() *cobra.Command {
	return &cobra.Command{
		Use:     "rm HOST:PORT",
		Short:   "Make no more connections there; those that are stay",
		Example: "  tendril peer rm b:7433",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return c.setPeer(args[0], pki.Fingerprint{}) },
	}
}

func (c *cli) setPeer(address string, authority pki.Fingerprint) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.SetPeer(address, authority)
}

func (c *cli) peerListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls",
		Short:   "List the peers, and this node's own authority",
		Example: "  tendril peer ls --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(conn *client.Conn, _ []string) error {
			raw, err := conn.Peers()
			if err != nil {
				return err
			}
			var s daemon.PeersStatus
			if err := json.Unmarshal(raw, &s); err != nil {
				return fmt.Errorf("the daemon's list of peers: %w", err)
			}
			if c.json {
				return c.printJSON(s)
			}
			return c.printPeers(s)
		}),
	})
}

func (c *cli) printPeers(s daemon.PeersStatus) error {
	fmt.Fprintf(c.term.out, "this node's authority: %s\n", s.Authority)
	if len(s.Peers) == 0 {
		return nil
	}
	rows := make([][]string, len(s.Peers))
	for i, p := range s.Peers {
		rows[i] = []string{plain(p.Address), p.Authority}
	}
	return table(c.term.out, "ADDRESS | AUTHORITY", rows)
}
