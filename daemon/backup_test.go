package daemon

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril/client"
	"tendril/cluster/fsm"
	"tendril/cluster/pki"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func backupOf(t *testing.T, d *Daemon) (b Backup) {
	t.Helper()
	raw, err := d.BackupCluster()
	if err == nil {
		err = json.Unmarshal(raw, &b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A backup begins the cluster again: on a new machine, or on a node of it, which then has its objects again. The rest
// of the old cluster does not come in by itself.
func TestBackupAndRestore(t *testing.T) {
	x := newCluster(t, 2, func(_ int, c *Config) { c.SpillBytes = 64 << 20 })
	x.put(0, "on disk", []byte("content"), client.CreateOptions{Class: object.Persisted})
	x.put(1, "of n1", []byte("one"), client.CreateOptions{})
	if _, err := x.all[1].propose(&fsm.PutTenant{Tenant: fsm.Tenant{Name: "lab"}}); err != nil {
		t.Fatal(err)
	}
	b := backupOf(t, x.all[1]) // which does not lead
	authority := clusterInfo(t, x.all[0]).Authority
	if b.Cluster != authority || b.Node != "n1" || b.Taken.IsZero() {
		t.Errorf("the backup is of %s by %s, %v", b.Cluster, b.Node, b.Taken)
	}
	n0 := x.all[0].cfg
	if _, err := Restore(n0.StateDir, "", b, true); !errors.Is(err, ErrLocked) {
		t.Errorf("under a daemon that runs: %v", err)
	}
	x.end(0)
	if _, err := Restore(n0.StateDir, "", b, false); !errors.Is(err, object.ErrExists) ||
		!strings.Contains(err.Error(), "--anyway") {
		t.Errorf("over a node: %v", err)
	}
	fresh := aNode(t, "fresh")
	for what, change := range map[string]func(*Backup){
		"format":    func(b *Backup) { b.Format = 2 },
		"state":     func(b *Backup) { b.State = b.State[:len(b.State)-1] },
		"authority": func(b *Backup) { b.Authority = b.Authority[1:] },
		"key":       func(b *Backup) { b.Key = []byte("no key") },
	} {
		bad := b
		change(&bad)
		if _, err := Restore(fresh.StateDir, "fresh", bad, false); err == nil {
			t.Errorf("a backup with another %s is restored", what)
		}
	}

	check := func(c Config, name string, published ...string) *Daemon {
		t.Helper()
		d := x.ns.start(c)
		await.Until(t, "the node has entered", func() bool { return clusterInfo(t, d).Entered })
		info := clusterInfo(t, d)
		if info.Authority != authority || info.State != "leader" || !slices.Equal(nodeNamesOf(info), []string{name}) {
			t.Errorf("%s: %+v", name, info)
		}
		if got := d.publishedNames(); !slices.Equal(got, published) {
			t.Errorf("%s publishes %v", name, got)
		}
		d.meta.raft.View(func(s *fsm.State) {
			for _, n := range x.all {
				if n.identity.Name != name && !s.Revoked(fsm.UUID(serialOf(t, n))) {
					t.Errorf("%s believes the old certificate of %s", name, n.identity.Name)
				}
			}
		})
		putPublished(t, c, "after at "+name)
		return d
	}
	r, err := Restore(fresh.StateDir, "fresh", b, false)
	slices.Sort(r.Dropped)
	if err != nil || r.Node != "fresh" || !slices.Equal(r.Dropped, []string{"n0", "n1"}) || r.LostObjects != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	check(fresh, "fresh")
	again, err := Restore(filepath.Join(t.TempDir(), "state"), "n0", b, false) // the machine that lost its disk
	if err != nil || !slices.Equal(again.Dropped, []string{"n1"}) {
		t.Errorf("%+v, %v", again, err)
	}

	if r, err = Restore(n0.StateDir, "", b, true); err != nil || !slices.Equal(r.Dropped, []string{"n1"}) ||
		r.LostObjects != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	back := check(n0, "n0", "on disk")
	conn := dial(t, n0)
	if o, err := conn.GetByName(t.Context(), "on disk", 0); err != nil || string(o.Bytes()) != "content" {
		t.Errorf("its object: %v", err)
	}
	await.Until(t, "n1, which has gone on, is refused", func() bool {
		n := x.nodeOf(1, 0)
		return !n.Answers && strings.Contains(n.Why, "certificate")
	})
	if got := nodeNamesOf(clusterInfo(t, back)); !slices.Equal(got, []string{"n0"}) {
		t.Errorf("n0 is with %v", got)
	}
	leave(t, x.conns[1], true)
	if again := join(t, n0, back, x.all[1]); !again.Entered || again.Republished != 1 {
		t.Errorf("n1 joins again: %+v", again)
	}
}

// serialOf gives the serial number of the certificate that a node had in its first cluster.
func serialOf(t *testing.T, d *Daemon) pki.Serial {
	t.Helper()
	s, err := pki.SerialOf(d.meta.keyring.Certificate().Leaf)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
