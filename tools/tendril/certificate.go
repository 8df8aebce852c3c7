package main

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/daemon/inspect"
	"tendril/store/object"
)

func (c *cli) certificateVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certificate",
		Short: "List the certificates of the cluster, and revoke them",
		Long: "Clients on other machines have certificates by a token (tendril login). The programs of tendril run --nodes\n" +
			"have one from their node, for a day, for each tenant. Only root and the daemon's own user manage them.",
		Example: "  tendril certificate ls\n  tendril certificate revoke --tenant lab",
		GroupID: "node",
	}
	cmd.AddCommand(c.certificateListVerb(), c.certificateRevokeVerb())
	return cmd
}

func certificatesOf(conn *client.Conn) iter.Seq2[inspect.Certificate, error] {
	return decoded[inspect.Certificate](conn.EachCertificate(), "certificates")
}

func (c *cli) certificateListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls",
		Short:   "List the certificates, by serial number",
		Example: "  tendril certificate ls --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(conn *client.Conn, _ []string) error {
			return printListing(c, certificatesOf(conn), "No certificates.",
				"SERIAL | NAME | ROLE? | STATE | EXPIRES | TENANT? | TOKEN?? | NODE??",
				func(x inspect.Certificate) []string {
					return []string{x.Serial, plain(x.Name), x.Role, x.State, x.Expires.Local().Format(time.DateTime),
						orDash(plain(x.Tenant)), orDash(x.Token), orDash(plain(x.Node))}
				})
		}),
	})
}

func (c *cli) certificateRevokeVerb() *cobra.Command {
	var which client.CertificateChoice
	var reason string
	cmd := &cobra.Command{
		Use:   "revoke [SERIAL]",
		Short: "Revoke certificates of clients: their connections end, at all nodes",
		Long: "Revoke one certificate, or with --tenant and --node all that a tenant, or the programs of a node, have.\n" +
			"Connections that use them end within seconds at every node that answers; the others refuse them when they\n" +
			"hear of it. A tenant's programs get another certificate when they start again, from their node: to keep\n" +
			"them out, disable the tenant. A node's own certificates are revoked by: tendril cluster remove.",
		Example: "  tendril certificate revoke 4f0c2a9be177            # the beginning of its serial number is enough\n" +
			"  tendril certificate revoke --tenant lab --reason \"left the group\"\n" +
			"  tendril certificate revoke --node gpu3             # what its programs have (tendril run --nodes)",
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completing(func(conn *client.Conn, typed string) (list []string) {
			for x, err := range certificatesOf(conn) {
				if err != nil || len(list) == mostCompleted {
					break
				}
				if x.State == "good" && x.Role != "node" && strings.HasPrefix(x.Serial, typed) {
					list = append(list, x.Serial+"\t"+plain(x.Name))
				}
			}
			return list
		}),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && which == (client.CertificateChoice{}) {
				return usagef("want a serial number, --tenant or --node")
			}
			conn, err := c.dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			if len(args) > 0 {
				if which.Serial, err = serialMeant(conn, args[0]); err != nil {
					return hinted{err, "See which there are with: tendril certificate ls"}
				}
			}
			revoked, err := conn.RevokeCertificates(which, reason)
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
	cmd.Flags().StringVar(&which.Tenant, "tenant", "", "those of this tenant")
	cmd.Flags().StringVar(&which.Node, "node", "", "those that programs on this node have")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for tendril certificate ls")
	return c.jsonFlag(cmd)
}

// serialMeant is the serial number that a person has written, or the beginning of it.
func serialMeant(conn *client.Conn, written string) (object.ID, error) {
	id, err := object.ParseID(written)
	if err == nil {
		return id, nil
	}
	if !isShortID(written) {
		return id, usagef("%q: want a serial number, or %d digits or more of its beginning", written, leastShortID)
	}
	ids := func(yield func(object.ID, error) bool) {
		for x, err := range certificatesOf(conn) {
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
