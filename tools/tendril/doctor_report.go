package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"tendril/daemon"
	"tendril/ipc"
	"tendril/store/object"
)

const reportHead = `Tendril: a report of tendril doctor, %s

In it:     versions; this machine's system; what the doctor found; the daemon's settings and status, with paths, addresses
           of machines, user ids, and the names of tenants, programs, devices and drivers; the names of variables.
Not in it: tokens, keys, certificates; names, labels and contents of objects and streams; values of variables but TENDRIL_…;
           the log.
Read it before you send it. The daemon's log is where its standard error goes (journalctl -u tendril).
`

// writeReport writes what a bug report needs, for its writer's eyes first.
func (d *doctor) writeReport(path string) error {
	err := replaceFile(path, 0o600, func(w io.Writer) error {
		fmt.Fprintf(w, reportHead, time.Now().Format(time.RFC3339))
		about := func(what string) { fmt.Fprintf(w, "\n== %s\n", what) }
		about("versions")
		fmt.Fprintf(w, "command   %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		if library, err := findLibrary(""); err == nil {
			fmt.Fprintf(w, "library   %s\n", orDash(libraryVersion(library)))
		}
		if d.status != nil {
			fmt.Fprintf(w, "daemon    %s\n", d.status.Node.Version)
		}
		fmt.Fprintf(w, "system    %s\n", systemName())
		about("what the doctor found")
		for _, f := range d.found {
			fmt.Fprintf(w, "%-5s %s: %s\n", f.State, f.Check, f.Found)
		}
		about("names of variables")
		for _, name := range reportedVariables(os.Environ()) {
			fmt.Fprintln(w, name)
		}
		if d.status == nil {
			return nil
		}
		about("settings of a daemon that is started here")
		if err := printSettings(w); err != nil {
			return err
		}
		about("status")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(withoutNames(*d.status))
	})
	if err == nil {
		d.c.say("tendril: wrote " + path + ". Read it before you send it.")
	}
	return err
}

// withoutNames is a status in which no object is named.
func withoutNames(s daemon.Status) daemon.Status {
	s.Store.Damaged = slices.Clone(s.Store.Damaged)
	for i := range s.Store.Damaged {
		s.Store.Damaged[i] = "a file of an object"
	}
	if last := s.Store.Scrub.Last; last != nil {
		pass := *last
		pass.Damaged = slices.Clone(pass.Damaged)
		for i := range pass.Damaged {
			pass.Damaged[i].Name, pass.Damaged[i].ID = "", object.ID{}
		}
		s.Store.Scrub.Last = &pass
	}
	s.Transfers = slices.Clone(s.Transfers)
	for i := range s.Transfers {
		s.Transfers[i].Name, s.Transfers[i].ID = "", object.ID{}
	}
	return s
}

// printSettings prints what a daemon would start with, but for where it comes from: that may be a flag of this command.
func printSettings(w io.Writer) error {
	var cfg daemon.Config
	machine := daemon.ThisMachine("/", ipc.DefaultSocket())
	path, must := daemon.ConfigFile(machine.UID, os.LookupEnv)
	// A setting that is wrong is what a report is about: it is printed as it is.
	_, _ = cfg.FromFile(path, must), cfg.FromEnv(os.LookupEnv)
	cfg, _ = cfg.Defaults(machine, os.LookupEnv)
	var rows [][]string
	for _, s := range cfg.Show() {
		rows = append(rows, []string{s.Key, orDash(settingText(s)), s.Origin})
	}
	return table(w, screen{}, "SETTING | VALUE | FROM", rows)
}

// reportedVariables are the names of variables that change what Tendril or an OpenCL loader does.
func reportedVariables(env []string) (names []string) {
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		for _, prefix := range []string{"TENDRIL_", "OCL_ICD_", "OPENCL_", "POCL_", "CUDA_", "XDG_"} {
			if value != "" && strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// systemName is what os-release(5) calls the system.
func systemName() string {
	raw, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "not known: " + err.Error()
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return plain(strings.Trim(name, `"'`))
		}
	}
	return "not named in /etc/os-release"
}
