package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	"tendril/cluster/pki"
	"tendril/daemon"
	"tendril/daemon/inspect"
	"tendril/store/object"
)

const tokenExample = `  tendril token create                                # for one of your machines: valid for a day, any number of uses
  tendril token create --once --expires 1h --tenant lab
  tendril token create --role metrics                 # for Prometheus: reads /metrics, until it is revoked
  tendril token ls
  tendril token revoke ID --certificates              # also end the connections of its clients`

func (c *cli) tokenVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "token",
		Short:   "Admit clients on other machines, and revoke them",
		Long:    "With a token a client on another machine gets a certificate (tendril login). Only root and the daemon's own user\nmanage tokens.",
		Example: tokenExample,
		GroupID: "node",
	}
	cmd.AddCommand(c.tokenCreateVerb(), c.tokenListVerb(), c.tokenRevokeVerb())
	return cmd
}

func (c *cli) tokenCreateVerb() *cobra.Command {
	var role, expires, tenant string
	var once bool
	cmd := &cobra.Command{
		Use:     "create",
		Short:   "Create a token and print it, once",
		Example: "  tendril token create --expires 24h --once",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := admin.TokenOptions{Once: once, Tenant: tenant}
			var err error
			if o.Role, err = pki.ParseRole(role); err != nil {
				return usageError{err}
			}
			if o.Role == pki.Metrics && !cmd.Flags().Changed("expires") {
				expires = "never"
			}
			if o.Life, err = lifeOf(expires); err != nil {
				return err
			}
			return c.createToken(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&role, "role", "user", "user (sessions and objects), read-only (lists and reads), node "+
		"(cluster join), or metrics (reads /metrics over HTTP)")
	cmd.Flags().StringVar(&expires, "expires", "24h", "how long the token is valid, such as 90m or 24h, or never (the default for role metrics)")
	cmd.Flags().BoolVar(&once, "once", false, "valid for one login only")
	cmd.Flags().StringVar(&tenant, "tenant", "",
		"the tenant that its clients belong to, or client:NAME: the tenant of that client in tendril token ls "+
			"(default: you; for root: a new tenant)")
	return c.jsonFlag(cmd)
}

// lifeOf reads how long a token lives; 0 is for ever.
func lifeOf(text string) (time.Duration, error) {
	if text == "never" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		return 0, usagef("--expires %q: want a time from 1s on, such as 24h, or never", text)
	}
	return d, nil
}

func (c *cli) createToken(ctx context.Context, o admin.TokenOptions) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if o.Tenant, err = c.tenantMeant(ctx, conn, o.Tenant); err != nil {
		return err
	}
	text, err := admin.Of(conn).CreateToken(ctx, o)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(map[string]string{"token": text})
	}
	fmt.Fprintln(c.term.out, text)
	if o.Role == pki.Metrics {
		fmt.Fprint(c.term.err, "Prometheus shows this token: authorization: {credentials_file: FILE} in its scrape "+
			"configuration. It is a secret.\n"+c.whereToScrape(ctx, conn))
		return nil
	}
	command := "login"
	if o.Role == pki.Node {
		command = "cluster join"
	}
	fmt.Fprintf(c.term.err,
		"On the other machine run: tendril %s HOST:PORT    and enter this token. It is a secret.\n%s",
		command, c.whereToLogIn(ctx, conn))
	return nil
}

// clientPrefix stands before a client's name where a tenant is wanted. A name alone is always a tenant's: clients
// choose theirs, and one that calls itself as a tenant that is about to be made must not get that tenant's tokens.
const clientPrefix = "client:"

// tenantMeant is the tenant that a person has written: its name, or client:NAME.
func (c *cli) tenantMeant(ctx context.Context, conn *client.Conn, written string) (string, error) {
	name, ofClient := strings.CutPrefix(written, clientPrefix)
	if written == "" || written == conn.Daemon().Tenant {
		return written, nil
	}
	var tenants []string
	known := false
	for x, err := range tokensOf(ctx, conn) {
		if err != nil {
			return "", err
		}
		known = known || x.Tenant == written
		if slices.Contains(x.Clients, name) && !slices.Contains(tenants, x.Tenant) {
			tenants = append(tenants, x.Tenant)
		}
	}
	switch {
	case !ofClient && !known && len(tenants) > 0:
		c.say(fmt.Sprintf("%s is a tenant of its own. For the tenant of the client %s write --tenant %s%s.", plain(name),
			plain(name), clientPrefix, plain(name)))
		return written, nil
	case !ofClient:
		return written, nil
	case len(tenants) == 0:
		return "", hinted{fmt.Errorf("%w: no client is called %q", object.ErrNotFound, name),
			"See which there are with: tendril token ls"}
	case len(tenants) > 1:
		return "", usagef("--tenant %s: there are clients of this name of the tenants %s: write the tenant", written,
			strings.Join(tenants, ", "))
	}
	return tenants[0], nil
}

// whereToLogIn says where the front door is, or why it is nowhere.
func (c *cli) whereToLogIn(ctx context.Context, conn *client.Conn) string {
	raw, err := admin.Of(conn).Status(ctx)
	if err != nil {
		return ""
	}
	var s daemon.Status
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	if s.Node.Listen == "" {
		return "The daemon does not listen for other machines: see tendril status.\n"
	}
	if daemon.Loopback(s.Node.Listen) {
		return "The daemon listens at " + s.Node.Listen +
			", for this machine only. For others start it with --listen :" + login.DefaultPort + ".\n"
	}
	return "The daemon listens at " + s.Node.Listen + ".\n"
}

// whereToScrape says where /metrics is, or why it is nowhere.
func (c *cli) whereToScrape(ctx context.Context, conn *client.Conn) string {
	raw, err := admin.Of(conn).Status(ctx)
	var s daemon.Status
	if err != nil || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	if s.Node.HTTP == "" {
		return "The daemon answers no HTTP over TCP: start it with --http HOST:PORT.\n"
	}
	return "The metrics are at http://" + s.Node.HTTP + "/metrics.\n"
}

// sayWhoStays names the clients that a revoked token leaves with a good certificate.
func (c *cli) sayWhoStays(ctx context.Context, conn *client.Conn, id object.ID) {
	for x, err := range tokensOf(ctx, conn) {
		if err == nil && x.ID == id.String() && len(x.Clients) > 0 {
			c.say(fmt.Sprintf("No new client can use it. These keep their certificates: %s. To revoke those, too: "+
				"tendril token revoke %s --certificates", plain(clientsOf(x)), x.ID))
		}
	}
}

func (c *cli) tokenListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls",
		Short:   "List the tokens and their clients, oldest first; secrets are not shown",
		Example: "  tendril token ls --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			return printListing(c, tokensOf(ctx, conn), "No tokens. Create one: tendril token create", tokensHead, tokenRow)
		}),
	})
}

const tokensHead = "ID | ROLE? | STATE | EXPIRES | USES ALLOWED?? | USES?? | TENANT? | CLIENTS?"

func tokenRow(t inspect.Token) []string {
	expires, once := "never", "any"
	if !t.Expires.IsZero() {
		expires = t.Expires.Local().Format(time.DateTime)
	}
	if t.Once {
		once = "one"
	}
	return []string{t.ID, t.Role, t.State, expires, once, strconv.FormatUint(uint64(t.Uses), 10), orDash(t.Tenant),
		orDash(plain(clientsOf(t)))}
}

// clientsOf names some of who has a good certificate by a token: to find the one of a laptop that was stolen.
func clientsOf(t inspect.Token) string {
	const most = 5
	if n := len(t.Clients); n > most {
		return strings.Join(t.Clients[:most], ", ") + fmt.Sprintf(" and %d more", n-most)
	}
	return strings.Join(t.Clients, ", ")
}

func (c *cli) tokenRevokeVerb() *cobra.Command {
	var certificates bool
	cmd := &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke a token, and with --certificates also its clients' certificates",
		Example: "  tendril token revoke 0123456789ab --certificates     # the beginning of its ID is enough",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: c.completing(func(ctx context.Context, conn *client.Conn, typed string) (list []string) {
			for x, err := range tokensOf(ctx, conn) {
				if err != nil || len(list) == mostCompleted {
					break
				}
				if x.Revoked.IsZero() && strings.HasPrefix(x.ID, typed) {
					list = append(list, x.ID+"\t"+plain(strings.TrimSpace(x.Role+" "+clientsOf(x))))
				}
			}
			return list
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := object.ParseID(args[0])
			if err != nil && !isShortID(args[0]) {
				return usagef("%q: want a token's ID, or %d digits or more of its beginning, as tendril token ls shows it", args[0],
					leastShortID)
			}
			conn, failed := c.dial(cmd.Context())
			if failed != nil {
				return failed
			}
			defer conn.Close()
			if err != nil {
				id, err = longID(args[0], tokenIDs(cmd.Context(), conn), fmt.Errorf("%w: no token's ID begins with %s",
					object.ErrNotFound, args[0]))
			}
			if err == nil {
				err = admin.Of(conn).RevokeToken(cmd.Context(), id, certificates)
			}
			if err != nil {
				return hinted{err, "See which there are with: tendril token ls"}
			}
			if !certificates {
				c.sayWhoStays(cmd.Context(), conn, id)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&certificates, "certificates", false,
		"also revoke the certificates made with it; their connections end at once")
	return cmd
}
