package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	"tendril/daemon"
	"tendril/forwarding/session/settings"
)

// completeArguments has the shell offer objects and streams where a command takes one, files where it takes those, and
// what flags take.
func (c *cli) completeArguments(root *cobra.Command) {
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	c.completeTree(root)
	offerFor(root, "server", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names, _ := login.Servers() // none, where they cannot be read
		return append(names, settings.LocalServer), cobra.ShellCompDirectiveNoFileComp
	})
	offerFor(root, "socket", files)
}

func (c *cli) completeTree(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		c.completeTree(below)
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(cmd.Use, cmd.Name()+" "), " ")
	switch {
	case cmd.ValidArgsFunction != nil:
	case cmd.Name() == "compose":
		cmd.ValidArgsFunction = c.membersToComplete
	case strings.HasPrefix(first, "NAME"), first == "[PREFIX]" && cmd.Parent() == cmd.Root():
		cmd.ValidArgsFunction = c.completing(objectsToComplete)
	case strings.HasPrefix(first, "STREAM"), first == "[PREFIX]":
		cmd.ValidArgsFunction = c.completing(streamsToComplete)
	case strings.Contains(cmd.Use, "FILE"), strings.Contains(cmd.Use, "PROGRAM"):
		cmd.ValidArgsFunction = files
	}
	for flag, offer := range map[string]cobra.CompletionFunc{
		"device":    c.completing(devicesToComplete),
		"role":      words("user", "read-only", "node"),
		"tenant":    c.completing(tenantsToComplete),
		"node":      c.completing(nodesToComplete),
		"to":        c.principalsToComplete,
		"platforms": words("one", "node", "native"),
		"output":    files, "report": files, "out": files, "svg": files, "library": files, "config": files, "state-dir": files,
	} {
		if cmd.Flags().Lookup(flag) != nil {
			offerFor(cmd, flag, offer)
		}
	}
}

// offerFor registers what a flag takes. It fails for a flag that is not there, or has something already: a fault of
// ours.
func offerFor(cmd *cobra.Command, flag string, offer cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(err)
	}
}

// objectsToComplete are the names of objects that begin as what is typed.
func objectsToComplete(ctx context.Context, conn *client.Conn, typed string) (list []string) {
	for info, err := range conn.Objects(ctx, client.Query{Prefix: typed}) {
		if err != nil || len(list) == mostCompleted {
			break
		}
		if info.Name != "" && info.Name == plain(info.Name) { // what is escaped is no name of an object's
			list = append(list, info.Name+"\t"+size(info.SizeBytes))
		}
	}
	return list
}

func streamsToComplete(ctx context.Context, conn *client.Conn, typed string) (list []string) {
	for s, err := range conn.EachStream(ctx, typed) {
		if err != nil || len(list) == mostCompleted {
			break
		}
		if s.Name == plain(s.Name) {
			list = append(list, s.Name+"\t"+s.State)
		}
	}
	return list
}

// devicesToComplete are the devices' numbers, and their types.
func devicesToComplete(ctx context.Context, conn *client.Conn, _ string) (list []string) {
	snap, err := devicesOf(ctx, conn)
	if err != nil {
		return nil
	}
	types := map[string]bool{}
	for _, d := range describeDevices(snap) {
		if list = append(list, strconv.Itoa(d.Index)+"\t"+d.Name); !types[d.Type] {
			types[d.Type] = true
			list = append(list, "type="+d.Type+"\tall of this type")
		}
	}
	return list
}

// membersToComplete offers the objects that a composite's parts may be, behind PART=. The composite's own name is new.
func (c *cli) membersToComplete(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	part, begun, is := strings.Cut(typed, "=")
	if len(args) == 0 || !is {
		return nil, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	list, directive := c.completing(objectsToComplete)(cmd, args, begun)
	for i := range list {
		list[i] = part + "=" + list[i]
	}
	return list, directive
}

// principalsToComplete offers whom an object may be shared with: users of this machine, and groups behind a colon; with
// --revoke those who have it.
func (c *cli) principalsToComplete(cmd *cobra.Command, args []string, typed string) ([]string,
	cobra.ShellCompDirective) {
	if revoke, _ := cmd.Flags().GetBool("revoke"); revoke && len(args) == 1 { // the flag is there
		return c.completing(func(ctx context.Context, conn *client.Conn, typed string) []string {
			info, err := lookup(ctx, conn, args[0])
			if err != nil {
				return nil
			}
			return slices.DeleteFunc(info.Grants, func(g string) bool { return !strings.HasPrefix(g, typed) })
		})(cmd, args, typed)
	}
	var list []string
	if strings.HasPrefix(typed, ":") {
		for _, g := range accounts("/etc/group") {
			list = append(list, ":"+g.name)
		}
	} else {
		list = append(list, "all")
		for _, u := range accounts("/etc/passwd") {
			if u.id == 0 || u.id >= leastUser && u.id != nobody {
				list = append(list, u.name)
			}
		}
	}
	list = slices.DeleteFunc(list, func(s string) bool { return !strings.HasPrefix(s, typed) })
	return list[:min(len(list), mostCompleted)], cobra.ShellCompDirectiveNoFileComp
}

// Numbers of users that are people's, as Debian has them.
const (
	leastUser = 1000
	nobody    = 65534
)

// account is a user or a group of this machine.
type account struct {
	name string
	id   uint64
}

// accounts reads passwd(5) or group(5), whose lines both are NAME:PASSWORD:ID:…; what is no such line is left out.
func accounts(path string) (list []account) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) > 2 {
			if id, err := strconv.ParseUint(f[2], 10, 32); err == nil {
				list = append(list, account{plain(f[0]), id})
			}
		}
	}
	return list
}

// tenantsToComplete are the tenants with a record, those of tokens, and of clients by their names.
func tenantsToComplete(ctx context.Context, conn *client.Conn, typed string) (list []string) {
	for x, err := range tenantsOf(ctx, conn) { // those with a record
		if err != nil || len(list) >= mostCompleted {
			break
		}
		if strings.HasPrefix(x.Name, typed) {
			list = append(list, plain(x.Name))
		}
	}
	for x, err := range tokensOf(ctx, conn) {
		if err != nil || len(list) >= mostCompleted {
			break
		}
		offers := []string{x.Tenant}
		for _, name := range x.Clients {
			offers = append(offers, clientPrefix+plain(name)+"\ttenant "+plain(x.Tenant))
		}
		for _, o := range offers {
			if o != "" && strings.HasPrefix(o, typed) && !slices.Contains(list, o) {
				list = append(list, o)
			}
		}
	}
	return list
}

// nodesToComplete are the names of the cluster's nodes.
func nodesToComplete(ctx context.Context, conn *client.Conn, typed string) (list []string) {
	raw, err := admin.Of(conn).ClusterStatus(ctx)
	var s daemon.ClusterInfo
	if err != nil || json.Unmarshal(raw, &s) != nil {
		return nil
	}
	for _, n := range s.Nodes {
		if strings.HasPrefix(n.Name, typed) && n.Name == plain(n.Name) && len(list) < mostCompleted {
			list = append(list, n.Name)
		}
	}
	return list
}
