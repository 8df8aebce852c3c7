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
	"tendril/daemon"
)

func (c *cli) clusterRotateVerb() *cobra.Command {
	var finish, anyway bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Give the cluster another authority, without a stop",
		Long: "Give the cluster another authority, for example because a node that has left may have kept the key of the present\n" +
			"one. Nodes then sign with the new authority, and accept both. Clients that connect, or are connected, get a\n" +
			"certificate of the new one within 10 minutes. Run the command again to see which nodes and clients have not\n" +
			"followed yet.\n\n" +
			"With --finish the old authority is no longer accepted, and the rotation is over. Tokens from before are then of no\n" +
			"use; make new ones. A client that was not connected in between logs in again. Nodes of other clusters that name\n" +
			"this one as a peer have to name the new authority. Only root and the daemon's own user may do this.",
		Example: "  tendril cluster rotate\n  tendril cluster rotate            # who has not followed yet?\n" +
			"  tendril cluster rotate --finish",
		Args: cobra.NoArgs,
	}
	cmd.RunE = c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
		if anyway && !finish {
			return usageError{errors.New("--anyway goes with --finish")}
		}
		raw, err := admin.Of(conn).RotateAuthority(ctx, finish, anyway)
		if err != nil {
			return err
		}
		var s daemon.RotateStatus
		if err := json.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("the daemon's answer: %w", err)
		}
		if c.json {
			return c.printJSON(s)
		}
		return c.sayRotation(s)
	})
	cmd.Flags().BoolVar(&finish, "finish", false, "end the rotation: accept the old authority no longer")
	cmd.Flags().BoolVar(&anyway, "anyway", false, "finish even if some nodes or clients have not followed")
	return c.jsonFlag(cmd)
}

func (c *cli) sayRotation(s daemon.RotateStatus) error {
	if err := hanging(c.term.out, c.term.screen, "authority: ", nil, s.Authority); err != nil {
		return err
	}
	if s.Finished && !s.Ended {
		c.say("No rotation is under way: the last one was finished before, and nothing was done now. To begin one: tendril " +
			"cluster rotate")
		return nil
	}
	if s.Finished {
		c.say("The old authority is no longer accepted. Make new tokens: those from before are of no use.")
		return nil
	}
	if s.Begun {
		c.say("The cluster gets this authority. The old one is accepted until: tendril cluster rotate --finish")
	}
	if len(s.Waiting) > 0 {
		c.say("These nodes have not followed yet: " + plain(strings.Join(s.Waiting, ", ")))
	}
	if len(s.Clients) > 0 {
		c.say("These clients have nothing but certificates of the old authority: " + plain(strings.Join(s.Clients, ", ")))
	}
	if len(s.Waiting)+len(s.Clients) == 0 {
		c.say("All nodes and clients have followed. To end the old authority: tendril cluster rotate --finish")
	}
	return nil
}
