package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
	"tendril/daemon"
	"tendril/daemon/workers"
	"tendril/store/object"
)

func (c *cli) statusVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "status",
		Short:   "Show the node: store, drivers, sessions, workers, limits and fallbacks",
		Example: "  tendril status\n  tendril status --json",
		GroupID: "node",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, _ []string) error {
			raw, err := admin.Of(conn).Status(ctx)
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(json.RawMessage(raw))
			}
			var s daemon.Status
			if err := json.Unmarshal(raw, &s); err != nil {
				return fmt.Errorf("the daemon's status: %w", err)
			}
			return c.printStatus(s)
		}),
	})
}

func (c *cli) printStatus(s daemon.Status) error {
	n := s.Node
	rows := [][]string{
		{"node", fmt.Sprintf("%s (%s), version %s, pid %d, up %s", n.Name, n.ID, n.Version, n.PID, since(n.Since))},
		{"socket", n.Socket},
		{"state", fmt.Sprintf("%s, caches in %s", n.StateDir, n.CacheDir)},
	}
	note := func(what, format string, args ...any) {
		rows = append(rows, []string{what, fmt.Sprintf(format, args...)})
	}
	switch {
	case n.Listen == "":
	case daemon.Loopback(n.Listen):
		note("network", "open to this machine only, at %s; for others: tendril daemon --listen :%s", n.Listen,
			login.DefaultPort)
	default:
		note("network", "open to other machines at %s", n.Listen)
	}
	if n.HTTP != "" {
		note("http", "%s (tendril ui)", n.HTTP)
	}
	note("store", "%s, %s of %s in use, %s ready for new ones, %s", object.Counted(s.Store.Objects, "object"),
		size(s.Store.ChargedBytes), size(s.Store.CapacityBytes), size(s.Store.WarmBytes),
		object.Counted(s.Store.Connections, "connection"))
	if x := s.Store.Scrub; x.Last != nil {
		note("scrub", "last ended %s ago: %s, %s in memory and %s on disk, %d damaged", since(x.Last.Ended),
			object.Counted(x.Last.Objects, "object"), size(x.Last.MemoryBytes), size(x.Last.DiskBytes), x.Last.Damages())
	} else if x.IntervalSeconds > 0 {
		note("scrub", "every %v; the first one has not ended yet",
			time.Duration(x.IntervalSeconds*float64(time.Second)))
	}
	if x := s.Store.Index; x.Connections > 0 {
		note("index", "%s, %s, %s, in %s of shared memory", object.Counted(x.Connections, "connection"),
			object.Counted(x.Objects, "object"), object.Counted(x.References, "reference"), size(x.Bytes))
	}
	if o := s.Others; o != nil && o.Sessions+o.Workers > 0 {
		note("others", "%s and %s of other tenants (root and the daemon's user see them)",
			object.Counted(o.Sessions, "program"), object.Counted(o.Workers, "worker"))
	}
	return firstError(
		fields(c.term.out, c.term.screen, rows),
		c.section("drivers", "STATE | DEVICES? | PLATFORMS | FILE?? | ERROR", driverRows(s)),
		c.section("sessions", sessionHead, sessionRows(s)),
		c.section("workers", "STATE | PID | TENANT?? | SESSION? | SINCE?? | MEMORY | PLATFORM?", workerRows(s)),
		c.compressedSection(s),
		c.leaseSection(s),
		c.peerLinkSection(s),
		c.transferSection(s),
		c.keptSection(s),
		c.boundSection(s),
		c.hiddenSection(s),
		c.section("fallbacks", "NOT USED | WHY", fallbackRows(s)),
	)
}

// leaseSection shows who has devices for itself alone, and who waits, where there is anybody.
func (c *cli) leaseSection(s daemon.Status) error {
	if len(s.Leases) == 0 {
		return nil
	}
	return c.section("leases", leaseHead, leaseRows(s.Leases))
}

// hiddenSection shows which devices the node has and does not offer, where there are any.
func (c *cli) hiddenSection(s daemon.Status) error {
	if len(s.Hidden) == 0 {
		return nil
	}
	var rows [][]string
	for _, x := range s.Hidden {
		rows = append(rows, []string{strconv.Itoa(x.Index), x.Name, x.Platform, x.UUID, x.Why})
	}
	return c.section("devices that are not offered", "N | NAME | PLATFORM? | UUID?? | WHY", rows)
}

// keptSection shows who has memory that was let go, where anybody has.
func (c *cli) keptSection(s daemon.Status) error {
	var rows [][]string
	for _, k := range s.Kept {
		whole := "all listed"
		if !k.Whole {
			whole = "there may be more"
		}
		rows = append(rows, []string{k.Tenant, size(k.Bytes), since(k.Since), "-", "-", "-", whole})
		for _, h := range k.Holders {
			rows = append(rows, []string{k.Tenant, size(h.Bytes), "-", strconv.Itoa(h.PID), fmt.Sprint(h.UID),
				orDash(h.Program), "-"})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return c.section("freed, but still mapped or open in a process",
		"CHARGED TO | BYTES | FOR? | PID | UID?? | PROGRAM? | HOLDERS??", rows)
}

// section prints a table with its title, or one line that there is nothing.
func (c *cli) section(title, head string, rows [][]string) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintf(c.term.out, "\n%s: none\n", title)
		return err
	}
	fmt.Fprintf(c.term.out, "\n%s\n", c.term.screen.in(titles, title+":"))
	return table(c.term.out, c.term.screen, head, rows)
}

func driverRows(s daemon.Status) (rows [][]string) {
	for _, d := range s.Drivers {
		rows = append(rows, []string{string(d.State), strconv.Itoa(d.Devices), orDash(strings.Join(d.Platforms, ", ")),
			d.ICD, orDash(d.Error)})
	}
	return rows
}

const sessionHead = "ID | PID OR FROM | TENANT? | SINCE?? | PROGRAM | DEVICES???"

func sessionRows(s daemon.Status) (rows [][]string) {
	for _, x := range s.Sessions {
		rows = append(rows, sessionRow(x))
	}
	return rows
}

func sessionRow(x daemon.SessionStatus) []string {
	from := strconv.Itoa(x.PID)
	if x.Peer != "" {
		from = x.Peer
	}
	if !x.WaitsUntil.IsZero() {
		from = fmt.Sprintf("waiting for its client: %s left", time.Until(x.WaitsUntil).Round(time.Second))
	}
	devices := x.Selector
	if devices == "" {
		devices = "all"
	}
	return []string{fmt.Sprint(x.ID), from, x.Tenant, since(x.Since), orDash(x.Program), devices}
}

func workerRows(s daemon.Status) (rows [][]string) {
	for _, x := range s.Workers {
		session := "-"
		if x.Session != 0 {
			session = fmt.Sprint(x.Session)
		}
		rows = append(rows, []string{x.State, strconv.Itoa(x.PID), x.Tenant, session, since(x.Since),
			size(x.MemoryBytes), x.Platform})
	}
	return rows
}

// compressedSection shows the sessions whose link is so slow that what they move is compressed, where there are any.
func (c *cli) compressedSection(s daemon.Status) error {
	programs := map[uint64]daemon.SessionStatus{}
	for _, x := range s.Sessions {
		programs[x.ID] = x
	}
	var rows [][]string
	for _, w := range s.Workers {
		if m := w.Moved; m != nil {
			p := programs[w.Session]
			rows = append(rows, []string{fmt.Sprint(w.Session), orDash(p.Program), orDash(p.Peer),
				compressed(m.Taken, m.TakenWire), compressed(m.Sent, m.SentWire)})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return c.section("compressed on slow links", "SESSION | PROGRAM | FROM? | RECEIVED | SENT", rows)
}

// peerLinkSection shows links between workers where there are, or should be, any.
func (c *cli) peerLinkSection(s daemon.Status) error {
	var rows [][]string
	for _, x := range s.PeerLinks {
		state := "up"
		if !x.Up {
			state = "none"
		}
		rows = append(rows, []string{fmt.Sprint(x.Session), fmt.Sprint(x.Worker), plain(x.With), state,
			orDash(plain(x.Why))})
	}
	if len(rows) == 0 {
		return nil
	}
	title, all := "links between workers", 0
	for _, x := range s.Sessions {
		all += x.PeerLinks
	}
	if all > len(rows) {
		title = fmt.Sprintf("links between workers (%d of %d)", len(rows), all)
	}
	return c.section(title, "SESSION | WORKER?? | WITH | STATE | ERROR", rows)
}

// transferSection shows objects on their way here from other nodes, where there are any.
func (c *cli) transferSection(s daemon.Status) error {
	var rows [][]string
	for _, x := range s.Transfers {
		rows = append(rows, []string{plain(x.Name), x.Tenant, orDash(plain(x.From)), size(x.DoneBytes),
			size(x.SizeBytes), since(x.Since)})
	}
	if len(rows) == 0 {
		return nil
	}
	return c.section("objects on their way here", "NAME | TENANT? | FROM | DONE | OF | SINCE?", rows)
}

// boundSection shows bounds where the daemon tells them: one from before them does not.
func (c *cli) boundSection(s daemon.Status) error {
	if s.Bounds == (workers.Bounds{}) {
		return nil
	}
	rows := boundRows(s.Bounds)
	if x := s.Store; x.SegmentLimit > 0 {
		rows = append(rows, []string{"segments of objects' memory", "-",
			fmt.Sprintf("%d; %d of %d are in use", x.TenantSegmentLimit, x.OpenSegments, x.SegmentLimit), "daemon"})
	}
	return c.section("limits", boundsHead, rows)
}

const boundsHead = "WHAT | OF A WORKER | OF A TENANT | ENFORCED BY?"

// boundRows shows what workers may take, and who sees to it.
func boundRows(b workers.Bounds) [][]string {
	count := func(n int) string {
		if n <= 0 {
			return "no limit"
		}
		return strconv.Itoa(n)
	}
	bytes := func(n int64) string {
		if n <= 0 {
			return "no limit"
		}
		return size(uint64(n))
	}
	return [][]string{
		{"processes and threads", count(b.Processes), count(b.TenantProcesses), b.ProcessesBy},
		{"memory", bytes(b.MemoryBytes), bytes(b.TenantBytes), b.MemoryBy},
		{"open files of a process", count(b.Files), "-", "process limit"},
		{"size of a file", bytes(b.FileBytes), "-", "process limit"},
		{"processors", "an equal share", "-", b.CPUBy},
		{"workers", "-", fmt.Sprintf("%d, of which %d are kept for tenants without one", b.Workers,
			b.KeptWorkers), "daemon"},
		{"its child processes end with it", "-", "-", b.EndedBy},
	}
}

func fallbackRows(s daemon.Status) (rows [][]string) {
	for _, x := range s.Fallbacks {
		rows = append(rows, []string{x.What, x.Why})
	}
	return rows
}
