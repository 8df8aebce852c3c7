package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/client/login"
	"tendril/daemon"
	"tendril/daemon/workers"
	"tendril/store/object"
)

// finding is one thing that the doctor looked at.
type finding struct {
	Check string `json:"check"`
	State string `json:"state"`
	Found string `json:"found"`
	Do    string `json:"do,omitempty"` // what to do about it

	// of a way to the memory of a GPU
	GPU         string  `json:"gpu,omitempty"`
	Way         string  `json:"way,omitempty"`
	MS          float64 `json:"ms,omitempty"`
	GBPerSecond float64 `json:"gb_per_s,omitempty"`
}

// doctor collects findings, and prints each as it comes.
type doctor struct {
	c      *cli
	found  []finding
	status *daemon.Status // of the daemon here; nil where it did not answer
	err    error          // of printing
}

func (d *doctor) note(check, state, do, format string, args ...any) {
	if state == good {
		do = ""
	}
	f := finding{Check: check, State: state, Found: plain(fmt.Sprintf(format, args...)), Do: do}
	d.found = append(d.found, f)
	if !d.c.json && d.err == nil {
		d.err = d.print(f)
	}
}

func (d *doctor) print(f finding) error {
	w, s := d.c.term.out, d.c.term.screen
	err := hanging(w, s, fmt.Sprintf("%-5s ", f.State), stateInk(f.State), f.Check+": "+f.Found)
	if err != nil || f.Do == "" {
		return err
	}
	return hanging(w, s, "      ", nil, f.Do)
}

// okIf is good where ok holds, and otherwise the state given.
func okIf(ok bool, otherwise string) string {
	if ok {
		return good
	}
	return otherwise
}

func (c *cli) doctorVerb() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, or with --server the way to another one, and say what to do",
		Long: "Check this machine: kernel, limits, memory, daemon, drivers, a kernel run through a session on each device, every way to the memory of each GPU, disk, clock and certificates.\n" +
			"With --server check the way to another machine's daemon instead: name, port, TLS, login, version, round trip and bandwidth.\n" +
			"Each line is ok, warn (it works, not as well as it could) or bad, with what to do. Exit code 1 if a line is bad.\n" +
			"--report also writes a file for a bug report. Its first lines say what is in it; tokens, keys and names of objects are not.",
		Example: "  tendril doctor\n  tendril doctor --server gpubox\n  tendril doctor --report report.txt",
		GroupID: "node",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("report") && path == "" {
				return usagef("--report needs the name of a file")
			}
			servers, err := c.serverList()
			if err != nil {
				return err
			}
			d := &doctor{c: c, found: []finding{}}
			c.quietBuild = true // a line of its own says it
			if len(servers) == 0 {
				d.checkHere(cmd.Context())
			}
			for _, s := range servers {
				d.checkServer(cmd.Context(), s)
			}
			if path != "" {
				if err := d.writeReport(path); err != nil {
					return err
				}
			}
			return d.report()
		},
	}
	cmd.Flags().StringVar(&path, "report", "", "write a file for a bug report")
	return c.jsonFlag(cmd)
}

// report ends the visit: the list as JSON where that was asked for, and an error where something is bad.
func (d *doctor) report() error {
	if d.c.json {
		d.err = d.c.printJSON(d.found)
	}
	bad := 0
	for _, f := range d.found {
		if f.State == faulty {
			bad++
		}
	}
	if d.err == nil && bad > 0 {
		return fmt.Errorf("%d of %s failed", bad, object.Counted(len(d.found), "check"))
	}
	return d.err
}

// checkHere looks at this machine.
func (d *doctor) checkHere(ctx context.Context) {
	d.checkKernel()
	d.checkLimits()
	d.checkLibrary()
	d.checkDaemon(ctx)
	d.checkClock()
	d.checkCertificates()
}

func (d *doctor) checkKernel() {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		d.note("kernel", notable, "", "not known: %v", err)
		return
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	_, _ = fmt.Sscanf(release, "%d.%d", &major, &minor) // 0.0: too old
	d.note("kernel", okIf(major > 5 || major == 5 && minor >= 14, faulty),
		"Use Linux 5.14 or later: it ends all processes of a worker at once, and populates memory ahead.",
		"Linux %s", release)
}

// leastFiles is how many descriptors a daemon wants for a few hundred clients.
const leastFiles = 4096

func (d *doctor) checkLimits() {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		d.note("open files", notable, "", "not known: %v", err)
		return
	}
	d.note("open files", okIf(l.Max >= leastFiles, notable),
		"Raise the hard limit (ulimit -Hn, systemd: LimitNOFILE=): each client of the daemon takes up to 3.",
		"at most %d for a daemon that is started here", l.Max)
}

// checkLibrary looks at what OpenCL programs load.
func (d *doctor) checkLibrary() {
	var loaders []string
	for _, pattern := range []string{"/usr/lib/*/libOpenCL.so.1", "/usr/lib*/libOpenCL.so.1",
		"/usr/local/lib*/libOpenCL.so.1", "/opt/*/lib*/libOpenCL.so.1"} {
		found, _ := filepath.Glob(pattern) // the pattern is good
		loaders = append(loaders, found...)
	}
	if len(loaders) == 0 {
		d.note("OpenCL loader", notable, "Programs that use OpenCL need one: install ocl-icd-libopencl1.",
			"no libOpenCL.so.1 in the usual directories")
	} else {
		d.note("OpenCL loader", good, "", "%s", loaders[0])
	}
	library, err := findLibrary("")
	if err != nil {
		d.note("driver library", faulty, "Install it beside the program, or name it: TENDRIL_LIBRARY.", "%v", err)
		return
	}
	stamp := libraryVersion(library)
	d.note("driver library", okIf(stamp == version, faulty), "Install command and library of the same build.",
		"%s, version %s; this command is version %s", library, orDash(stamp), version)
}

// checkDaemon looks at the daemon, at what it says of itself, and at its devices.
func (d *doctor) checkDaemon(ctx context.Context) {
	conn, err := d.c.dial(ctx)
	if err != nil {
		_, do := classify(err)
		d.note("daemon", faulty, do, "%v", err)
		return
	}
	defer conn.Close()
	about := conn.Daemon()
	d.note("daemon", okIf(about.Version == version, faulty),
		"Use the daemon and the command of the same build: restart the daemon after an upgrade (tendril daemon --takeover).",
		"at %s, version %s, pid %d, you are tenant %s; this command is version %s", conn.Socket(), about.Version,
		about.PID, about.Tenant, version)
	status, err := nodeStatus(ctx, conn)
	if err != nil {
		d.note("status", faulty, "", "%v", err)
		return
	}
	d.status = &status
	d.checkStore(status)
	d.checkDrivers(status)
	d.checkDevices(conn.Socket())
	d.checkGPUs(ctx, conn)
	for _, x := range fallbackRows(status) {
		d.note("not used", notable, "", "%s: %s", x[0], x[1])
	}
}

// Of a disk that a daemon keeps objects on, so much is to be free.
const leastDisk = 1 << 30

func (d *doctor) checkStore(s daemon.Status) {
	st := s.Store
	machine := daemon.ThisMachine("/", s.Node.Socket)
	d.note("memory", okIf(machine.MemoryBytes == 0 || st.CapacityBytes <= machine.MemoryBytes, faulty),
		"Start the daemon with a smaller --capacity.",
		"the store may have %s, of which %s are taken; this machine has %s", size(st.CapacityBytes),
		size(st.ChargedBytes), size(machine.MemoryBytes))
	var fs unix.Statfs_t
	if err := unix.Statfs(s.Node.StateDir, &fs); err != nil {
		d.note("disk", notable, "", "you cannot inspect %s: %v", s.Node.StateDir, err)
	} else {
		free := fs.Bavail * uint64(fs.Bsize)
		d.note("disk", okIf(free >= leastDisk, notable),
			"Objects go there when memory is short: free some space, or move --state-dir.", "%s free at %s",
			size(free), s.Node.StateDir)
	}
	if n := st.FilesLeft; n > 0 {
		d.note("disk", faulty, "Check whether the disk is read-only, or its folder belongs to another user. The daemon tries again.",
			"%s of deleted objects cannot be removed", object.Counted(n, "file"))
	}
	if n := st.RecordsBehind; n > 0 {
		d.note("disk", faulty, "Check whether the disk is full or read-only. The daemon tries again; after a crash before that, the old values are back.",
			"the last change of %s is not on disk", object.Counted(n, "object"))
	}
	if n := len(st.Damaged); n > 0 {
		d.note("objects", faulty, "See them with tendril status; delete them and put them again.",
			"%d on disk cannot be read", n)
	}
}

func (d *doctor) checkDrivers(s daemon.Status) {
	for _, x := range s.Drivers {
		if x.State == workers.DriverReady || x.Error == "" {
			d.note("driver", good, "", "%s: %s (%s)", x.ICD, object.Counted(x.Devices, "device"), orDash(strings.Join(x.Platforms, ", ")))
			continue
		}
		d.note("driver", faulty, "Install the library that it names, or remove the file; the daemon notices when it next looks at its devices.",
			"%s: %s", x.ICD, x.Error)
	}
	if len(s.Drivers) == 0 {
		d.note("driver", notable,
			"For the CPU install pocl-opencl-icd, for a GPU its vendor's driver; the daemon finds it by itself.", "none")
	}
}

func (d *doctor) checkClock() {
	const unsynchronized = 5 // TIME_ERROR, adjtimex(2)
	state, err := unix.Adjtimex(&unix.Timex{})
	switch {
	case err != nil:
		d.note("clock", notable, "", "not known whether it is synchronized: %v", err)
	case state == unsynchronized:
		d.note("clock", notable, "Certificates depend on the clock: run a time service (systemd-timesyncd, chrony).",
			"%s, not synchronized", time.Now().Format(time.RFC3339))
	default:
		d.note("clock", good, "", "%s, synchronized", time.Now().Format(time.RFC3339))
	}
}

func (d *doctor) checkCertificates() {
	names, err := login.Servers()
	if err != nil {
		d.note("certificates", notable, "", "%v", err)
	}
	for _, name := range names {
		until, err := login.CertificateUntil(name)
		switch left := time.Until(until); {
		case err != nil:
			d.note("certificate", faulty, "Log in again: tendril login "+name, "for %s: %v", name, err)
		case left <= 0:
			d.note("certificate", faulty, "Log in again: tendril login "+name, "for %s: expired at %s", name,
				until.Format(time.RFC3339))
		default:
			d.note("certificate", good, "", "for %s: until %s; using it renews it", name, until.Format(time.DateOnly))
		}
	}
}

// checkServer goes the way to another machine's daemon, as far as it leads.
func (d *doctor) checkServer(ctx context.Context, server string) {
	if !strings.Contains(server, "://") && !d.checkReach(ctx, server) {
		return
	}
	done := d.c.doing(server + ": TLS and login")
	conn, err := dialServer(ctx, server, "")
	done()
	if err != nil {
		_, do := classify(err)
		d.note(server+": login", faulty, do, "%v", err)
		return
	}
	defer conn.Close()
	about := conn.Daemon()
	d.note(server+": login", good, "", "TLS and certificate are good; you are tenant %s", about.Tenant)
	d.note(server+": version", okIf(about.Version == version, notable), "Install the same release on both machines.",
		"%s there, %s here", about.Version, version)
	d.note(server+": round trip", good, "", "%.2f ms", roundTrip(ctx, conn).Seconds()*1000)
	d.checkBandwidth(ctx, server, conn)
}

// checkReach looks a name up and connects to the port.
func (d *doctor) checkReach(ctx context.Context, server string) bool {
	done := d.c.doing(server + ": name and port")
	reached, err := login.Reach(ctx, server)
	done()
	if len(reached.Addresses) == 0 {
		d.note(server+": name", faulty, "Check the name, or use the address.", "%v", err)
		return false
	}
	d.note(server+": name", good, "", "%s", strings.Join(reached.Addresses, ", "))
	switch {
	case err == nil:
		d.note(server+": port", good, "", "%s answers in %.2f ms", reached.At, reached.Took.Seconds()*1000)
		return true
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, unix.ETIMEDOUT):
		d.note(server+": port", faulty,
			"A firewall drops what is sent there, or the machine is off: open port "+reached.Port+" (TCP).",
			"no answer from %s: firewall?", reached.At)
	case errors.Is(err, unix.ECONNREFUSED):
		d.note(server+": port", faulty,
			"Start a daemon there that listens beyond its own machine: tendril daemon --listen :"+reached.Port,
			"%s refuses: nobody listens there", reached.At)
	default:
		d.note(server+": port", faulty, "", "%v", err)
	}
	return false
}

// bandwidthBytes is how much goes there and back.
const bandwidthBytes = 16 << 20

func (d *doctor) checkBandwidth(ctx context.Context, server string, conn *client.Conn) {
	done := d.c.doing(server + ": bandwidth")
	there, back, err := bandwidth(ctx, conn)
	done()
	switch {
	case errors.Is(err, object.ErrPermission), errors.Is(err, object.ErrFull), errors.Is(err, object.ErrQuota):
		d.note(server+": bandwidth", notable, "", "not measured: %v", err)
	case err != nil:
		d.note(server+": bandwidth", faulty, "", "%v", err)
	default:
		d.note(server+": bandwidth", good, "", "%s/s there, %s/s back", size(there), size(back))
	}
}

// bandwidth puts an object there, reads it, and leaves nothing; in bytes a second.
func bandwidth(ctx context.Context, conn *client.Conn) (there, back uint64, err error) {
	rate := func(began time.Time) uint64 { return uint64(bandwidthBytes / max(time.Since(began).Seconds(), 1e-9)) }
	began := time.Now()
	up, err := conn.NewUpload(ctx, bandwidthBytes, client.CreateOptions{})
	if err != nil {
		return 0, 0, err
	}
	_, err = up.Write(make([]byte, bandwidthBytes))
	if err == nil {
		err = up.Seal(ctx)
	}
	if err != nil {
		return 0, 0, errors.Join(err, up.Abort(ctx))
	}
	defer up.Release() // the object goes with it
	there, began = rate(began), time.Now()
	obj, err := conn.Open(ctx, up.ID(), "", 0)
	if err != nil {
		return 0, 0, err
	}
	defer obj.Close()
	err = obj.CopyRange(ctx, io.Discard, 0, bandwidthBytes)
	return there, rate(began), err
}
