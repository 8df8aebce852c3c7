package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"tendril/daemon"
	"tendril/ipc"
)

const daemonExample = `  tendril daemon                                  # a node with no configuration
  tendril daemon --capacity 8GiB --name lab-3
  TENDRIL_CAPACITY=8GiB tendril daemon            # each flag has a variable
  kill -HUP PID                                   # look for drivers again`

// daemonFlags hold what was written on the command line; empty means not written.
type daemonFlags struct {
	state, name, capacity, quota, warm, level string
	vendors                                   []string
	warmWorkers, maxWorkers                   int
	probe, start, spin                        time.Duration
}

func (c *cli) daemonVerb() *cobra.Command {
	var f daemonFlags
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run this machine's node in the foreground",
		Long: "Run this machine's node until SIGINT or SIGTERM. Every flag has an environment variable, TENDRIL_ and the flag's\n" +
			"name in capitals (TENDRIL_NODE_NAME for --name); the flag wins.",
		Example: daemonExample,
		GroupID: "node",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.daemonConfig(f)
			if err != nil {
				return usageError{err}
			}
			return c.serve(cmd.Context(), cfg)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.state, "state-dir", "", "identity, lock and kernel caches (default /var/lib/tendril for root, else ~/.local/state/tendril)")
	fl.StringVar(&f.name, "name", "", "the node's name, kept (default: the host's)")
	fl.StringVar(&f.capacity, "capacity", "", "the store's size, such as 8GiB (default: half of the memory that the machine and its cgroup allow)")
	fl.StringVar(&f.quota, "quota", "", "what one tenant may hold (default: the capacity)")
	fl.StringVar(&f.warm, "warm-memory", "", "memory kept populated for new objects, or none (default: 256MiB, at most a sixteenth of the capacity)")
	fl.StringSliceVar(&f.vendors, "vendors", nil, "directories of *.icd files (default /etc/OpenCL/vendors)")
	fl.IntVar(&f.warmWorkers, "warm-workers", 0, "workers kept ready, a platform; -1 for none (default 1)")
	fl.IntVar(&f.maxWorkers, "max-workers", 0, "workers at one time (default 256)")
	fl.DurationVar(&f.probe, "probe-timeout", 0, "for one driver to answer the probe (default 30s)")
	fl.DurationVar(&f.start, "start-timeout", 0, "for one worker to load its driver (default 1m)")
	fl.DurationVar(&f.spin, "spin", 0, "look so long for a connection's next request before waiting for it; costs a core's time (default 0)")
	fl.StringVar(&f.level, "log-level", "", "error, warn, info or debug (default info)")
	return cmd
}

// daemonConfig joins environment, flags and defaults, and names every fault of the whole at once.
func (c *cli) daemonConfig(f daemonFlags) (daemon.Config, error) {
	var cfg daemon.Config
	if err := cfg.FromEnv(os.LookupEnv); err != nil {
		return cfg, err
	}
	written := map[string]string{
		"TENDRIL_SOCKET": c.socket, "TENDRIL_STATE_DIR": f.state, "TENDRIL_NODE_NAME": f.name, "TENDRIL_CAPACITY": f.capacity,
		"TENDRIL_QUOTA": f.quota, "TENDRIL_WARM_MEMORY": f.warm, "TENDRIL_LOG_LEVEL": f.level,
	}
	err := cfg.FromEnv(func(name string) (string, bool) { v, ok := written[name]; return v, ok })
	if err != nil {
		return cfg, err
	}
	override(&cfg.WarmWorkers, f.warmWorkers)
	override(&cfg.MaxWorkers, f.maxWorkers)
	override(&cfg.ProbeTimeout, f.probe)
	override(&cfg.StartTimeout, f.start)
	override(&cfg.Spin, f.spin)
	if f.vendors != nil {
		cfg.Vendors = f.vendors
	}
	if cfg, err = cfg.Defaults(daemon.ThisMachine("/", ipc.DefaultSocket()), os.LookupEnv); err != nil {
		return cfg, err
	}
	return cfg, cfg.Validate()
}

func override[T comparable](field *T, flag T) {
	var zero T
	if flag != zero {
		*field = flag
	}
}

// serve runs a daemon until it is told to end.
func (c *cli) serve(ctx context.Context, cfg daemon.Config) error {
	log := logrus.New()
	log.SetOutput(c.term.err)
	log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: !c.term.isErr})
	level, err := logrus.ParseLevel(cfg.LogLevel)
	if err != nil {
		return usageError{err}
	}
	log.SetLevel(level)
	d, err := daemon.New(cfg, daemon.Build{Version: version}, log)
	if err != nil {
		return err
	}
	d.OnReady(func() { notifySystemd(log) })
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	ended := make(chan struct{})
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		for {
			select {
			case <-hup:
				log.Info("told to look for drivers again")
				d.Reprobe()
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

// notifySystemd tells a service manager that waits for it (sd_notify(3), Type=notify) that the node serves.
func notifySystemd(log logrus.FieldLogger) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	c, err := net.Dial("unixgram", path)
	if err == nil {
		_, err = fmt.Fprint(c, "READY=1")
		c.Close()
	}
	if err != nil {
		log.WithError(err).Warn("the service manager could not be told that the node is up")
	}
}
