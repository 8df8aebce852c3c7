package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/daemon"
	"tendril/daemon/leases"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
	"tendril/forwarding/session"
	"tendril/forwarding/session/devices"
	"tendril/store/object"
)

const leaseLong = `Lease devices of this node for a program of any kind: no other program gets them through Tendril until this one has
ended. OpenCL programs that it starts with tendril run use the leased devices, and no others. CUDA programs
see the leased GPUs alone (CUDA_VISIBLE_DEVICES; none, if no GPU is leased).

Devices that other programs use or lease are not free. Without --wait the command then fails and says who has them. With
--wait it waits for them: first come, first served. To lease devices for one OpenCL program alone, use tendril run
--lease. The exit code is the program's.`

const leaseExample = `  tendril lease -- tendril run -- ./program                # one device, whichever is free
  tendril lease -n 2 --device type=gpu --wait -- python3 train.py
  tendril lease -n all -- bash                             # the whole node
  tendril leases                                           # who has what, and who waits`

func (c *cli) leaseVerb() *cobra.Command {
	var count, device, wait string
	cmd := &cobra.Command{
		Use:     "lease [flags] -- PROGRAM [ARGS…]",
		Short:   "Run a program with devices for itself alone",
		Long:    leaseLong,
		Example: leaseExample,
		GroupID: "opencl",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("lease needs a program: tendril lease -- PROGRAM ARGS…")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return c.lease(count, device, wait, args) },
	}
	cmd.Flags().SetInterspersed(false) // what follows PROGRAM is PROGRAM's
	cmd.Flags().StringVarP(&count, "count", "n", "1", "how many devices, or all that match")
	cmd.Flags().StringVar(&device, "device", "", deviceHelp)
	waitFlag(cmd, &wait)
	return cmd
}

// waitFlag is --wait of what leases.
func waitFlag(cmd *cobra.Command, wait *string) {
	cmd.Flags().StringVar(wait, "wait", "", "wait until the leased devices are free: as long as it takes, or `TIME` such as --wait=10m")
	cmd.Flags().Lookup("wait").NoOptDefVal = "block"
}

func (c *cli) lease(count, device, wait string, args []string) error {
	program, err := runnable(args[0])
	if err != nil {
		return err
	}
	want, err := session.ParseLease(count)
	if err != nil || want == nil || want.Token != "" {
		return usagef("--count %q: want a number of devices from 1 on, or all", count)
	}
	patience, err := leaseWait(wait)
	if err != nil {
		return err
	}
	if _, err := devices.ParseSelector(device); err != nil {
		return usageError{fmt.Errorf("--device: %w", err)}
	}
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	snap, err := session.OpenLeased(func(options []byte) ([]byte, error) {
		_, raw, err := conn.OpenSession(version, options)
		return raw, err
	}, clwire.SessionOptions{Protocol: clwire.Version, Selector: device, Lease: want}, session.LeaseWait(patience),
		c.say)
	if errors.Is(err, object.ErrBusy) {
		return hinted{err, "See who has which devices with: tendril leases. To wait for them: --wait"}
	}
	if err != nil {
		return err
	}
	over := make(chan struct{})
	go c.leaseOver(conn, over)
	ended, err := runChild(program, args, mergeEnv(os.Environ(), leaseEnv(snap)), over,
		func(os.Signal) bool { return false })
	if err != nil {
		return err
	}
	return childExit(ended)
}

// leaseLook is how often tendril lease looks whether its lease is there.
const leaseLook = time.Second

// leaseOver closes over when the lease has ended, and its session with it: its time was over, somebody ended it, or the
// daemon is gone. Where nothing of that happens it ends with the process.
func (c *cli) leaseOver(conn *client.Conn, over chan struct{}) {
	for {
		if _, _, err := conn.WorkerFate(0); leaseEnded(err) {
			c.say(fmt.Sprintf("tendril: the lease has ended, and the program is told to end: %v", err))
			close(over)
			return
		}
		time.Sleep(leaseLook)
	}
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
	return map[string]string{
		"TENDRIL_LEASE":        "token:" + snap.Lease.Token,
		"TENDRIL_DEVICES":      "", // the lease says which
		"CUDA_VISIBLE_DEVICES": strings.Join(gpus, ","),
	}
}

func (c *cli) leasesVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:   "leases",
		Short: "List the leases of devices, and who waits for one",
		Long: "List the leases of this node's devices, and then who waits for one, in their order. An administrator ends a lease\n" +
			"with its sessions: tendril session kill.",
		Example: "  tendril leases\n  tendril leases --json",
		GroupID: "opencl",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(conn *client.Conn, _ []string) error {
			s, err := nodeStatus(conn)
			if err != nil {
				return err
			}
			if c.json {
				if s.Leases == nil {
					s.Leases = []leases.Status{}
				}
				return c.printJSON(s.Leases)
			}
			if len(s.Leases) == 0 {
				c.say("No device of this node is leased, and nobody waits for one.")
				return nil
			}
			return table(c.term.out, c.term.screen, leaseHead, leaseRows(s))
		}),
	})
}

const leaseHead = "LEASE | TENANT | SINCE | COUNT | SESSIONS? | PROGRAM? | DEVICES??"

func leaseRows(s daemon.Status) (rows [][]string) {
	for _, x := range s.Leases {
		name, sessions := fmt.Sprint(x.Number), strconv.Itoa(x.Sessions)
		if x.Place > 0 {
			name, sessions = fmt.Sprintf("waits, %d.", x.Place), "-"
		}
		rows = append(rows, []string{name, x.Tenant, since(x.Since), strconv.Itoa(x.Count), sessions, orDash(x.Holder),
			strings.Join(x.Devices, ", ")})
	}
	return rows
}
