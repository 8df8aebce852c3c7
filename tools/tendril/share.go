package main

import (
	"fmt"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
)

func (c *cli) shareVerb() *cobra.Command {
	var to []string
	var revoke bool
	cmd := &cobra.Command{
		Use:   "share NAME|ID --to USER|GROUP|all",
		Short: "Let others read an object, or no longer",
		Long: "Let users, groups (written :GROUP) or all read an object of yours. They find it by its ID, or as YOUR-TENANT/NAME; `tendril ls --shared`\n" +
			"shows it to them. With --revoke there are no new readers; who has the object keeps it until it is released.",
		Example: "  tendril share photo --to ada\n  tendril share photo --to :video --to uid:1005\n  tendril share photo --to all\n  tendril share photo --to ada --revoke\n  tendril stat photo                 # shows who may",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: c.asking(func(conn *client.Conn, args []string) error {
			info, err := lookup(conn, args[0])
			for i := 0; i < len(to) && err == nil; i++ {
				err = shareWith(conn, info.ID.String(), to[i], revoke)
			}
			if err != nil {
				return fmt.Errorf("share %s: %w", args[0], err)
			}
			return nil
		}),
	}
	cmd.Flags().StringArrayVar(&to, "to", nil, "a user, a :group, uid:N, gid:N or all; may be given several times")
	cmd.Flags().BoolVar(&revoke, "revoke", false, "end it for new readers")
	_ = cmd.MarkFlagRequired("to") // the flag was defined a line ago
	return cmd
}

func shareWith(conn *client.Conn, what, to string, revoke bool) error {
	who, err := principal(to)
	if err != nil {
		return err
	}
	info, err := lookup(conn, what)
	switch {
	case err != nil:
		return err
	case revoke:
		return conn.Unshare(info.ID, who)
	}
	return conn.Share(info.ID, who)
}

// principal turns what a person writes into what the daemon knows.
func principal(to string) (string, error) {
	if to == "all" || strings.HasPrefix(to, "uid:") || strings.HasPrefix(to, "gid:") {
		return to, nil
	}
	if name, isGroup := strings.CutPrefix(to, ":"); isGroup {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", usagef("%v", err)
		}
		return "gid:" + g.Gid, nil
	}
	u, err := user.Lookup(to)
	if err != nil {
		return "", usagef("%v; a group is written :GROUP", err)
	}
	return "uid:" + u.Uid, nil
}
