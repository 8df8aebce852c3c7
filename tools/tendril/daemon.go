package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"tendril/daemon"
	"tendril/daemon/workers"
)

const daemonExample = `  tendril daemon                                  # a node with no configuration
  tendril daemon --capacity 8GiB --name lab-3
  TENDRIL_CAPACITY=8GiB tendril daemon            # each flag has a variable
  kill -HUP PID                                   # look for drivers again
  tendril daemon --takeover                       # replace the running daemon; it hands over its objects
  kill -USR2 PID                                  # the same: after an upgrade, the running daemon starts its successor`

// daemonFlags are the flags and their help, in its order. Their values are read by daemon.Config.
var daemonFlags = [][2]string{
	{"capacity", "size of the store, such as 8GiB (default: half of the memory of the machine and its cgroup)"},
	{"compress", "auto or off: compress data on connections to other machines where the link is slower than compression (default auto)"},
	{"config", "configuration file in TOML (default /etc/tendril/tendril.toml for root, else ~/.config/tendril/tendril.toml)"},
	{"cuda-driver", "CUDA driver for objects in GPU memory, or none (default libcuda.so.1, if there is an NVIDIA GPU)"},
	{"devices", "devices that this node offers: types (cpu, gpu, accelerator), indices among all devices, or UUIDs, separated by commas (default all)"},
	{"http", "HOST:PORT for inspection over HTTP; requests need a key (default: only a unix socket beside the main one)"},
	{"http-hosts", "host names that HTTP clients may use for this node, separated by commas"},
	{"http-metrics", "key: /metrics needs a key; open: it needs none, which is allowed only if --http is on loopback (default key)"},
	{"kernel-cache", "disk space for one tenant's compiled kernels and temporary files (default 4GiB)"},
	{"kernel-time", "longest time for one command on its device, such as 10s; a worker that exceeds it is ended (default: no limit)"},
	{"build-time", "longest time for one build of a program; a worker that exceeds it is ended (default: no limit)"},
	{"lease-idle", "longest time that a lease's workers may have no command, such as 30m; then its sessions are ended (default: no limit)"},
	{"lease-time", "longest time that a program may lease devices, such as 12h; then its sessions are ended (default: no limit)"},
	{"listen", "HOST:PORT for other machines, or none (default " + daemon.DefaultListen +
		"); any other address than loopback opens once there is a token"},
	{"high-water", "use of the store above which memory is freed ahead of need (default: 7/8 of the capacity)"},
	{"in-place", "auto: CPU devices compute in memory that programs share; off: they are used like GPUs, for a driver that fails on shared memory (default auto)"},
	{"idle-device", "memory of each GPU that the programs of one tenant keep for their next objects, or none (default 1GiB)"},
	{"index", "on or off: let processes with TENDRIL_INDEX=on get objects through shared memory, without system calls (default on)"},
	{"log-level", "error, warn, info or debug (default info)"},
	{"max-connections", "most connections at a time (default 4096, or fewer if the limit of open files is low: each takes 1 to 3)"},
	{"max-workers", "most workers at a time (default 256); an eighth is reserved for tenants that have none, and a quarter for tenants that have less than an equal share"},
	{"name", "name of the node, kept for later starts (default: the host's name)"},
	{"pin-memory", "memory of the store that may stay pinned for copies to and from GPUs, or none (default: half of the capacity)"},
	{"plaintext-peers", "addresses or networks whose sessions may use no TLS, separated by commas (default: only this machine)"},
	{"probe-timeout", "longest time for one driver to answer the probe (default 30s)"},
	{"quota", "most memory of one tenant in the store (default: the capacity)"},
	{"quota-device", "most device memory of one tenant's programs, over all devices, and of its objects on each device (default: all of it)"},
	{"quota-objects", "most objects of one tenant (default: as many as fit in memory)"},
	{"quota-segments", "most segments of memory of one tenant, each an open file of the daemon: every large, strict or shared object has one (default: half of what the limit of open files leaves)"},
	{"quota-spill", "most disk space of one tenant's objects (default: all of --spill)"},
	{"spill", "disk space for objects, or none (default: 4 times the capacity, at most half of the free space)"},
	{"request-memory", "most memory of the daemon itself for requests that wait and replies that are not read, a quarter of it for one tenant (default: an eighth of the capacity, 64MiB to 512MiB)"},
	{"resume-time", "how long a session waits for a client on another machine that lost its connection, or none (default 1m)"},
	{"scrub-interval", "time between two scrubs of all objects, such as 24h (default: only when asked for: tendril scrub)"},
	{"scrub-rate", "bytes a second that these scrubs read (default 64MiB)"},
	{"transfer-rate", "most bytes a second for copying objects from other nodes to this one, 2MiB or more (default: no limit)"},
	{"session-deadline", "how long a client's machine may be silent before its connection counts as lost (default 10s)"},
	{"session-device", "GPU memory counted for each session's driver: a session that no longer fits beside the objects is refused; none: it is not counted (default 512MiB)"},
	{"start-timeout", "longest time for a worker to load its driver, or to get ready for another machine (default 1m)"},
	{"state-dir", "directory for identity, lock, objects on disk and kernel caches (default /var/lib/tendril for root, else ~/.local/state/tendril)"},
	{"tenant-connections",
		"most connections of one tenant (default: half of all; an eighth is always kept for others)"},
	{"trust-remote", "true or false: serve programs of other machines even if workers have no sandbox (default false)"},
	{"vendors", "directories of *.icd files, separated by colons (default /etc/OpenCL/vendors)"},
	{"huge-pages", "auto: put objects of 16 MiB and more into reserved huge pages while some are free (vm.nr_hugepages); none: leave them to others (default auto)"},
	{"warm-memory", "memory kept ready for new objects, or none (default: 256MiB, at most a sixteenth of the capacity)"},
	{"tenant-memory", "most memory of all workers of one tenant, or none for no limit (default: three eighths of the machine's)"},
	{"tenant-processes", "most processes and threads of all workers of one tenant, or none for no limit (default: 32 times a worker's)"},
	{"worker-files", "most open files of a worker, or none for no limit (default 16384)"},
	{"worker-file-size", "largest file that a worker may write, or none for no limit (default 1GiB)"},
	{"worker-memory", "most memory of a worker and its processes, or none for no limit; a worker that exceeds it is ended (default: a quarter of the machine's)"},
	{"worker-processes", "most processes and threads of a worker, or none for no limit (default: 256 and 8 for each processor)"},
	{"worker-wait", "how long a program waits if all workers are in use (default 5s; negative: not at all)"},
	{"worker-uid-range", "FIRST-LAST: user ids for workers if the daemon runs as root, one for each tenant; ids of existing users and groups are skipped (default " + workers.DefaultIDs.String() + ")"},
	{"warm-time", "how long workers are kept ready after the last session was opened (default 10m)"},
	{"warm-workers", "workers kept ready for each platform, -1 for none (default 1)"},
}

func (c *cli) daemonVerb() *cobra.Command {
	var takeover, anyway bool
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run this machine's node in the foreground",
		Long: "Run this machine's node until SIGINT or SIGTERM. SIGHUP makes it look for drivers and read its certificate again.\n\n" +
			"SIGUSR2 replaces the running daemon by the program that is installed now: it starts a daemon with --takeover. The\n" +
			"new daemon takes over the objects in memory, names, grants, streams and the socket. Clients reconnect by themselves\n" +
			"and keep what they have mapped. Unsealed objects, open streams and OpenCL sessions end. If the new daemon fails,\n" +
			"the old one continues.\n\n" +
			"Every flag but --config, --takeover and --bootstrap-anyway is also a key of the configuration file and an environment\n" +
			"variable: TENDRIL_ and the flag in capitals, with _ for - (but TENDRIL_NODE_NAME for --name, TENDRIL_NODE_DEVICES\n" +
			"for --devices). A flag overrides a variable, a variable overrides the file. tendril config show prints all settings.",
		Example: daemonExample,
		GroupID: "node",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := daemonConfig(cmd)
			if err != nil {
				return asUsage(err)
			}
			return c.serve(cmd.Context(), cfg, takeover, anyway)
		},
	}
	addDaemonFlags(cmd)
	cmd.Flags().BoolVar(&takeover, "takeover", false,
		"take over from the daemon that serves the socket, if there is one")
	cmd.Flags().BoolVar(&anyway, "bootstrap-anyway", false,
		"for one start: create again what the state directory has lost (if the log is lost, revoked certificates are valid again)")
	return cmd
}

func addDaemonFlags(cmd *cobra.Command) {
	for _, f := range daemonFlags {
		cmd.Flags().String(f[0], "", f[1])
	}
}

// serve runs a daemon until it is told to end.
func (c *cli) serve(ctx context.Context, cfg daemon.Config, takeover, anyway bool) error {
	log := logrus.New()
	log.SetOutput(c.term.err)
	log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: !c.term.isErr})
	level, err := logrus.ParseLevel(cfg.LogLevel)
	if err != nil {
		return asUsage(err)
	}
	log.SetLevel(level)
	daemon.LimitLog(log)
	d, err := daemon.New(cfg, daemon.Build{Version: version, Alone: true}, log)
	if err != nil {
		return err
	}
	d.OnReady(func() { notifySystemd(log, "READY=1") })
	d.OnHandover(func(pid int) { notifySystemd(log, fmt.Sprintf("MAINPID=%d", pid)) })
	if takeover {
		d.TakeOver()
	}
	if anyway {
		d.BootstrapAnyway()
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	hup, usr2 := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	signal.Notify(usr2, syscall.SIGUSR2)
	defer signal.Stop(usr2)
	ended := make(chan struct{})
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		for {
			select {
			case <-hup:
				log.Info("SIGHUP: looking for drivers and reading the certificate again")
				d.Reload()
			case <-usr2:
				startSuccessor(log)
			case <-ctx.Done(): // from here on a second signal ends the process at once
				stop()
				return
			case <-ended:
				return
			}
		}
	}()
	err = d.Run(ctx)
	close(ended)
	<-joined
	return err
}

// startSuccessor runs the program that is installed now, as this one was, to take over. It is a process of its own.
func startSuccessor(log logrus.FieldLogger) {
	path, err := os.Executable() // by name: the file may be another one since
	args := slices.Clone(os.Args[1:])
	if !slices.Contains(args, "--takeover") {
		args = append(args, "--takeover")
	}
	if err == nil {
		cmd := exec.Command(path, args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err = cmd.Start(); err == nil {
			log.WithField("pid", cmd.Process.Pid).Info("SIGUSR2: started the next daemon")
			go func() { // ends with the successor where that fails, else with this process
				if err := cmd.Wait(); err != nil {
					log.WithError(err).Error("the next daemon failed")
				}
			}()
		}
	}
	if err != nil {
		log.WithError(err).Error("the next daemon could not be started")
	}
}

// notifySystemd tells a service manager that waits for it (sd_notify(3), Type=notify) what became of the node.
func notifySystemd(log logrus.FieldLogger, state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	c, err := net.Dial("unixgram", path)
	if err == nil {
		_, err = fmt.Fprint(c, state)
		c.Close()
	}
	if err != nil {
		log.WithError(err).Warn("cannot notify the service manager")
	}
}
