package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/store/object"
)

func (c *cli) shareVerb() *cobra.Command {
	var to []string
	var revoke bool
	cmd := &cobra.Command{
		Use:   "share NAME|ID --to USER|GROUP|all",
		Short: "Let others read an object, or revoke that",
		Long: "Let users, groups (written :GROUP) or all read one of your objects. They use its ID, or YOUR-TENANT/NAME; they see it\n" +
			"in `tendril ls --shared`. --revoke admits no new readers; those that have the object keep it until they release it.",
		Example: "  tendril share photo --to ada\n  tendril share photo --to :video --to uid:1005\n  tendril share photo --to all\n  tendril share photo --to ada --revoke\n  tendril stat photo                 # lists who may read it",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			for _, who := range to {
				if err := shareWith(ctx, conn, args[0], who, revoke); err != nil {
					return fmt.Errorf("share %s: %w", args[0], err)
				}
			}
			return nil
		}),
	}
	cmd.Flags().StringArrayVar(&to, "to", nil, "`WHO` may read it: a user, a :group, uid:N, gid:N or all; may be repeated")
	cmd.Flags().BoolVar(&revoke, "revoke", false, "admit no new readers")
	_ = cmd.MarkFlagRequired("to") // the flag was defined a line ago
	return cmd
}

func shareWith(ctx context.Context, conn *client.Conn, what, to string, revoke bool) error {
	who, err := principal(to)
	if err != nil {
		return err
	}
	info, err := lookup(ctx, conn, what)
	switch {
	case err != nil:
		return err
	case revoke:
		err := conn.Unshare(ctx, info.ID, who)
		if errors.Is(err, object.ErrNotFound) {
			return hinted{err, "See whom it is shared with: tendril stat " + plain(what)}
		}
		return err
	}
	return conn.Share(ctx, info.ID, who)
}

// principal turns what a person writes into what the daemon knows.
func principal(to string) (string, error) {
	if kind, number, _ := strings.Cut(to, ":"); to == "all" || kind == "uid" || kind == "gid" {
		if _, err := strconv.ParseUint(number, 10, 32); err != nil && to != "all" {
			return "", usagef("--to %q: want a number after %s:", to, kind)
		}
		return to, nil
	}
	if name, isGroup := strings.CutPrefix(to, ":"); isGroup {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", usagef("there is no group %s on this machine", name)
		}
		return "gid:" + g.Gid, nil
	}
	u, err := user.Lookup(to)
	if err != nil {
		return "", usagef("there is no user %s on this machine; a group is written :GROUP", to)
	}
	return "uid:" + u.Uid, nil
}
