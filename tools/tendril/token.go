package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/cluster/pki"
	"tendril/daemon"
	"tendril/store/object"
)

const tokenExample = `  tendril token create                                # for one of your machines; a day, any number of uses
  tendril token create --once --expires 1h --tenant lab
  tendril token ls
  tendril token revoke ID --certificates              # and throw out who came in with it`

func (c *cli) tokenVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "token",
		Short:   "Let other machines in, and out again",
		Long:    "A token lets a client on another machine get a certificate (tendril login). Tokens are for root and the daemon's own user.",
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
		Short:   "Make a token and print it, this once",
		Example: "  tendril token create --expires 24h --once",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			o := client.TokenOptions{Once: once, Tenant: tenant}
			var err error
			if o.Role, err = pki.ParseRole(role); err != nil {
				return usageError{err}
			}
			if o.Life, err = lifeOf(expires); err != nil {
				return err
			}
			return c.createToken(o)
		},
	}
	cmd.Flags().StringVar(&role, "role", "user", "user (sessions and objects), read-only (looks at things) or node")
	cmd.Flags().StringVar(&expires, "expires", "24h", "how long it is good for, such as 90m or 24h, or never")
	cmd.Flags().BoolVar(&once, "once", false, "good for one login")
	cmd.Flags().StringVar(&tenant, "tenant", "", "for whom (default: you; root: a tenant of the token's own)")
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

func (c *cli) createToken(o client.TokenOptions) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	text, err := conn.CreateToken(o)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(map[string]string{"token": text})
	}
	fmt.Fprintln(c.term.out, text)
	fmt.Fprintf(c.term.err, "On the other machine: tendril login HOST:PORT    and then this token, which is a secret.\n%s", c.whereToLogIn(conn))
	return nil
}

// whereToLogIn says where the front door is, or why it is nowhere.
func (c *cli) whereToLogIn(conn *client.Conn) string {
	raw, err := conn.Status()
	if err != nil {
		return ""
	}
	var s daemon.Status
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	if s.Node.Listen == "" {
		return "The front door is not open for other machines: see tendril status.\n"
	}
	if daemon.Loopback(s.Node.Listen) {
		return "The front door is at " + s.Node.Listen + ", for this machine alone: start the daemon with --listen :" + client.DefaultPort + " for others.\n"
	}
	return "The front door is at " + s.Node.Listen + ".\n"
}

func (c *cli) tokenListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls",
		Short:   "List the tokens, oldest first, without their secrets, and whose certificates they paid for",
		Example: "  tendril token ls --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(conn *client.Conn, _ []string) error {
			list := decoded[daemon.TokenStatus](conn.EachToken(), "tokens")
			return printListing(c, list, "ID | ROLE | STATE | EXPIRES | USES ALLOWED | USES | TENANT | WHO MAY COME IN WITH IT", tokenRow)
		}),
	})
}

func tokenRow(t daemon.TokenStatus) []string {
	expires, once := "never", "any"
	if !t.Expires.IsZero() {
		expires = t.Expires.Local().Format(time.DateTime)
	}
	if t.Once {
		once = "one"
	}
	return []string{t.ID, t.Role, t.State, expires, once, strconv.FormatUint(uint64(t.Uses), 10), orDash(t.Tenant), orDash(plain(clientsOf(t)))}
}

// clientsOf names some of who has a good certificate by a token: to find the one of a laptop that was stolen.
func clientsOf(t daemon.TokenStatus) string {
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
		Short:   "End a token, and with --certificates what it paid for",
		Example: "  tendril token revoke 0123456789abcdef0123456789abcdef --certificates",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			id, err := object.ParseID(args[0])
			if err != nil {
				return usageError{fmt.Errorf("a token's ID, as tendril token ls shows it: %w", err)}
			}
			conn, err := c.dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			return conn.RevokeToken(id, certificates)
		},
	}
	cmd.Flags().BoolVar(&certificates, "certificates", false, "also the certificates that it paid for; their connections end at once")
	return cmd
}
