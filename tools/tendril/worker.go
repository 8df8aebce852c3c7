package main

import (
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tendril/daemon/keeper"
	"tendril/daemon/workers"
	host "tendril/forwarding/keeper"
	"tendril/forwarding/worker"
)

// controlFD is where the daemon puts a worker's control socket and a probe's pipe (forwarding/clwire/PROTOCOL.md).
const controlFD = 3

// memoryFD is where the daemon puts the memory that a probe's driver is to import.
const memoryFD = 4

// workerFlags are the flags of the verbs that only the daemon uses.
func workerFlags(cmd *cobra.Command) *worker.Options {
	o := &worker.Options{}
	cmd.Flags().StringVar(&o.ICD, "icd", "", "file that names the driver")
	cmd.Flags().IntVar(&o.Platform, "platform", 0, "which of the driver's platforms")
	cmd.Flags().StringVar(&o.CacheDir, "cache", "", "the only directory that may be written")
	cmd.Flags().IntSliceVar(&o.Only, "only", nil, "positions of those devices in the driver's list")
	cmd.Flags().BoolVar(&o.NoInPlace, "no-in-place", false, "all devices have memory of their own, even if they could share it")
	return o
}

// defaultCUDADriver is the keeper's where nobody names another.
const defaultCUDADriver = keeper.DefaultDriver

// control takes over descriptor 3. What the driver starts must not inherit it.
func control() (*os.File, error) {
	if _, err := unix.FcntlInt(controlFD, unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, usagef("this verb is the daemon's: it finds no control socket at descriptor %d", controlFD)
	}
	return os.NewFile(controlFD, "control"), nil
}

func workerVerb() *cobra.Command {
	cmd := &cobra.Command{Use: "worker", Short: "Serve one session on one platform", Hidden: true, Args: cobra.NoArgs}
	o := workerFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Control, err = control(); err != nil {
			return err
		}
		return worker.Main(cmd.Context(), *o)
	}
	return cmd
}

func guardVerb() *cobra.Command {
	return &cobra.Command{Use: "guard", Short: "End what workers leave behind when the daemon is killed", Hidden: true,
		Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return workers.Guard(os.Stdin) }}
}

func probeVerb() *cobra.Command {
	cmd := &cobra.Command{Use: "probe", Short: "Say what one driver has", Hidden: true, Args: cobra.NoArgs}
	o := workerFlags(cmd)
	cmd.Flags().StringVar(&o.Import, "import", "", "UUID of the GPU whose memory it is to import, which it may not survive")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Control, err = control(); err != nil {
			return err
		}
		if o.Import != "" {
			o.Memory = os.NewFile(memoryFD, "memory") // it stays open in the sandbox's second stage
		}
		return worker.Probe(cmd.Context(), *o)
	}
	return cmd
}

func keeperVerb() *cobra.Command {
	cmd := &cobra.Command{Use: "keeper", Short: "Make the memory of GPUs that objects lie in", Hidden: true,
		Args: cobra.NoArgs}
	o := &host.Options{}
	cmd.Flags().StringVar(&o.Driver, "driver", defaultCUDADriver, "the CUDA driver")
	cmd.Flags().Uint64Var(&o.PinBytes, "pin", 0, "how many bytes of the store's memory may be pinned")
	cmd.Flags().StringVar(&o.OpenCL.ICD, "opencl", "", "file that names an OpenCL driver, in place of CUDA's")
	cmd.Flags().IntVar(&o.OpenCL.Platform, "platform", 0, "which of the OpenCL driver's platforms")
	cmd.Flags().StringToIntVar(&o.OpenCL.Devices, "device", nil, "positions of that platform's devices, by UUID")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Control, err = control(); err != nil {
			return err
		}
		return host.Main(cmd.Context(), *o)
	}
	return cmd
}
