package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/login"
	"tendril/store/object"
)

// serverInfo is one server in `tendril servers --json`.
type serverInfo struct {
	Server  string  `json:"server"`
	OK      bool    `json:"ok"`
	Version string  `json:"version,omitempty"`
	Tenant  string  `json:"tenant,omitempty"`
	Millis  float64 `json:"round_trip_ms,omitempty"`
	Why     string  `json:"why,omitempty"` // where not OK
}

func (c *cli) serversVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "servers",
		Short:   "List the other machines that you have logged in to, whether they answer, and how fast",
		Example: "  tendril servers\n  tendril servers --json",
		GroupID: "node",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := login.Servers()
			if err != nil {
				return err
			}
			list := make([]serverInfo, len(names))
			var asked sync.WaitGroup
			for i, name := range names {
				asked.Go(func() { list[i] = askServer(cmd.Context(), name) })
			}
			asked.Wait()
			if c.json {
				return c.printJSON(list)
			}
			if len(list) == 0 {
				c.say("You have not logged in to any machine. Log in to one: tendril login HOST")
				return nil
			}
			rows := make([][]string, len(list))
			for i, x := range list {
				if rows[i] = []string{x.Server, "ok", fmt.Sprintf("%.1f ms", x.Millis), x.Tenant, x.Version}; !x.OK {
					rows[i] = []string{x.Server, "no: " + x.Why, "-", "-", "-"}
				}
			}
			return table(c.term.out, c.term.screen, "SERVER | STATE | ROUND TRIP? | TENANT? | VERSION??", rows)
		},
	})
}

// askServer connects to a server and times one question.
func askServer(ctx context.Context, server string) serverInfo {
	conn, err := client.DialServer(ctx, server, client.Options{})
	if err != nil {
		why := strings.TrimPrefix(err.Error(), client.ErrDisconnected.Error()+": ")
		return serverInfo{Server: server, Why: strings.TrimPrefix(why, "server "+server+": ")}
	}
	defer conn.Close()
	about := conn.Daemon()
	return serverInfo{Server: server, OK: true, Version: about.Version, Tenant: about.Tenant,
		Millis: roundTrip(ctx, conn).Seconds() * 1000}
}

// roundTrip is the shortest time of a few questions that the daemon answers at once.
func roundTrip(ctx context.Context, conn *client.Conn) (least time.Duration) {
	for range 5 {
		began := time.Now()
		_, _ = conn.Stat(ctx, object.NewID()) // there is none: it is the time that counts
		if took := time.Since(began); least == 0 || took < least {
			least = took
		}
	}
	return least
}

func (c *cli) logoutVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "logout HOST[:PORT]",
		Short: "Forget the certificate and the key for another machine",
		Long: "Forget the certificate and the key that tendril login keeps for another machine. The certificate is valid until it expires:\n" +
			"to end it, revoke its token there (tendril token revoke --certificates).",
		Example: "  tendril logout gpubox",
		GroupID: "node",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			names, _ := login.Servers()
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if err := login.Logout(args[0]); err != nil {
				return hinted{err, "See which there are with: tendril servers"}
			}
			return nil
		},
	}
}
