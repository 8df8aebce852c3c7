package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/devices"
	"tendril/forwarding/session/lease"
	"tendril/forwarding/session/settings"
	"tendril/store/object"
)

// launchOptions are what `run` and `env` share.
type launchOptions struct {
	device  string
	publish string
	// host, cuda or ""
	publishKind string
	library     string

	plaintext bool
	compress  string
	onLoss    string
	deadline  time.Duration
	platforms string

	kernelTime, buildTime time.Duration

	lease, wait string
	nodes       bool
}

const deviceHelp = "devices that the program sees, in this order: N, UUID, type=gpu, mem>=8G, name=…, platform=…; ',' means and, ';' means then"

func (o *launchOptions) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.device, "device", "", deviceHelp)
	cmd.Flags().BoolVar(&o.nodes, "nodes", false,
		"the devices of all nodes of the cluster, in one platform unless --platforms says otherwise")
	cmd.Flags().StringVar(&o.lease, "lease", "",
		"lease devices for this program until it ends: a number of matching devices, all, or node (all of one node). Without --wait the program sees no devices if too few are free")
	waitFlag(cmd, &o.wait)
	cmd.Flags().StringVar(&o.publish, "publish", "",
		"make an object of this name from the buffer that the program reads back last")
	cmd.Flags().StringVar(&o.publishKind, "publish-kind", "",
		"memory of the published object: host, cuda for the GPU's, or opencl for the device's of any vendor (default host; with --server cuda)")
	cmd.Flags().StringVar(&o.onLoss, "on-loss", "",
		"with --server: how long calls wait for a lost connection before they fail: SECONDS, 0, or block (default 60)")
	cmd.Flags().DurationVar(&o.deadline, "deadline", 0,
		"with --server: how long the other machine may be silent before its connection counts as lost (default 10s)")
	cmd.Flags().BoolVar(&o.plaintext, "plaintext", false,
		"with --server: no TLS for the data, if the daemon allows it (--plaintext-peers)")
	cmd.Flags().StringVar(&o.compress, "compress", "",
		"with --server: auto or off: compress data where the link is slower than compression (default auto)")
	cmd.Flags().StringVar(&o.platforms, "platforms", "",
		"one: one platform with all devices; node: one for each node; native: one for each driver (default: one with several --server, else native)")
	cmd.Flags().DurationVar(&o.kernelTime, "kernel-time", 0,
		"longest time for one command on its device, such as 10s; a worker that exceeds it is ended (default: the daemon's limit)")
	cmd.Flags().DurationVar(&o.buildTime, "build-time", 0,
		"longest time for one build of a program, such as 1m; a worker that exceeds it is ended (default: the daemon's limit)")
	cmd.Flags().StringVar(&o.library, "library", "", "the driver library (default: the one built with this program)")
}

const envExample = `  eval "$(tendril env)"                       # this shell's OpenCL programs use the daemon
  tendril env --device type=gpu > gpu.env     # for a service or a notebook
  tendril env --json`

func (c *cli) envVerb() *cobra.Command {
	var o launchOptions
	cmd := &cobra.Command{
		Use:     "env",
		Short:   "Print the environment that makes OpenCL programs use the daemon",
		Long:    "Print the environment variables that make OpenCL programs use the daemon, as shell exports: for services, notebooks\nand IDEs. Programs that run setuid or with file capabilities ignore them.",
		Example: envExample,
		GroupID: "opencl",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			vars, err := c.environment(cmd.Context(), o)
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(vars)
			}
			for _, name := range slices.Sorted(maps.Keys(vars)) {
				fmt.Fprintf(c.term.out, "export %s=%s\n", name, shellQuote(vars[name]))
			}
			return nil
		},
	}
	o.flags(cmd)
	return c.jsonFlag(cmd)
}

// secondsText gives a duration as the driver library's variables take it.
func secondsText(text string) (string, error) {
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = fmt.Errorf("%v is below 0", d)
	}
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64), err
}

// shellQuote makes one word of s for a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// environment checks that a program can be served as o says, and returns the variables that make it so. Every loader is
// served: ocl-icd reads OCL_ICD_VENDORS (a directory) and OPENCL_VENDOR_PATH, the Khronos loader OCL_ICD_VENDORS and
// OCL_ICD_FILENAMES, and counts a library that is named twice once.
func (c *cli) environment(ctx context.Context, o launchOptions) (map[string]string, error) {
	if len(o.publish) > object.MaxNameBytes {
		return nil, usagef("--publish: a name of %d bytes: at most %d", len(o.publish), object.MaxNameBytes)
	}
	if !slices.Contains([]string{"", "host", "cuda", "opencl"}, o.publishKind) {
		return nil, usagef("--publish-kind %q: want host, cuda or opencl", o.publishKind)
	}
	if !slices.Contains([]string{"", "one", "node", "native"}, o.platforms) {
		return nil, usagef("--platforms %q: want one, node or native", o.platforms)
	}
	if !slices.Contains([]string{"", "auto", "off"}, o.compress) {
		return nil, usagef("--compress %q: want auto or off", o.compress)
	}
	if text, err := secondsText(o.onLoss); err == nil {
		o.onLoss = text
	}
	if _, err := lease.Parse(o.lease); err != nil {
		return nil, usageError{fmt.Errorf("--lease: %w", err)}
	}
	if o.wait != "" && o.lease == "" {
		return nil, usagef("--wait is for devices that --lease asks for")
	}
	wait, err := leaseWait(o.wait)
	if err != nil {
		return nil, err
	}
	if !settings.ValidPatience(o.onLoss) {
		return nil, usagef("--on-loss %q: want a time such as 30s or 5m, a number of seconds, or block", o.onLoss)
	}
	if o.deadline != 0 && (o.deadline < time.Second || o.deadline > time.Hour) {
		return nil, usagef("--deadline %v: want 1s to 1h", o.deadline)
	}
	sel, err := devices.ParseSelector(o.device)
	if err != nil {
		return nil, usageError{fmt.Errorf("--device: %w", err)}
	}
	servers, err := c.serverList()
	if err != nil {
		return nil, err
	}
	o.nodes = o.nodes || os.Getenv("TENDRIL_NODES") == "1"
	snap, sockets, err := c.snapshotOf(ctx, servers, o.nodes)
	if err != nil {
		return nil, err
	}
	library, err := findLibrary(o.library)
	if err != nil {
		return nil, err
	}
	if stamp := libraryVersion(library); stamp != version {
		c.say(fmt.Sprintf("tendril: the driver library %s is version %s, this command is version %s.", library,
			orDash(plain(stamp)), version))
	}
	if err := checkDevices(snap, o.device, sel); err != nil {
		return nil, err
	}
	vendors, err := vendorsDir(library)
	if err != nil {
		return nil, err
	}
	socket := ""
	if len(servers) == 0 {
		socket = sockets[0]
	}
	for i, s := range servers {
		if s == settings.LocalServer {
			servers[i] = sockets[i] // the program's own variable names no socket
		}
	}
	yes := map[bool]string{true: "1"}
	vars := map[string]string{
		"OCL_ICD_VENDORS":    vendors,
		"OPENCL_VENDOR_PATH": vendors,
		"OCL_ICD_FILENAMES":  library,
		"TENDRIL_SOCKET":     socket,
		"TENDRIL_SERVER":     strings.Join(servers, ","),
		"TENDRIL_PLAINTEXT":  yes[o.plaintext],
		"TENDRIL_NODES":      yes[o.nodes],
		"TENDRIL_PLATFORMS":  o.platforms,
		"TENDRIL_DEVICES":    o.device,
		"TENDRIL_PUBLISH":    o.publish,
	}
	if o.lease != "" { // else what the environment says: tendril lease
		vars["TENDRIL_LEASE"], vars["TENDRIL_LEASE_WAIT"] = o.lease, wait
	}
	if o.publishKind != "" { // else what the environment says
		vars["TENDRIL_PUBLISH_KIND"] = o.publishKind
	}
	if o.compress != "" {
		vars["TENDRIL_COMPRESS"] = o.compress
	}
	if o.onLoss != "" { // else what the environment says
		vars["TENDRIL_RESUME"] = o.onLoss
	}
	if o.deadline != 0 {
		vars["TENDRIL_DEADLINE"] = strconv.FormatFloat(o.deadline.Seconds(), 'f', -1, 64)
	}
	for name, limit := range map[string]time.Duration{"TENDRIL_KERNEL_TIME": o.kernelTime,
		"TENDRIL_BUILD_TIME": o.buildTime} {
		if limit < 0 {
			return nil, usagef("a time limit of %v is below 0", limit)
		}
		if limit > 0 { // otherwise what the environment has
			vars[name] = limit.String()
		}
	}
	return vars, nil
}

// snapshotOf asks each node that the program will use (the local one where no server is named) what it has, and says
// where it was found. nodes: the devices of the other nodes of their clusters count, too.
func (c *cli) snapshotOf(ctx context.Context, servers []string, nodes bool) (*clwire.Snapshot, []string, error) {
	dials := []func() (*client.Conn, error){func() (*client.Conn, error) { return c.dial(ctx) }}
	if len(servers) > 0 {
		dials = nil
	}
	for _, s := range servers {
		dials = append(dials, func() (*client.Conn, error) { return c.met(dialServer(ctx, s, "")) })
	}
	var all clwire.Snapshot
	var sockets []string
	for _, dial := range dials {
		conn, err := dial()
		if err != nil {
			return nil, nil, err
		}
		snap, err := devicesOf(ctx, conn)
		if nodes && err == nil {
			err = c.othersDevices(ctx, conn, func(_ client.ClusterNode, other *clwire.Snapshot) {
				snap.Platforms = append(snap.Platforms, other.Platforms...)
			})
		}
		at := conn.Socket()
		if !conn.Remote() && err == nil {
			at, err = filepath.Abs(at) // the program may run elsewhere
		}
		conn.Close()
		if err != nil {
			return nil, nil, err
		}
		all.Platforms, sockets = append(all.Platforms, snap.Platforms...), append(sockets, at)
	}
	return &all, sockets, nil
}

// othersDevices calls f with the devices of each other node of a daemon's cluster. A node that cannot be asked is told
// of, and left out.
func (c *cli) othersDevices(ctx context.Context, conn *client.Conn, f func(client.ClusterNode,
	*clwire.Snapshot)) error {
	access, err := conn.Access(ctx)
	if err != nil {
		return err
	}
	snaps, errs := make([]*clwire.Snapshot, len(access.Nodes)), make([]error, len(access.Nodes))
	var asked sync.WaitGroup
	for i, n := range access.Nodes {
		asked.Go(func() {
			other, err := access.DialNode(ctx, n, client.Options{})
			if err == nil {
				snaps[i], err = devicesOf(ctx, other)
				other.Close()
			}
			errs[i] = err
		})
	}
	asked.Wait()
	for i, n := range access.Nodes {
		if errs[i] != nil {
			c.say(fmt.Sprintf("tendril: the devices of node %s are left out: %v", plain(n.Name), errs[i]))
			continue
		}
		f(n, snaps[i])
	}
	return nil
}

// checkDevices refuses a selector that chooses nothing.
func checkDevices(snap *clwire.Snapshot, text string, sel *devices.Selector) error {
	total := 0
	for _, p := range snap.Platforms {
		total += len(p.Devices)
	}
	if total == 0 {
		return fmt.Errorf("%w: this node has no device", object.ErrNoDevice)
	}
	if len(sel.Select(snap)) == 0 {
		return fmt.Errorf("%w: --device %q matches none of this node's devices (%d)", object.ErrNoDevice, text, total)
	}
	return nil
}
