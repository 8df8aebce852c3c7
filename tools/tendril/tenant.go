package main

import (
	"cmp"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/cluster/fsm"
	"tendril/daemon"
	"tendril/daemon/inspect"
	"tendril/ipc/wire"
)

const tenantLong = `A tenant is whose objects, sessions and limits they are. Without a record each user of a machine is one,
called uid:NUMBER, the same at all nodes. A record of the cluster says who is which tenant at each node,
what the tenant may have, and whether its programs are let in. Only root and the daemon's own user
manage tenants.

A record may also be of uid:NUMBER: its objects stay, and other users can be mapped to it.`

func (c *cli) tenantVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenant",
		Short: "Say who is which tenant in the cluster, what tenants may have, and whom to let in",
		Long:  tenantLong,
		Example: `  tendril tenant create lab
  tendril tenant map lab --user ann                 # at every node, whatever number she has there
  tendril tenant map lab --user 1001 --node gpu3
  tendril tenant quota lab --memory 32GiB --devices 4
  tendril tenant disable lab                        # at all nodes, within seconds; its objects stay`,
		GroupID: "node",
	}
	cmd.AddCommand(c.tenantListVerb(), c.tenantMapVerb(), c.tenantQuotaVerb(),
		c.tenantChangeVerb("create NAME", "Make a record of a tenant", "", wire.TenantCreate),
		c.tenantChangeVerb("disable TENANT", "Let a tenant's programs in nowhere, and end those that run",
			"Connections and sessions of the tenant end at all nodes within seconds; leases end with them. Its\n"+
				"objects stay, and their replicas are kept. Root and the daemon's own user are always let in.",
			wire.TenantDisable),
		c.tenantChangeVerb("enable TENANT", "Let a disabled tenant's programs in again", "", wire.TenantEnable),
		c.tenantRemoveVerb())
	return cmd
}

func tenantsOf(conn *client.Conn) iter.Seq2[inspect.Tenant, error] {
	return decoded[inspect.Tenant](conn.EachTenant(), "tenants")
}

func recordsToComplete(conn *client.Conn, typed string) (list []string) {
	for x, err := range tenantsOf(conn) {
		if err != nil || len(list) == mostCompleted {
			break
		}
		if strings.HasPrefix(x.Name, typed) && x.Name == plain(x.Name) {
			list = append(list, x.Name+"\t"+x.State)
		}
	}
	return list
}

// changeTenant asks for a change, and prints the record that came of it where --json wants that.
func (c *cli) changeTenant(m wire.ChangeTenantRequest) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.ChangeTenant(m); err != nil {
		return hinted{err, "See which there are with: tendril tenant ls    Nodes: tendril cluster status"}
	}
	if !c.json {
		return nil
	}
	for x, err := range tenantsOf(conn) {
		if err != nil || x.Name == m.Name {
			return firstError(err, c.printJSON(x))
		}
	}
	return c.printJSON(map[string]string{"removed": m.Name})
}

func (c *cli) tenantChangeVerb(use, short, long string, change wire.TenantChange) *cobra.Command {
	name, _, _ := strings.Cut(use, " ")
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: "  tendril tenant " + name + " lab",
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completing(recordsToComplete),
		RunE: func(_ *cobra.Command, args []string) error {
			return c.changeTenant(wire.ChangeTenantRequest{Name: args[0], Change: change})
		},
	}
	if change == wire.TenantCreate {
		cmd.ValidArgsFunction = words()
	}
	return c.jsonFlag(cmd)
}

func (c *cli) tenantRemoveVerb() *cobra.Command {
	var anyway bool
	cmd := &cobra.Command{
		Use:   "rm TENANT",
		Short: "Remove a tenant's record, with its tokens and certificates",
		Long: "Its users are tenants of their own again. Objects of the tenant stay and belong to the name: who makes the\n" +
			"record again has them.",
		Example:           "  tendril tenant rm lab",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completing(recordsToComplete),
		RunE: func(_ *cobra.Command, args []string) error {
			return c.changeTenant(wire.ChangeTenantRequest{Name: args[0], Change: wire.TenantRemove, Anyway: anyway})
		},
	}
	cmd.Flags().BoolVar(&anyway, "anyway", false, "also where it has published objects")
	return c.jsonFlag(cmd)
}

func (c *cli) tenantListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls",
		Short:   "List the tenants that the cluster has records of: who they are, and what they may have",
		Example: "  tendril tenant ls --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(conn *client.Conn, _ []string) error {
			return printListing(c, tenantsOf(conn), "No records. Create one: tendril tenant create NAME",
				"TENANT | STATE | WHO | QUOTAS | PUBLISHED? | SIZE?", tenantRow)
		}),
	})
}

func tenantRow(x inspect.Tenant) []string {
	var who, quotas []string
	for _, m := range x.Members {
		text := m.Kind + " " + plain(m.Name)
		if m.Node != "" {
			text += "@" + plain(m.Node)
		}
		who = append(who, text)
	}
	for _, q := range x.Quotas {
		quotas = append(quotas, quotaText(q, cmp.Or(plain(q.Node), "node")))
	}
	if x.Cluster != (inspect.Quota{}) {
		quotas = append(quotas, quotaText(x.Cluster, "cluster"))
	}
	return []string{plain(x.Name), x.State, orDash(strings.Join(who, ", ")), orDash(strings.Join(quotas, "; ")),
		strconv.Itoa(x.PublishedObjects), size(x.PublishedBytes)}
}

func quotaText(q inspect.Quota, of string) string {
	var parts []string
	for _, x := range []struct {
		n    uint64
		what string
	}{{q.MemoryBytes, "memory"}, {q.DiskBytes, "disk"}, {q.GPUBytes, "GPU"}, {q.Bytes, "published"}} {
		if x.n > 0 {
			parts = append(parts, x.what+" "+size(x.n))
		}
	}
	if q.Objects > 0 {
		parts = append(parts, fmt.Sprintf("%d objects", q.Objects))
	}
	if q.Devices > 0 {
		parts = append(parts, fmt.Sprintf("%d devices", q.Devices))
	}
	return of + ": " + strings.Join(parts, ", ")
}

func (c *cli) tenantMapVerb() *cobra.Command {
	var who, group, certificate, node string
	var remove bool
	cmd := &cobra.Command{
		Use:   "map TENANT",
		Short: "Say which user of which node is a tenant",
		Long: "Map a user, or whose primary group it is, to a tenant: by a name, which each node looks up, or by a number.\n" +
			"What is said for one node comes before what is said for all, and the node's own configuration before both.\n" +
			"It holds for connections that begin from then on. Objects stay whose they are. With --certificate, only\n" +
			"tokens of this tenant may log in under that name.",
		Example: `  tendril tenant map lab --user ann
  tendril tenant map lab --group chemists --node gpu3
  tendril tenant map lab --user ann --remove`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completing(recordsToComplete),
		RunE: func(_ *cobra.Command, args []string) error {
			m := wire.ChangeTenantRequest{Name: args[0], Change: wire.TenantMap, Node: node}
			given := 0
			for kind, name := range map[fsm.MemberKind]string{fsm.MemberUser: who, fsm.MemberGroup: group,
				fsm.MemberCertificate: certificate} {
				if name != "" {
					given++
					m.Kind, m.Member = uint8(kind), name
				}
			}
			if given != 1 {
				return usagef("want one of --user, --group and --certificate")
			}
			if remove {
				m.Change = wire.TenantUnmap
			}
			return c.changeTenant(m)
		},
	}
	cmd.Flags().StringVar(&who, "user", "", "a user's `NAME` or number")
	cmd.Flags().StringVar(&group, "group", "", "a primary group's `NAME` or number")
	cmd.Flags().StringVar(&certificate, "certificate", "", "a `NAME` that clients log in under (tendril login --name)")
	cmd.Flags().StringVar(&node, "node", "", "at this node alone")
	cmd.Flags().BoolVar(&remove, "remove", false, "take it back")
	return c.jsonFlag(cmd)
}

func (c *cli) tenantQuotaVerb() *cobra.Command {
	var node string
	var whole bool
	var memory, disk, gpu string
	var devices, objects uint32
	cmd := &cobra.Command{
		Use:   "quota TENANT",
		Short: "Bound what a tenant may have: on each node, on one, or in the whole cluster",
		Long: "On each node, or with --node on one: memory and disk of the store, memory of each GPU, devices that its\n" +
			"programs lease. With --cluster: bytes (--memory) and number (--objects) of published objects, each counted\n" +
			"once, and devices leased over nodes. 0 takes a bound away. What a tenant has already it keeps. Where\n" +
			"nothing is said, the node's own --quota holds.",
		Example: `  tendril tenant quota lab --memory 32GiB --disk 1TiB --gpu 20GiB --devices 2
  tendril tenant quota lab --node gpu3 --memory 64GiB
  tendril tenant quota lab --cluster --memory 4TiB --objects 10000 --devices 8`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completing(recordsToComplete),
		RunE: func(cmd *cobra.Command, args []string) error {
			m := wire.ChangeTenantRequest{Name: args[0], Change: wire.TenantQuota, Node: node, Whole: whole,
				Devices: devices, Objects: objects}
			for _, x := range []struct {
				flag string
				text string
				bit  uint8
				to   *uint64
			}{{"memory", memory, wire.QuotaMemory, &m.Memory}, {"disk", disk, wire.QuotaDisk, &m.Disk},
				{"gpu", gpu, wire.QuotaGPU, &m.GPU}, {"devices", "", wire.QuotaDevices, nil},
				{"objects", "", wire.QuotaObjects, nil}} {
				if !cmd.Flags().Changed(x.flag) {
					continue
				}
				m.Fields |= x.bit
				if x.to == nil {
					continue
				}
				var err error
				if *x.to, err = daemon.ParseBytes(x.text); err != nil {
					return usagef("--%s %q: want a size such as 32GiB, or 0", x.flag, x.text)
				}
			}
			if m.Fields == 0 {
				return usagef("want a bound: --memory, --disk, --gpu, --devices, --objects")
			}
			return c.changeTenant(m)
		},
	}
	cmd.Flags().StringVar(&memory, "memory", "", "bytes of the store's memory, such as 32GiB; "+
		"with --cluster of published objects")
	cmd.Flags().StringVar(&disk, "disk", "", "bytes on disk")
	cmd.Flags().StringVar(&gpu, "gpu", "", "bytes of each GPU's memory")
	cmd.Flags().Uint32Var(&devices, "devices", 0, "leased devices")
	cmd.Flags().Uint32Var(&objects, "objects", 0, "published objects (with --cluster)")
	cmd.Flags().StringVar(&node, "node", "", "on this node alone")
	cmd.Flags().BoolVar(&whole, "cluster", false, "in the whole cluster")
	cmd.MarkFlagsMutuallyExclusive("node", "cluster")
	return c.jsonFlag(cmd)
}
