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
  tendril daemon --takeover                       # in place of the one that runs, which hands its objects over
  kill -USR2 PID                                  # the same after an upgrade: it starts its successor itself`

// daemonFlags are the flags and their help, in its order. Their values are read by daemon.Config.
var daemonFlags = [][2]string{
	{"capacity", "the store's size, such as 8GiB (default: half of the memory that the machine and its cgroup allow)"},
	{"compress", "auto: what programs of other machines move is compressed where their link is slower than that; or off (default auto)"},
	{"config", "configuration file in TOML (default /etc/tendril/tendril.toml for root, else ~/.config/tendril/tendril.toml)"},
	{"http", "HOST:PORT where inspection answers over HTTP, with a key (default: on a unix socket beside the main one alone)"},
	{"http-hosts", "names that HTTP clients may use for this node, with ',' between them"},
	{"kernel-cache", "what one tenant's compiled kernels and temporary files may take on disk (default 4GiB)"},
	{"kernel-time", "that one command may run on its device, such as 10s; then its session's worker is ended (default: no bound)"},
	{"build-time", "that one build of a program may take; then its session's worker is ended (default: no bound)"},
	{"listen", "HOST:PORT where other machines come in, or none (default " + daemon.DefaultListen + "); beyond loopback it opens with the first token"},
	{"high-water", "above it memory is given back ahead of need (default: 7/8 of the capacity)"},
	{"in-place", "auto: devices that can compute on memory shared with programs (CPUs) do; off: they are treated as GPUs are, for a driver that goes wrong there"},
	{"index", "on: processes that ask for it (TENDRIL_INDEX=on) get objects through shared memory, without a system call; or off (default on)"},
	{"log-level", "error, warn, info or debug (default info)"},
	{"max-connections", "connections at the front door at one time (default 4096, fewer where the limit of open files is low: each takes up to 4)"},
	{"max-workers", "workers at one time (default 256); an eighth is for tenants that have none, and who has an equal share leaves a quarter free"},
	{"name", "the node's name, kept (default: the host's)"},
	{"plaintext-peers", "addresses or networks whose sessions may do without TLS, with ',' between them (default: this machine alone)"},
	{"probe-timeout", "for one driver to answer the probe (default 30s)"},
	{"quota", "what one tenant may hold (default: the capacity)"},
	{"quota-device", "what one tenant's programs may take of the devices' own memory, all devices together (default: all of it)"},
	{"quota-objects", "how many objects one tenant may have (default: as many as there is memory for)"},
	{"quota-spill", "what one tenant may have on disk (default: all of it)"},
	{"spill", "space for objects on disk, or none (default: 4 times the capacity, at most half of what is free)"},
	{"resume-time", "how long a session of another machine waits for a client whose connection was lost, or none (default 1m)"},
	{"scrub-interval", "between two scrubs of all objects, such as 24h (default: none but those that are asked for: tendril scrub)"},
	{"scrub-rate", "bytes a second that these may read (default 64MiB)"},
	{"session-deadline", "how long the machine of such a client may say nothing before its connection counts as lost (default 10s)"},
	{"start-timeout", "for one worker to load its driver (default 1m)"},
	{"state-dir", "identity, lock, objects on disk and kernel caches (default /var/lib/tendril for root, else ~/.local/state/tendril)"},
	{"tenant-connections", "connections of one tenant at one time (default: half of all; an eighth is always for others)"},
	{"trust-remote", "true: serve programs of other machines also where workers have no sandbox (default false)"},
	{"vendors", "directories of *.icd files, with ':' between them (default /etc/OpenCL/vendors)"},
	{"huge-pages", "auto: objects from 16 MiB on lie in huge pages while the machine has reserved ones free (vm.nr_hugepages); none: those are left to others"},
	{"warm-memory", "memory kept populated for new objects, or none (default: 256MiB, at most a sixteenth of the capacity)"},
	{"tenant-memory", "memory of one tenant's workers together, or none (default: three eighths of the machine's)"},
	{"tenant-processes", "processes and threads of one tenant's workers together, or none (default: 32 times a worker's)"},
	{"worker-files", "open files of a worker, or none (default 16384)"},
	{"worker-file-size", "of one file that a worker writes, or none (default 1GiB)"},
	{"worker-memory", "memory of its own that a worker may take with all that it starts, or none (default: a quarter of the machine's); beyond it the worker is ended"},
	{"worker-processes", "processes and threads of a worker, or none (default: 256 and 8 a processor)"},
	{"worker-wait", "how long a program waits for a worker where too many serve (default 5s; negative: not at all)"},
	{"worker-uid-range", "FIRST-LAST of the user numbers that a daemon of root gives tenants' workers, one a tenant, kept; those of users and groups are left out (default " + workers.DefaultIDs.String() + ")"},
	{"warm-workers", "workers kept ready, a platform; -1 for none (default 1)"},
}

func (c *cli) daemonVerb() *cobra.Command {
	var takeover, anyway bool
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run this machine's node in the foreground",
		Long: "Run this machine's node until SIGINT or SIGTERM; SIGHUP makes it look for drivers and certificates again. SIGUSR2 makes it start the program\n" +
			"that is installed now, with --takeover: a daemon that takes the running one's place, with its objects in memory, names, grants, streams and socket.\n" +
			"Clients keep what they have mapped and reconnect by themselves; what was being filled, open streams and OpenCL sessions end. Where the new\n" +
			"daemon fails the old one goes on. Every flag but --takeover and --bootstrap-anyway has\n" +
			"a key of its name in the configuration file and an environment variable, TENDRIL_ and its name in capitals with _ for - (but\n" +
			"TENDRIL_NODE_NAME for --name). Flags win over variables, variables over the file: tendril config show.",
		Example: daemonExample,
		GroupID: "node",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := daemonConfig(cmd)
			if err != nil {
				return usageError{err}
			}
			return c.serve(cmd.Context(), cfg, takeover, anyway)
		},
	}
	addDaemonFlags(cmd)
	cmd.Flags().BoolVar(&takeover, "takeover", false, "take over from the daemon that serves the socket, where one does")
	cmd.Flags().BoolVar(&anyway, "bootstrap-anyway", false, "for one start: make anew what the state directory has lost (without its log, revoked certificates are good again)")
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
		return usageError{err}
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
				log.Info("told to look for drivers and certificates again")
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
			log.WithField("pid", cmd.Process.Pid).Info("told to hand over: started the next daemon")
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
		log.WithError(err).Warn("the service manager could not be told how the node is")
	}
}
