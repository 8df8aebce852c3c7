package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/daemon"
	"tendril/daemon/workers"
)

func (c *cli) statusVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "status",
		Short:   "Show the node: store, drivers, sessions, workers, and what it had to do without",
		Example: "  tendril status\n  tendril status --json",
		GroupID: "node",
		Args:    cobra.NoArgs,
		RunE: c.asking(func(conn *client.Conn, _ []string) error {
			raw, err := conn.Status()
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
	w := c.term.out
	n := s.Node
	fmt.Fprintf(w, "node       %s (%s), version %s, pid %d, up %s\n", plain(n.Name), n.ID, plain(n.Version), n.PID, since(n.Since))
	fmt.Fprintf(w, "socket     %s\nstate      %s, caches in %s\n", plain(n.Socket), plain(n.StateDir), plain(n.CacheDir))
	if n.Listen != "" {
		fmt.Fprintf(w, "network    other machines come in at %s\n", n.Listen)
	}
	if n.HTTP != "" {
		fmt.Fprintf(w, "http       %s (tendril ui)\n", n.HTTP)
	}
	fmt.Fprintf(w, "store      %d objects, %s of %s in use, %s ready for new ones, %d connections\n",
		s.Store.Objects, size(s.Store.ChargedBytes), size(s.Store.CapacityBytes), size(s.Store.WarmBytes), s.Store.Connections)
	if x := s.Store.Scrub; x.Last != nil {
		fmt.Fprintf(w, "scrub      ended %s ago: %d objects, %s in memory and %s on disk, %d damaged\n",
			since(x.Last.Ended), x.Last.Objects, size(x.Last.MemoryBytes), size(x.Last.DiskBytes), x.Last.Damages())
	} else if x.IntervalSeconds > 0 {
		fmt.Fprintf(w, "scrub      every %v, none has ended yet\n", time.Duration(x.IntervalSeconds*float64(time.Second)))
	}
	if x := s.Store.Index; x.Connections > 0 {
		fmt.Fprintf(w, "index      %d connections get %d objects through shared memory, %s of it, and hold %d references there\n",
			x.Connections, x.Objects, size(x.Bytes), x.References)
	}
	if o := s.Others; o != nil && o.Sessions+o.Workers > 0 {
		fmt.Fprintf(w, "others     %d programs and %d workers of other tenants, which root and the daemon's user see\n", o.Sessions, o.Workers)
	}
	return firstError(
		c.section("drivers", "STATE | DEVICES | PLATFORMS | FILE | WHY NOT", driverRows(s)),
		c.section("sessions", sessionHead, sessionRows(s)),
		c.section("workers", "STATE | PID | TENANT | SESSION | SINCE | MEMORY | PLATFORM", workerRows(s)),
		c.compressedSection(s),
		c.peerLinkSection(s),
		c.keptSection(s),
		c.boundSection(s.Bounds),
		c.section("done without", "WHAT | WHY", fallbackRows(s)),
	)
}

// keptSection shows who has memory that was let go, where anybody has.
func (c *cli) keptSection(s daemon.Status) error {
	var rows [][]string
	for _, k := range s.Kept {
		whole := "all that is known"
		if !k.Whole {
			whole = "others may, too"
		}
		rows = append(rows, []string{k.Tenant, size(k.Bytes), since(k.Since), "-", "-", "-", whole})
		for _, h := range k.Holders {
			rows = append(rows, []string{k.Tenant, size(h.Bytes), "-", strconv.Itoa(h.PID), fmt.Sprint(h.UID), orDash(h.Program), "-"})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return c.section("let go and still mapped or open", "CHARGED TO | BYTES | FOR | PID | UID | PROGRAM | HOLDERS", rows)
}

// section prints a table with its title, or one line that there is nothing.
func (c *cli) section(title, head string, rows [][]string) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintf(c.term.out, "\n%s: none\n", title)
		return err
	}
	fmt.Fprintf(c.term.out, "\n%s:\n", title)
	return table(c.term.out, head, rows)
}

func driverRows(s daemon.Status) (rows [][]string) {
	for _, d := range s.Drivers {
		rows = append(rows, []string{string(d.State), strconv.Itoa(d.Devices), orDash(strings.Join(d.Platforms, ", ")), d.ICD, orDash(d.Error)})
	}
	return rows
}

const sessionHead = "ID | PID OR FROM | TENANT | SINCE | PROGRAM | DEVICES"

func sessionRows(s daemon.Status) (rows [][]string) {
	for _, x := range s.Sessions {
		devices := x.Selector
		if devices == "" {
			devices = "all"
		}
		from := strconv.Itoa(x.PID)
		if x.Peer != "" {
			from = x.Peer
		}
		if !x.WaitsUntil.IsZero() {
			from = fmt.Sprintf("waiting for its client %s", time.Until(x.WaitsUntil).Round(time.Second))
		}
		rows = append(rows, []string{fmt.Sprint(x.ID), from, x.Tenant, since(x.Since), orDash(x.Program), devices})
	}
	return rows
}

func workerRows(s daemon.Status) (rows [][]string) {
	for _, x := range s.Workers {
		session := "-"
		if x.Session != 0 {
			session = fmt.Sprint(x.Session)
		}
		rows = append(rows, []string{x.State, strconv.Itoa(x.PID), x.Tenant, session, since(x.Since), size(x.MemoryBytes), x.Platform})
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
			rows = append(rows, []string{fmt.Sprint(w.Session), orDash(p.Program), orDash(p.Peer), compressed(m.Taken, m.TakenWire), compressed(m.Sent, m.SentWire)})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return c.section("compressed on slow links", "SESSION | PROGRAM | FROM | FROM THE PROGRAM | TO IT", rows)
}

// peerLinkSection shows links between workers where there are, or should be, any.
func (c *cli) peerLinkSection(s daemon.Status) error {
	var rows [][]string
	for _, x := range s.PeerLinks {
		state := "up"
		if !x.Up {
			state = "none"
		}
		rows = append(rows, []string{fmt.Sprint(x.Session), fmt.Sprint(x.Worker), plain(x.With), state, orDash(plain(x.Why))})
	}
	if len(rows) == 0 {
		return nil
	}
	return c.section("links between workers", "SESSION | WORKER | WITH | STATE | WHY NOT", rows)
}

// boundSection shows bounds where the daemon tells them: one from before them does not.
func (c *cli) boundSection(b workers.Bounds) error {
	if b == (workers.Bounds{}) {
		return nil
	}
	return c.section("bounds", "WHAT | OF A WORKER | OF A TENANT | KEPT BY", boundRows(b))
}

// boundRows shows what workers may take, and who sees to it.
func boundRows(b workers.Bounds) [][]string {
	count := func(n int) string {
		if n <= 0 {
			return "no bound"
		}
		return strconv.Itoa(n)
	}
	bytes := func(n int64) string {
		if n <= 0 {
			return "no bound"
		}
		return size(uint64(n))
	}
	return [][]string{
		{"processes and threads", count(b.Processes), count(b.TenantProcesses), b.ProcessesBy},
		{"memory of their own", bytes(b.MemoryBytes), bytes(b.TenantBytes), b.MemoryBy},
		{"open files of a process", count(b.Files), "-", "process limit"},
		{"size of a file", bytes(b.FileBytes), "-", "process limit"},
		{"processors", "an equal share", "-", b.CPUBy},
		{"workers", "-", fmt.Sprintf("%d less %d for newcomers", b.Workers, b.KeptWorkers), "daemon"},
		{"what it starts ends with it", "-", "-", b.EndedBy},
	}
}

func fallbackRows(s daemon.Status) (rows [][]string) {
	for _, x := range s.Fallbacks {
		rows = append(rows, []string{x.What, x.Why})
	}
	return rows
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
