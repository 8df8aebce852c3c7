package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril/daemon"
	"tendril/daemon/audit"
	"tendril/daemon/inspect"
	"tendril/store/object"
)

// said collects what a command prints on both streams, with each run of spaces as one.
func said(t *testing.T, print func(c *cli) error) string {
	t.Helper()
	var out bytes.Buffer
	if err := print(&cli{term: terminal{out: &out, err: &out}}); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func wantSaid(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, text := range want {
		if !strings.Contains(got, text) {
			t.Errorf("%q is not said in:\n%s", text, got)
		}
	}
	if strings.ContainsRune(got, '\x1b') {
		t.Errorf("a name's control character reaches the terminal: %q", got)
	}
}

func TestClusterStatusIsSaid(t *testing.T) {
	silent := time.Now().Add(-3 * time.Minute)
	x := daemon.ClusterInfo{Authority: "ab12", Leader: "a", Entered: true, Nodes: []daemon.ClusterNode{
		{ID: "1", Name: "a", Self: true, Leader: true, Voter: true, Answers: true, Since: silent},
		{ID: "2", Name: "b\x1b[2J", Voter: true, Since: silent, Addresses: []string{"b:7433"}},
		{ID: "3", Name: "c", Answers: true, Devices: []string{"cpu"}}}}
	print := func(c *cli) error { return c.printCluster(x) }
	wantSaid(t, said(t, print), "authority: ab12", "a (this one) leader yes", "voter silent for 3m", "b:7433",
		"c non-voter not asked yet - cpu")
	x.Entered = false
	wantSaid(t, said(t, print), "does not know yet that this node has started")
	x.Leader = ""
	wantSaid(t, said(t, print), "No node leads the cluster")
	x.Fault, x.Why = "no space", "removed"
	wantSaid(t, said(t, print), "cannot be changed: no space", "removed")
}

func TestRecoveryIsSaid(t *testing.T) {
	s := daemon.RecoverStatus{Term: 3, Index: 17, LostObjects: 2, Lost: []daemon.Conflict{{Name: "x"}, {Name: "y\x1b"}},
		Nodes: []daemon.RecoverNode{{Name: "a", Answers: true, KnowsMore: true}, {Name: "b", Answers: true}, {Name: "c"}}}
	print := func(c *cli) error { return c.sayRecovery(s) }
	wantSaid(t, said(t, print), "a yes, with newer metadata", "b yes", "c no", "2 published objects", "entry 17 of term 3",
		"add --yes")
	s.Done = true
	wantSaid(t, said(t, print), "only member now")
}

func TestMovesAreSaid(t *testing.T) {
	lost := daemon.Conflict{Tenant: "lab", Name: "w\x1b", ID: "01", Why: "taken"}
	r := daemon.MoveResult{Republished: 3, Conflicts: []daemon.Conflict{lost}}
	left := daemon.LeaveStatus{Result: &r, LeftObjects: 4, Why: "no answer"}
	print := func(c *cli) error { return c.hasLeft(left) }
	wantSaid(t, said(t, print), "has left the cluster", "Published there: 3 objects.", "tenant lab, object 01): taken",
		"lost 4 published objects", "does not know yet: no answer")
	left.Result = nil
	wantSaid(t, said(t, print), "a cluster of one already")
	left.LeftObjects, left.Stuck = 5, []daemon.Conflict{{Name: "w", Tenant: "lab", Why: "no room"}}
	wantSaid(t, stuckError(left).Error(), "this node alone has 5 published objects", "w (tenant lab): no room")
}

func TestRestoreIsSaid(t *testing.T) {
	taken := time.Date(2026, 11, 24, 10, 0, 0, 0, time.Local)
	r := daemon.RestoreResult{Node: "a", Taken: taken, Dropped: []string{"b", "c"}, LostObjects: 2}
	wantSaid(t, said(t, func(c *cli) error { return c.sayRestored(r) }), "as it was on 2026-11-24 10:00:00", "join again: b, c",
		"No longer published: 2 objects")
}

func TestTenantsAreSaid(t *testing.T) {
	x := inspect.Tenant{Name: "lab", State: "enabled", PublishedObjects: 2, PublishedBytes: 1 << 30,
		Members: []inspect.Member{{Kind: "user", Name: "ann"}, {Kind: "group", Name: "1001", Node: "gpu3"}},
		Quotas:  []inspect.Quota{{MemoryBytes: 1 << 30, DiskBytes: 1 << 31, Devices: 2}, {Node: "gpu3", GPUBytes: 1 << 30}},
		Cluster: inspect.Quota{Bytes: 1 << 40, Objects: 10}}
	want := []string{"lab", "enabled", "user ann, group 1001@gpu3", "node: memory 1.0 GiB, disk 2.0 GiB, 2 devices; " +
		"gpu3: GPU 1.0 GiB; cluster: published 1.0 TiB, 10 objects", "2", "1.0 GiB"}
	if got := tenantRow(x); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := tenantRow(inspect.Tenant{Name: "x", State: "disabled"})[2:4]; !slices.Equal(got, []string{"-", "-"}) {
		t.Errorf("a record with nothing in it: %q", got)
	}
}

func TestAuditIsSaid(t *testing.T) {
	e := audit.Event{Time: time.Date(2026, 11, 24, 10, 0, 0, 0, time.Local), Node: "a", What: "tenant.disable", Who: "root\x1b",
		From: "uid 0", Tenant: "lab", Of: "ann", Error: "not allowed"}
	wantSaid(t, said(t, func(c *cli) error { return c.printAudited(e) }), "2026-11-24 10:00:00 a tenant.disable by",
		"from uid 0 tenant lab of ann refused: not allowed")
}

func TestDevicesAreSaid(t *testing.T) {
	list := []deviceInfo{{Index: 0, Type: "cpu", InPlace: true, Name: "EPYC", UUID: "u1"}, {Index: 1, Type: "gpu", Name: "H200"}}
	print := func(c *cli) error { return c.printDevices(list) }
	got := said(t, print)
	wantSaid(t, got, "in place EPYC", "copied H200")
	if strings.Contains(got, "NODE") {
		t.Errorf("a column for the nodes where there is one:\n%s", got)
	}
	list[0].Node, list[1].Node = "a", "gpu3"
	wantSaid(t, said(t, print), "NODE", "a 0 cpu", "gpu3 1 gpu")
}

// TestASilentClusterIsSaid: what a node lists whose cluster does not answer is a table, and JSON, as any other list.
// That there may be more is said beside it, and by the exit code.
func TestASilentClusterIsSaid(t *testing.T) {
	silence := fmt.Errorf("%w: the list may lack objects: the cluster did not answer", object.ErrTimeout)
	for n := range 3 {
		list := func(yield func(daemon.PublishedStatus, error) bool) {
			for i := range n {
				if !yield(daemon.PublishedStatus{Name: fmt.Sprint("object ", i), Unsure: "no answer"}, nil) {
					return
				}
			}
			yield(daemon.PublishedStatus{}, silence)
		}
		for _, asJSON := range []bool{false, true} {
			var out, errs bytes.Buffer
			c := &cli{term: terminal{out: &out, err: &errs}, json: asJSON}
			code := report(&errs, c.printPublished(list, ""))
			if code != exitTimeout || !strings.Contains(errs.String(), "the cluster did not answer") ||
				strings.Contains(errs.String(), "no published objects") {
				t.Errorf("%d objects, JSON %v: exit code %d, %q", n, asJSON, code, errs.String())
			}
			var items []daemon.PublishedStatus
			if asJSON {
				if err := json.Unmarshal(out.Bytes(), &items); err != nil || len(items) != n ||
					n > 0 && items[0].Unsure != "no answer" {
					t.Errorf("%q, %v", out.String(), err)
				}
			} else if strings.Count(out.String(), "object ") != n {
				t.Errorf("%d objects: %q", n, out.String())
			}
		}
	}
}
