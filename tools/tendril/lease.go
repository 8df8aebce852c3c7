package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/session"
	"tendril/daemon/leases"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session/devices"
	"tendril/forwarding/session/lease"
	"tendril/forwarding/session/settings"
	"tendril/store/object"
)

const leaseLong = `Lease devices of this node, or with --nodes of all nodes of the cluster, for a program of any kind: no other
program gets them through Tendril until this one has ended. OpenCL programs that it starts with tendril run use the
leased devices, and no others. CUDA programs see the leased GPUs alone (CUDA_VISIBLE_DEVICES; none, if no GPU is leased).

Devices that other programs use or lease are not free. Without --wait the command then fails and says who has them. With
--wait it waits for them: first come, first served. To lease devices for one OpenCL program alone, use tendril run
--lease. The exit code is the program's.`

const leaseExample = `  tendril lease -- tendril run -- ./program                # one device, whichever is free
  tendril lease -n 2 --device type=gpu --wait -- python3 train.py
  tendril lease -n all -- bash                             # the whole node
  tendril lease --nodes -n 4 --wait -- tendril run -- ./program   # of all nodes of the cluster
  tendril leases                                           # who has what, and who waits`

func (c *cli) leaseVerb() *cobra.Command {
	var count, device, wait string
	var nodes bool
	cmd := &cobra.Command{
		Use:     "lease [flags] -- PROGRAM [ARGS…]",
		Short:   "Run a program with devices for itself alone",
		Long:    leaseLong,
		Example: leaseExample,
		GroupID: "opencl",
		Args:    needsProgram,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.lease(cmd.Context(), count, device, wait, nodes, args)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows PROGRAM is PROGRAM's
	cmd.Flags().StringVarP(&count, "count", "n", "1", "a number of devices, all (that match), or node (all of one node)")
	cmd.Flags().BoolVar(&nodes, "nodes", false, "lease devices of any node of the cluster; programs use them as with tendril run --nodes")
	cmd.Flags().StringVar(&device, "device", "", deviceHelp)
	waitFlag(cmd, &wait)
	return cmd
}

// waitFlag is --wait of what leases.
func waitFlag(cmd *cobra.Command, wait *string) {
	cmd.Flags().StringVar(wait, "wait", "", "wait until the leased devices are free: as long as it takes, or `TIME` such as --wait=10m")
	cmd.Flags().Lookup("wait").NoOptDefVal = "block"
}

func (c *cli) lease(ctx context.Context, count, device, wait string, nodes bool, args []string) error {
	program, err := runnable(args[0])
	if errors.Is(err, exec.ErrNotFound) && slices.Contains([]string{"ls", "list", "end", "kill", "release"}, args[0]) {
		return hinted{err, "To list leases: tendril leases    To end one: tendril leases end"}
	}
	if err != nil {
		return err
	}
	want, err := lease.Parse(count)
	if err != nil || want == nil || want.Token != "" {
		return usagef("--count %q: want a number of devices from 1 on, all, or node", count)
	}
	want.Nodes = nodes
	patience, err := leaseWait(wait)
	if err != nil {
		return err
	}
	if _, err := devices.ParseSelector(device); err != nil {
		return usageError{fmt.Errorf("--device: %w", err)}
	}
	conn, err := c.dialFor(ctx, filepath.Base(program))
	if err != nil {
		return err
	}
	defer conn.Close()
	waiting, stop := untilSignal(ctx) // until there is a program, which signals are for
	var own uint64
	snap, err := lease.Open(func(options []byte) (raw []byte, err error) {
		own, raw, err = session.Of(conn).Open(waiting, version, options)
		return raw, err
	}, clwire.SessionOptions{Protocol: clwire.Version, Selector: device, Lease: want}, settings.LeaseWait(patience),
		c.say)
	stop()
	if by := (interrupted{}); errors.As(context.Cause(waiting), &by) {
		return exitCode(by.exitCode()) // also where the lease was granted beside it: it ends with the connection
	}
	if errors.Is(err, object.ErrBusy) && wait != "" {
		return hinted{waitedInVain{wait, err}, "See who has which devices with: tendril leases"}
	}
	if errors.Is(err, object.ErrBusy) {
		return hinted{err, "See who has which devices with: tendril leases. To wait for them: --wait"}
	}
	if err != nil {
		return err
	}
	over, done := make(chan struct{}), make(chan struct{})
	go c.leaseOver(ctx, func() error { _, _, err := session.Of(conn).WorkerFate(ctx, 0); return err }, over, done)
	ended, err := runChild(program, args, mergeEnv(os.Environ(), leaseEnv(snap)), over,
		func(os.Signal) bool { return false })
	close(done) // before the connection is closed
	giveBack(ctx, conn, own)
	if err != nil {
		return err
	}
	return childExit(ended)
}

// giveBackTime is how long the end of a lease may take.
const giveBackTime = 10 * time.Second

// giveBack ends the session of a lease, and waits for that: whoever comes next finds the devices free, also where the
// daemon is busy. A daemon of another machine, or one that does not answer, ends it a moment after the connection.
func giveBack(ctx context.Context, conn *client.Conn, own uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	_ = admin.Of(conn).EndSession(ctx, own)
}

// waitedInVain says that devices were not free within a time.
type waitedInVain struct {
	time string // as it was written
	why  error
}

func (w waitedInVain) Error() string {
	return fmt.Sprintf("%v: --wait=%s is over: %s", object.ErrTimeout, w.time,
		strings.TrimPrefix(w.why.Error(), object.ErrBusy.Error()+": "))
}

func (w waitedInVain) Unwrap() error { return object.ErrTimeout }

// leaseLook is how often tendril lease looks whether its lease is there.
const leaseLook = time.Second

// leaseOver closes over when the lease has ended, and its session with it: its time was over, somebody ended it, or the
// daemon is gone. ask asks for worker 0. Once done is closed the program has ended, and nothing is said any more.
func (c *cli) leaseOver(ctx context.Context, ask func() error, over chan<- struct{}, done <-chan struct{}) {
	for {
		err := ask()
		select {
		case <-done:
			return
		default:
		}
		if leaseEnded(err) {
			c.say("tendril: the lease has ended, and the program was told to end: " + c.whyLeaseEnded(ctx, err))
			close(over)
			return
		}
		select {
		case <-done:
			return
		case <-time.After(leaseLook):
		}
	}
}

// whyLeaseEnded says why a lease has ended: a daemon ends a session by closing its connection, and answers others.
func (c *cli) whyLeaseEnded(ctx context.Context, err error) string {
	if told := (*client.EndedError)(nil); errors.As(err, &told) { // why, too
		return plain(strings.TrimPrefix(told.Why.Error(), object.ErrAborted.Error()+": "))
	}
	if !errors.Is(err, client.ErrDisconnected) {
		return plain(fmt.Sprint(err))
	}
	conn, dialed := c.dial(ctx)
	if dialed != nil {
		return plain(err.Error())
	}
	conn.Close()
	return "it was ended (tendril leases end, tendril session end), or the daemon's --lease-time or --lease-idle was " +
		"over, or the daemon started anew"
}

// leaseEnded says whether a question for worker 0, which no session has, was answered by anything but that, or that the
// daemon has too much to do to answer.
func leaseEnded(err error) bool {
	return !errors.Is(err, object.ErrNotFound) && !errors.Is(err, object.ErrBusy)
}

// leaseWait reads --wait: what TENDRIL_LEASE_WAIT takes.
func leaseWait(text string) (string, error) {
	if text == "" || text == "block" {
		return text, nil
	}
	seconds, err := secondsText(text)
	if err != nil {
		return "", usagef("--wait=%q: want a time such as 30s or 10m, or nothing for as long as it takes", text)
	}
	return seconds, nil
}

// leaseEnv is what a program has to know of its lease. mergeEnv takes an empty variable out, so a CUDA program that
// may see no GPU is told of a device that is none.
func leaseEnv(snap *clwire.Snapshot) map[string]string {
	gpus := []string{}
	for _, p := range snap.Platforms {
		for _, d := range p.Devices {
			if number(d.Info[cl.DEVICE_TYPE])&cl.DEVICE_TYPE_GPU != 0 && len(d.UUID) == 32 {
				u := d.UUID
				gpus = append(gpus, strings.Join([]string{"GPU-" + u[:8], u[8:12], u[12:16], u[16:20], u[20:]}, "-"))
			}
		}
	}
	if len(gpus) == 0 {
		gpus = []string{"NoDevFiles"}
	}
	over := ""
	if snap.Lease.Nodes != nil {
		over = "1"
	}
	return map[string]string{
		"TENDRIL_NODES":        over,
		"TENDRIL_LEASE":        "token:" + snap.Lease.Token,
		"TENDRIL_DEVICES":      "", // the lease says which
		"CUDA_VISIBLE_DEVICES": strings.Join(gpus, ","),
	}
}

func (c *cli) leasesVerb() *cobra.Command {
	cmd := c.leasesListVerb()
	ls := c.leasesListVerb()
	ls.Use, ls.Aliases, ls.GroupID, ls.Short = "ls", []string{"list"}, "", "The same as tendril leases"
	cmd.AddCommand(ls, c.leasesEndVerb())
	return cmd
}

func (c *cli) leasesListVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:   "leases",
		Short: "List the leases of devices, and who waits for one",
		Long: "List the leases of all nodes of the cluster that answer, and who waits for one. Leases of one node (NODE/NUMBER) come\n" +
			"first, in the order in which that node grants them; then leases over several nodes, in the cluster's order.",
		Example: "  tendril leases\n  tendril leases --json\n  tendril leases end a/3    # and the sessions that use it",
		GroupID: "opencl",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			list, err := leasesOf(ctx, conn)
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(list)
			}
			if len(list) == 0 {
				c.say("No device is leased, and nobody waits for one.")
				return nil
			}
			return table(c.term.out, c.term.screen, leaseHead, leaseRows(list))
		}),
	})
}

func (c *cli) leasesEndVerb() *cobra.Command {
	return &cobra.Command{
		Use:     "end LEASE",
		Aliases: []string{"kill"},
		Short:   "End a lease, and the sessions that use it",
		Long: "End a lease, and the sessions that use it. Name it as tendril leases does: a lease of one node by NODE/NUMBER, a lease\n" +
			"over nodes by its id or the beginning of it. Root and the daemon's own user may end any lease, others their own.",
		Example: "  tendril leases end a/3\n  tendril leases end 5f0c1d",
		Args:    cobra.ExactArgs(1),
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			err := admin.Of(conn).EndLease(ctx, args[0])
			if errors.Is(err, object.ErrNotFound) {
				return hinted{err, "See which there are with: tendril leases"}
			}
			return err
		}),
	}
}

// leasesOf asks for the cluster's leases.
func leasesOf(ctx context.Context, conn *client.Conn) (list []leases.Status, err error) {
	raw, err := admin.Of(conn).Leases(ctx)
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if list == nil {
		list = []leases.Status{}
	}
	return list, err
}

const leaseHead = "LEASE | TENANT | SINCE | COUNT | SESSIONS? | PROGRAM? | DEVICES??"

func leaseRows(list []leases.Status) (rows [][]string) {
	for _, x := range list {
		name, sessions := fmt.Sprint(x.Number), strconv.Itoa(x.Sessions)
		if x.Node != "" {
			name = fmt.Sprintf("%s/%d", plain(x.Node), x.Number)
		}
		if x.ID != "" {
			name = x.ID[:min(len(x.ID), shortLease)]
		}
		if x.Place > 0 {
			name, sessions = fmt.Sprintf("waits, %d.", x.Place), "-"
			if x.ID != "" {
				name = fmt.Sprintf("%s waits, %d.", x.ID[:min(len(x.ID), shortLease)], x.Place)
			}
		}
		where := slices.Clone(x.Devices)
		for i := range x.Nodes {
			where[i] = plain(x.Nodes[i]) + ":" + where[i]
		}
		rows = append(rows, []string{name, x.Tenant, since(x.Since), strconv.Itoa(x.Count), sessions, orDash(x.Holder),
			strings.Join(where, ", ")})
	}
	return rows
}

// shortLease is how many digits of a lease's id are shown.
const shortLease = 12
