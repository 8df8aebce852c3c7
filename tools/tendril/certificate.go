package main

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon/inspect"
	"tendril/store/object"
)

func (c *cli) certificateVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certificate",
		Short: "List the certificates of the cluster, and revoke them",
		Long: "A client on another machine gets its certificate with a token (tendril login). For programs of tendril run --nodes\n" +
			"their node makes one for each tenant, valid for a day. Only root and the daemon's own user manage certificates.",
		Example: "  tendril certificate ls\n  tendril certificate revoke --tenant lab",
		GroupID: "node",
	}
	cmd.AddCommand(c.certificateListVerb(), c.certificateRevokeVerb())
	return cmd
}

func certificatesOf(ctx context.Context, conn *client.Conn) iter.Seq2[inspect.Certificate, error] {
	return decoded[inspect.Certificate](admin.Of(conn).EachCertificate(ctx), "certificates")
}

func (c *cli) certificateListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls",
		Short:   "List the certificates, by serial number",
		Example: "  tendril certificate ls --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			return printListing(c, certificatesOf(ctx, conn), "No certificates.",
				"SERIAL | NAME | ROLE? | STATE | EXPIRES | TENANT? | TOKEN?? | NODE??",
				func(x inspect.Certificate) []string {
					return []string{x.Serial, plain(x.Name), x.Role, x.State, x.Expires.Local().Format(time.DateTime),
						orDash(plain(x.Tenant)), orDash(x.Token), orDash(plain(x.Node))}
				})
		}),
	})
}

func (c *cli) certificateRevokeVerb() *cobra.Command {
	var which admin.CertificateChoice
	var reason string
	cmd := &cobra.Command{
		Use:   "revoke [SERIAL]",
		Short: "Revoke certificates of clients, and end their connections at all nodes",
		Long: "Revoke one certificate, or all of a tenant (--tenant) or of the programs on a node (--node). Connections that use\n" +
			"them end within seconds at every node that answers; the other nodes refuse them as soon as they learn of it.\n" +
			"A tenant's program gets a new certificate from its node when it starts again: to keep it out, disable the\n" +
			"tenant. To revoke a node's own certificates, remove the node: tendril cluster remove.",
		Example: "  tendril certificate revoke 4f0c2a9be177            # the beginning of its serial number is enough\n" +
			"  tendril certificate revoke --tenant lab --reason \"left the group\"\n" +
			"  tendril certificate revoke --node gpu3             # what its programs have (tendril run --nodes)",
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completing(func(ctx context.Context, conn *client.Conn, typed string) (list []string) {
			for x, err := range certificatesOf(ctx, conn) {
				if err != nil || len(list) == mostCompleted {
					break
				}
				if x.State == "good" && x.Role != "node" && strings.HasPrefix(x.Serial, typed) {
					list = append(list, x.Serial+"\t"+plain(x.Name))
				}
			}
			return list
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && which == (admin.CertificateChoice{}) {
				return usagef("want a serial number, --tenant or --node")
			}
			conn, err := c.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			if len(args) > 0 {
				if which.Serial, err = serialMeant(cmd.Context(), conn, args[0]); err != nil {
					return hinted{err, "See which there are with: tendril certificate ls"}
				}
			}
			revoked, err := admin.Of(conn).RevokeCertificates(cmd.Context(), which, reason)
			if err != nil {
				return hinted{err, "See which there are with: tendril certificate ls"}
			}
			if c.json {
				return c.printJSON(map[string]int{"revoked": revoked})
			}
			c.say(fmt.Sprintf("Revoked: %d.", revoked))
			return nil
		},
	}
	cmd.Flags().StringVar(&which.Tenant, "tenant", "", "all certificates of this tenant")
	cmd.Flags().StringVar(&which.Node, "node", "", "all certificates of programs on this node")
	cmd.Flags().StringVar(&reason, "reason", "", "the reason, which tendril certificate ls shows")
	return c.jsonFlag(cmd)
}

// serialMeant is the serial number that a person has written, or the beginning of it.
func serialMeant(ctx context.Context, conn *client.Conn, written string) (object.ID, error) {
	id, err := object.ParseID(written)
	if err == nil {
		return id, nil
	}
	if !isShortID(written) {
		return id, usagef("%q: want a serial number, or %d digits or more of its beginning", written, leastShortID)
	}
	ids := func(yield func(object.ID, error) bool) {
		for x, err := range certificatesOf(ctx, conn) {
			var id object.ID
			if err == nil {
				id, err = object.ParseID(x.Serial)
			}
			if !yield(id, err) {
				return
			}
		}
	}
	return longID(written, ids, fmt.Errorf("%w: no serial number begins with %s", object.ErrNotFound, written))
}
