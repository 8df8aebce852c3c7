package main

import (
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tendril/forwarding/worker"
)

// controlFD is where the daemon puts a worker's control socket and a probe's pipe (forwarding/clwire/PROTOCOL.md).
const controlFD = 3

// workerFlags are the flags of the verbs that only the daemon uses.
func workerFlags(cmd *cobra.Command) *worker.Options {
	o := &worker.Options{}
	cmd.Flags().StringVar(&o.ICD, "icd", "", "file that names the driver")
	cmd.Flags().IntVar(&o.Platform, "platform", 0, "which of the driver's platforms")
	cmd.Flags().StringVar(&o.CacheDir, "cache", "", "the only directory that may be written")
	cmd.Flags().BoolVar(&o.Stage2, "stage2", false, "the sandbox is on")
	return o
}

// control takes over descriptor 3. What the driver starts must not inherit it; stage 2 of this program must.
func control(stage2 bool) (*os.File, error) {
	flags := 0
	if stage2 {
		flags = unix.FD_CLOEXEC
	}
	if _, err := unix.FcntlInt(controlFD, unix.F_SETFD, flags); err != nil {
		return nil, usagef("this verb is the daemon's: it finds no control socket at descriptor %d", controlFD)
	}
	return os.NewFile(controlFD, "control"), nil
}

func workerVerb() *cobra.Command {
	cmd := &cobra.Command{Use: "worker", Short: "Serve one session on one platform", Hidden: true, Args: cobra.NoArgs}
	o := workerFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Control, err = control(o.Stage2); err != nil {
			return err
		}
		o.Args = []string{"worker", "--stage2", "--icd", o.ICD, "--platform", strconv.Itoa(o.Platform), "--cache", o.CacheDir}
		return worker.Main(cmd.Context(), *o)
	}
	return cmd
}

func probeVerb() *cobra.Command {
	cmd := &cobra.Command{Use: "probe", Short: "Say what one driver has", Hidden: true, Args: cobra.NoArgs}
	o := workerFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Control, err = control(o.Stage2); err != nil {
			return err
		}
		o.Args = []string{"probe", "--stage2", "--icd", o.ICD, "--cache", o.CacheDir}
		return worker.Probe(cmd.Context(), *o)
	}
	return cmd
}
