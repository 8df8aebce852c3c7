package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"tendril/daemon"
	"tendril/ipc"
)

func (c *cli) configVerb() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "The daemon's configuration",
		Example: "  tendril config show",
		GroupID: "node",
	}
	show := &cobra.Command{
		Use:     "show",
		Short:   "Show all settings that a daemon would start with here, and where each comes from",
		Example: "  tendril config show\n  tendril config show --capacity 8GiB --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, faults := daemonConfig(cmd)
			if c.json {
				return errors.Join(c.printJSON(cfg.Show()), asUsage(faults))
			}
			var rows [][]string
			for _, s := range cfg.Show() {
				rows = append(rows, []string{s.Key, orDash(plain(settingText(s))), s.Origin})
			}
			return errors.Join(table(c.term.out, c.term.screen, "SETTING | VALUE | FROM?", rows), asUsage(faults))
		},
	}
	addDaemonFlags(show)
	cmd.AddCommand(c.jsonFlag(show))
	return cmd
}

// settingText gives sizes in a form that people read, besides the bytes.
func settingText(s daemon.Shown) string {
	switch s.Key {
	case "kernel-time", "build-time", "lease-time", "lease-idle":
		if s.Value == "0s" {
			return "no limit"
		}
	case "scrub-interval":
		if s.Value == "0s" {
			return "only when asked for"
		}
	case "capacity", "quota", "spill", "quota-spill", "quota-device", "idle-device", "session-device", "pin-memory", "high-water",
		"warm-memory", "kernel-cache", "request-memory", "scrub-rate", "transfer-rate", "worker-memory",
		"worker-file-size", "tenant-memory":
		if n, err := strconv.ParseUint(s.Value, 10, 64); err == nil {
			return fmt.Sprintf("%s (%s)", s.Value, size(n))
		}
	}
	return s.Value
}

// asUsage makes faults of a configuration those of how it was written; a file that cannot be read is none of these.
func asUsage(err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return err
	}
	return usageError{err}
}

// daemonConfig joins file, environment, flags and defaults, and names every fault of the whole at once.
func daemonConfig(cmd *cobra.Command) (daemon.Config, error) {
	var cfg daemon.Config
	written := func(name string) (string, bool) {
		f := cmd.Flags().Lookup(name)
		if f == nil {
			return "", false
		}
		return f.Value.String(), f.Changed
	}
	machine := daemon.ThisMachine("/", ipc.DefaultSocket())
	path, must := daemon.ConfigFile(machine.UID, os.LookupEnv)
	if told, set := written("config"); set {
		path, must = told, true
	}
	faults := []error{cfg.FromFile(path, must), cfg.FromEnv(os.LookupEnv), cfg.FromFlags(written)}
	cfg, err := cfg.Defaults(machine, os.LookupEnv)
	faults = append(faults, err, cfg.Validate())
	return cfg, errors.Join(faults...)
}
