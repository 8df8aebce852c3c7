package main

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"os/user"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/fsm"
	"tendril/daemon"
	"tendril/daemon/inspect"
	"tendril/ipc/wire"
	"tendril/store/object"
)

const tenantLong = `A tenant owns objects and sessions, and its limits apply to them. By default each user of a machine is a tenant of
its own, uid:NUMBER, which is the same tenant at all nodes. A tenant's record in the cluster says which users belong
to it, its quotas, and whether its programs are admitted. Only root and the daemon's own user manage tenants.

A record may be made for uid:NUMBER, too: the tenant keeps its objects, and other users can be mapped to it.`

func (c *cli) tenantVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenant",
		Short: "Manage the cluster's tenants: their users, their quotas, and who is admitted",
		Long:  tenantLong,
		Example: `  tendril tenant create lab
  tendril tenant map lab --user ann                 # at every node, whatever number she has there
  tendril tenant map lab --user 1001 --node gpu3
  tendril tenant quota lab --memory 32GiB --devices 4
  tendril tenant disable lab                        # at all nodes, within seconds; its objects stay`,
		GroupID: "node",
	}
	cmd.AddCommand(c.tenantListVerb(), c.tenantMapVerb(), c.tenantQuotaVerb(),
		c.tenantChangeVerb("create NAME", "Create a tenant's record", "", wire.TenantCreate),
		c.tenantChangeVerb("disable TENANT", "Refuse a tenant's programs at all nodes, and end those that run",
			"Refuse a tenant's programs at all nodes. Its connections, sessions and leases end within seconds. Its\n"+
				"objects and their replicas stay. Root and the daemon's own user are always admitted.",
			wire.TenantDisable),
		c.tenantChangeVerb("enable TENANT", "Admit a disabled tenant's programs again", "", wire.TenantEnable),
		c.tenantRemoveVerb())
	return cmd
}

func tenantsOf(ctx context.Context, conn *client.Conn) iter.Seq2[inspect.Tenant, error] {
	return decoded[inspect.Tenant](admin.Of(conn).EachTenant(ctx), "tenants")
}

func recordsToComplete(ctx context.Context, conn *client.Conn, typed string) (list []string) {
	for x, err := range tenantsOf(ctx, conn) {
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
func (c *cli) changeTenant(ctx context.Context, m wire.ChangeTenantRequest) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := admin.Of(conn).ChangeTenant(ctx, m); err != nil {
		return hinted{err, "See which there are with: tendril tenant ls    Nodes: tendril cluster status"}
	}
	if !c.json {
		return nil
	}
	for x, err := range tenantsOf(ctx, conn) {
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
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changeTenant(cmd.Context(), wire.ChangeTenantRequest{Name: args[0], Change: change})
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
		Long: "Remove a tenant's record, with its tokens and certificates. Its users become tenants of their own again. Its\n" +
			"objects stay and belong to its name: a new record of that name gets them.",
		Example:           "  tendril tenant rm lab",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completing(recordsToComplete),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changeTenant(cmd.Context(), wire.ChangeTenantRequest{Name: args[0], Change: wire.TenantRemove,
				Anyway: anyway})
		},
	}
	cmd.Flags().BoolVar(&anyway, "anyway", false, "remove it even if it has published objects")
	return c.jsonFlag(cmd)
}

func (c *cli) tenantListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "ls",
		Short:   "List the tenants that have a record, with their users and quotas",
		Example: "  tendril tenant ls --json",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			return printListing(c, tenantsOf(ctx, conn), "No records. Create one: tendril tenant create NAME",
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
		parts = append(parts, object.Counted(q.Objects, "object"))
	}
	if q.Devices > 0 {
		parts = append(parts, object.Counted(q.Devices, "device"))
	}
	return of + ": " + strings.Join(parts, ", ")
}

func (c *cli) tenantMapVerb() *cobra.Command {
	var who, group, certificate, node string
	var remove bool
	cmd := &cobra.Command{
		Use:   "map TENANT",
		Short: "Map a user or a group to a tenant, at all nodes or at one",
		Long: "Map a user, or all users with a primary group, to a tenant. Each node looks a name up itself; a number means the\n" +
			"same at all nodes. A mapping for one node overrides one for all nodes, and the node's own configuration\n" +
			"overrides both. A mapping applies to new connections; objects keep their tenant. With --certificate, only\n" +
			"tokens of this tenant can log in under that name.",
		Example: `  tendril tenant map lab --user ann
  tendril tenant map lab --group chemists --node gpu3
  tendril tenant map lab --user ann --remove`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completing(recordsToComplete),
		RunE: func(cmd *cobra.Command, args []string) error {
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
			if err := c.changeTenant(cmd.Context(), m); err != nil || remove {
				return err
			}
			c.sayUnknown(fsm.MemberKind(m.Kind), m.Member)
			return nil
		},
	}
	cmd.Flags().StringVar(&who, "user", "", "the user's `NAME` or number")
	cmd.Flags().StringVar(&group, "group", "", "the primary group's `NAME` or number")
	cmd.Flags().StringVar(&certificate, "certificate", "", "the `NAME` that clients log in with (tendril login --name)")
	cmd.Flags().StringVar(&node, "node", "", "map it at this node only")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the mapping")
	return c.jsonFlag(cmd)
}

// sayUnknown says of a name that this machine does not know that it may be mistyped: another node may know it.
func (c *cli) sayUnknown(kind fsm.MemberKind, name string) {
	if _, err := strconv.ParseUint(name, 10, 32); err == nil {
		return
	}
	var of string
	var unknown error
	switch kind {
	case fsm.MemberUser:
		of = "user"
		_, unknown = user.Lookup(name)
	case fsm.MemberGroup:
		of = "group"
		_, unknown = user.LookupGroup(name)
	}
	if unknown != nil {
		c.say(fmt.Sprintf("This machine has no %s %s. The mapping counts at nodes that have one; to remove it: --remove", of,
			plain(name)))
	}
}

func (c *cli) tenantQuotaVerb() *cobra.Command {
	var node string
	var whole bool
	var memory, disk, gpu string
	var devices, objects uint32
	cmd := &cobra.Command{
		Use:   "quota TENANT",
		Short: "Limit what a tenant may use on each node, on one, or in the whole cluster",
		Long: "Limit what a tenant may use on each node, or with --node on one: memory and disk of the store, memory of each\n" +
			"GPU, and leased devices. With --cluster, limit the bytes (--memory) and the number (--objects) of its published\n" +
			"objects, each counted once, and the devices that it leases over nodes. 0 removes a limit. A tenant keeps what\n" +
			"it already has. Where the record has no limit, the node's own --quota applies.",
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
				return usagef("want a limit: --memory, --disk, --gpu, --devices, --objects")
			}
			return c.changeTenant(cmd.Context(), m)
		},
	}
	cmd.Flags().StringVar(&memory, "memory", "", "memory of the store, such as 32GiB; with --cluster: bytes of published objects")
	cmd.Flags().StringVar(&disk, "disk", "", "disk space of the store")
	cmd.Flags().StringVar(&gpu, "gpu", "", "memory of each GPU")
	cmd.Flags().Uint32Var(&devices, "devices", 0, "devices leased at a time")
	cmd.Flags().Uint32Var(&objects, "objects", 0, "with --cluster: number of published objects")
	cmd.Flags().StringVar(&node, "node", "", "limit it on this node only")
	cmd.Flags().BoolVar(&whole, "cluster", false, "limit it in the whole cluster")
	cmd.MarkFlagsMutuallyExclusive("node", "cluster")
	return c.jsonFlag(cmd)
}
