package workers

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"tendril/daemon/tenancy"
)

func openIDs(t *testing.T, dir string, r IDRange, inUse func(uint32) (bool, error)) *identities {
	t.Helper()
	ids, err := openIdentities(dir, r)
	if err != nil {
		t.Fatal(err)
	}
	if ids.inUse = inUse; inUse == nil {
		ids.inUse = func(uint32) (bool, error) { return false, nil }
	}
	return ids
}

func TestTenantsKeepTheirUsers(t *testing.T) {
	dir, r := t.TempDir(), IDRange{1000, 4}
	taken := func(id uint32) (bool, error) { return id == 1001, nil }
	ids := openIDs(t, dir, r, taken)
	got := map[string]uint32{}
	seen := map[uint32]string{}
	for _, tenant := range []string{"uid:0", "lab", "token:x"} {
		id, err := ids.of(tenant)
		if err != nil || !r.has(id) || id == 1001 || seen[id] != "" {
			t.Fatalf("%s: %d, %v; others: %v", tenant, id, err, seen)
		}
		got[tenant], seen[id] = id, tenant
	}
	if _, err := ids.of("one too many"); err == nil || !strings.Contains(err.Error(), "--worker-uid-range") {
		t.Errorf("a fifth of four numbers, one of them a user's: %v", err)
	}
	again := openIDs(t, dir, r, taken)
	for tenant, want := range got {
		if id, err := again.of(tenant); id != want || err != nil {
			t.Errorf("%s had %d, after a restart %d, %v", tenant, want, id, err)
		}
	}
	// A user was added who has lab's number; and a user's server that does not answer changes nothing.
	moved := openIDs(t, dir, IDRange{1000, 9}, func(id uint32) (bool, error) {
		return id == got["lab"] ||
			id == 1001, nil
	})
	if id, err := moved.of("lab"); id == got["lab"] || err != nil || seen[id] != "" {
		t.Errorf("lab keeps %d, a user's number: %v", id, err)
	}
	unsure := openIDs(t, dir, IDRange{1000, 9}, func(uint32) (bool, error) { return false, fmt.Errorf("no answer") })
	if id, err := unsure.of("uid:0"); id != got["uid:0"] || err != nil {
		t.Errorf("uid:0 had %d, now %d, %v", got["uid:0"], id, err)
	}
	if _, err := unsure.of("new"); err == nil {
		t.Error("a new tenant got a number of which nobody knows whose it is")
	}
}

// Daemons of one machine that have the same range give no number twice, at the same time or one after the other. What a
// daemon gave out is free again when its state directory is gone.
func TestDaemonsShareTheRange(t *testing.T) {
	dir, r := filepath.Join(t.TempDir(), "claims"), IDRange{1000, 6}
	begin := func(stateDir string) *identities {
		ids := openIDs(t, stateDir, r, nil)
		var err error
		if ids.claims, err = openClaims(dir, stateDir); err != nil {
			t.Fatal(err)
		}
		return ids
	}
	states := []string{t.TempDir(), t.TempDir()}
	seen := map[uint32]string{}
	for round := range 2 { // the second time it is what the first one gave
		var asking sync.WaitGroup
		var mu sync.Mutex
		for _, state := range states {
			ids := begin(state)
			asking.Go(func() {
				for _, tenant := range []string{"uid:0", "lab", "token:x"} {
					id, err := ids.of(tenant)
					mu.Lock()
					if who := state + tenant; err != nil || seen[id] != "" && seen[id] != who {
						t.Errorf("round %d, %s: %d, %v; it is %q's", round, who, id, err, seen[id])
					}
					seen[id] = state + tenant
					mu.Unlock()
				}
			})
		}
		asking.Wait()
	}
	if len(seen) != 6 {
		t.Errorf("two daemons' three tenants have %d numbers: %v", len(seen), seen)
	}
	third := begin(t.TempDir())
	if id, err := third.of("uid:0"); err == nil {
		t.Errorf("a third daemon's tenant has %d, which is %s's", id, seen[id])
	}
	if err := os.RemoveAll(states[0]); err != nil {
		t.Fatal(err)
	}
	if id, err := begin(t.TempDir()).of("uid:0"); err != nil || !strings.HasPrefix(seen[id], states[0]) {
		t.Errorf("one state directory is gone, and a new tenant has %d, %v", id, err)
	}
	// a copy of a state directory: whoever comes second gives its tenants others
	copied := t.TempDir()
	raw, err := os.ReadFile(filepath.Join(states[1], idFile))
	if err == nil {
		err = os.WriteFile(filepath.Join(copied, idFile), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if id, err := begin(copied).of("lab"); err != nil || seen[id] == states[1]+"lab" {
		t.Errorf("a tenant of a copied state directory has %d, %v", id, err)
	}
}

func TestDamagedUsersBeginAnew(t *testing.T) {
	dir := t.TempDir()
	for _, bad := range []string{"", "{", `{"format":9}`, "null"} {
		if err := os.WriteFile(filepath.Join(dir, idFile), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openIdentities(dir, DefaultIDs); err == nil {
			t.Errorf("%q was believed", bad)
		}
	}
	twice := `{"format":1,"tenants":{"a":1879048192,"b":1879048192}}`
	if err := os.WriteFile(filepath.Join(dir, idFile), []byte(twice), 0o600); err != nil {
		t.Fatal(err)
	}
	ids := openIDs(t, dir, DefaultIDs, nil)
	a, errA := ids.of("a")
	b, errB := ids.of("b")
	if a == b || errA != nil || errB != nil {
		t.Errorf("two tenants with one number: %d, %v and %d, %v", a, errA, b, errB)
	}
}

func TestRangesOfUsers(t *testing.T) {
	if r, err := ParseIDRange("100000-165535"); err != nil || r != (IDRange{100000, 65536}) ||
		r.String() != "100000-165535" {
		t.Errorf("%v, %v", r, err)
	}
	for _, bad := range []string{"", "7", "0-9", "9-8", "1-4294967295", "a-b", "-1-5"} {
		if r, err := ParseIDRange(bad); err == nil {
			t.Errorf("%q is %v", bad, r)
		}
	}
	for _, x := range []struct {
		users, groups string
		want          IDRange
	}{
		{"0 0 4294967295\n", "0 0 4294967295\n", DefaultIDs},
		{"0 100000 65536\n", "0 100000 65536\n", smallIDs},
		{"0 0 4294967295\n", "0 100000 65536\n", smallIDs},
		{"0 1000 1\n", "0 1000 1\n", IDRange{}},
		{"", "", IDRange{}},
	} {
		if got := mapped(x.users, x.groups); got != x.want {
			t.Errorf("%q, %q: %v, want %v", x.users, x.groups, got, x.want)
		}
	}
	if !delegates("ada:100000:65536\n", 165535) || delegates("ada:100000:65536\n", 165536) ||
		delegates("nonsense\n:::\n", 0) {
		t.Error("subuid")
	}
}

// A cache that somebody else could have written is not used; a link is not followed.
func TestForeignCachesAreDropped(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: only root gives workers users of their own")
	}
	p, _ := newPool(t, func(o *Options) { o.Warm = -1 })
	root := p.opts.CacheRoot
	victim := filepath.Join(filepath.Dir(root), "victim")
	for _, err := range []error{os.Mkdir(victim, 0o755),
		os.WriteFile(filepath.Join(victim, "file"), []byte("x"), 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	nobodys := filepath.Join(root, tenancy.CacheName("uid:0")) // as daemons before this one had it
	for _, err := range []error{
		os.MkdirAll(filepath.Join(nobodys, "pocl"), 0o700),
		os.WriteFile(filepath.Join(nobodys, "pocl", "kernel"), []byte("not what was built"), 0o644),
		os.Symlink(victim, filepath.Join(nobodys, "out")), os.Lchown(nobodys, 65534, 65534),
		os.Symlink(victim, filepath.Join(root, tenancy.CacheName("lab"))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tenant := range []string{"uid:0", "lab"} {
		u, dir, err := p.home(tenant)
		if err != nil {
			t.Fatal(err)
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(dir, &st); err != nil || st.Uid != u.uid || st.Mode != syscall.S_IFDIR|0o700 ||
			u.uid == 65534 {
			t.Errorf("%s's cache: user %d, mode %o, %v, want user %d and 040700", tenant, st.Uid, st.Mode, err, u.uid)
		}
		if left, err := filepath.Glob(dir + "/*/*"); err != nil || len(left) > 0 {
			t.Errorf("%s's new cache holds %v, %v", tenant, left, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(victim, "file")); err != nil || string(b) != "x" {
		t.Errorf("what a link led to: %q, %v", b, err)
	}
	// A driver that opens its tenant's cache to others.
	u, dir, _ := p.home("lab")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.home("lab"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("a cache that was opened to others stays so: %v, %v (user %s)", info, err, strconv.Itoa(int(u.uid)))
	}
}
