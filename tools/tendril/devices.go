package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/forwarding/cl"
	"tendril/forwarding/clwire"
)

// deviceInfo is one device in `tendril devices --json`.
type deviceInfo struct {
	Index         int    `json:"index"`          // what --device N means
	Node          string `json:"node,omitempty"` // with --nodes
	Name          string `json:"name"`
	Platform      string `json:"platform"`
	Type          string `json:"type"`
	MemoryBytes   uint64 `json:"memory_bytes"`
	ComputeUnits  uint64 `json:"compute_units"`
	UUID          string `json:"uuid"`
	Vendor        string `json:"vendor"`
	Version       string `json:"version"`
	Driver        string `json:"driver"`
	InPlace       bool   `json:"in_place"` // its buffers are shared segments, without a copy
	InPlaceReason string `json:"in_place_reason,omitempty"`
}

func (c *cli) devicesVerb() *cobra.Command {
	nodes := false
	cmd := c.jsonFlag(&cobra.Command{
		Use:     "devices",
		Short:   "List the OpenCL devices of this node",
		Example: "  tendril devices\n  tendril devices --nodes         # what tendril run --nodes shows to a program\n  tendril devices --json",
		GroupID: "opencl",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			snap, err := devicesOf(ctx, conn)
			if err != nil {
				return err
			}
			list := describeDevices(snap)
			hidden := c.sayHidden(ctx, conn)
			if nodes {
				if list, err = c.devicesEverywhere(ctx, conn, list); err != nil {
					return err
				}
			}
			if len(list) == 0 && !hidden {
				c.say("No OpenCL device. Install a driver: the package pocl-opencl-icd for the CPU, the vendor's for a GPU.\n" +
					"The daemon finds it by itself. tendril status lists drivers that were found and do not work.")
			}
			if c.json {
				return c.printJSON(list)
			}
			if len(list) == 0 {
				return nil
			}
			return c.printDevices(list)
		}),
	})
	cmd.Flags().BoolVar(&nodes, "nodes", false, "the devices of all nodes of the cluster; N counts at each node")
	return cmd
}

// devicesEverywhere adds the devices of the other nodes of a daemon's cluster to its own.
func (c *cli) devicesEverywhere(ctx context.Context, conn *client.Conn, list []deviceInfo) ([]deviceInfo, error) {
	status, err := nodeStatus(ctx, conn)
	if err != nil {
		return nil, err
	}
	named := func(name string, found []deviceInfo) []deviceInfo {
		for i := range found {
			found[i].Node = plain(name)
		}
		return found
	}
	list = named(status.Node.Name, list)
	err = c.othersDevices(ctx, conn, func(n client.ClusterNode, other *clwire.Snapshot) {
		list = append(list, named(n.Name, describeDevices(other))...)
	})
	return list, err
}

// sayHidden says which devices the node has and does not offer; any: there are some.
func (c *cli) sayHidden(ctx context.Context, conn *client.Conn) (any bool) {
	status, err := nodeStatus(ctx, conn)
	if err != nil {
		return false // a daemon of another release
	}
	for _, x := range status.Hidden {
		c.say(fmt.Sprintf("Not offered: %s (%s): %s", x.Name, x.UUID, x.Why))
	}
	return len(status.Hidden) > 0
}

func describeDevices(snap *clwire.Snapshot) []deviceInfo {
	list := []deviceInfo{}
	for _, p := range snap.Platforms {
		for _, d := range p.Devices {
			list = append(list, deviceInfo{
				Index: len(list), Name: text(d.Info[cl.DEVICE_NAME]), Platform: text(p.Info[cl.PLATFORM_NAME]),
				Type:         deviceType(number(d.Info[cl.DEVICE_TYPE])),
				MemoryBytes:  number(d.Info[cl.DEVICE_GLOBAL_MEM_SIZE]),
				ComputeUnits: number(d.Info[cl.DEVICE_MAX_COMPUTE_UNITS]), UUID: d.UUID,
				Vendor: text(d.Info[cl.DEVICE_VENDOR]), Version: text(d.Info[cl.DEVICE_VERSION]),
				Driver:  text(d.Info[cl.DRIVER_VERSION]),
				InPlace: d.InPlace, InPlaceReason: d.InPlaceReason,
			})
		}
	}
	return list
}

const devicesHead = "N | TYPE | MEMORY | UNITS? | BUFFERS?? | NAME | PLATFORM? | UUID??"

func (c *cli) printDevices(list []deviceInfo) error {
	rows, head := make([][]string, len(list)), devicesHead
	for i, d := range list {
		memory := "in place"
		if !d.InPlace {
			memory = "copied"
		}
		rows[i] = []string{strconv.Itoa(d.Index), d.Type, size(d.MemoryBytes), fmt.Sprint(d.ComputeUnits), memory,
			d.Name, d.Platform, d.UUID}
		if d.Node != "" {
			rows[i] = append([]string{d.Node}, rows[i]...)
			head = "NODE | " + devicesHead
		}
	}
	return table(c.term.out, c.term.screen, head, rows)
}

// text reads a C string.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return plain(strings.TrimSpace(s))
}

// number reads a cl_uint or cl_ulong; 0 where it has another length.
func number(b []byte) uint64 {
	switch len(b) {
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	case 8:
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func deviceType(t uint64) string {
	switch {
	case t&cl.DEVICE_TYPE_GPU != 0:
		return "gpu"
	case t&cl.DEVICE_TYPE_CPU != 0:
		return "cpu"
	case t&cl.DEVICE_TYPE_ACCELERATOR != 0:
		return "accelerator"
	}
	return "other"
}
