package workers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	accounts "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"tendril/cluster/durable"
	"tendril/store/object"
)

// IDRange is numbers that the daemon may give tenants' workers as user and group. First is 0 where there are none.
type IDRange struct{ First, Count uint32 }

// Ranges that nobody else gives out (systemd's table of users and groups, UIDS-GIDS): above its containers, and, where
// the daemon's user namespace does not reach that far, between people and its dynamic users.
var (
	DefaultIDs = IDRange{0x70000000, 65536}
	smallIDs   = IDRange{60706, 478}
)

// ParseIDRange reads "FIRST-LAST".
func ParseIDRange(text string) (IDRange, error) {
	first, last, found := strings.Cut(text, "-")
	a, errA := strconv.ParseUint(strings.TrimSpace(first), 10, 32)
	b, errB := strconv.ParseUint(strings.TrimSpace(last), 10, 32)
	switch {
	case !found || errA != nil || errB != nil:
		return IDRange{}, fmt.Errorf("%q is not a range of user numbers such as %s", text, DefaultIDs)
	case a == 0 || b == 1<<32-1:
		return IDRange{}, fmt.Errorf("the range %q has 0, which is root, or %d, which is nobody's number: want one such as %s", text, uint32(1<<32-1), DefaultIDs)
	case b < a:
		return IDRange{}, fmt.Errorf("the range %q ends before it begins", text)
	}
	return IDRange{uint32(a), uint32(b - a + 1)}, nil
}

func (r IDRange) String() string {
	if r.Count == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.First, uint64(r.First)+uint64(r.Count)-1)
}

func (r IDRange) has(id uint32) bool { return id >= r.First && id-r.First < r.Count }

// mapped gives the default range that the daemon's user namespace has numbers for (user_namespaces(7), uid_map and
// gid_map).
func mapped(maps ...string) IDRange {
	for _, r := range []IDRange{DefaultIDs, smallIDs} {
		whole := true
		for _, m := range maps {
			whole = whole && covers(m, r)
		}
		if whole {
			return r
		}
	}
	return IDRange{}
}

func covers(table string, r IDRange) bool {
	for line := range strings.Lines(table) {
		var inside, outside, count uint64
		if n, _ := fmt.Sscan(line, &inside, &outside, &count); n == 3 && uint64(r.First) >= inside &&
			uint64(r.First)+uint64(r.Count) <= inside+count {
			return true
		}
	}
	return false
}

// OwnIDs gives the default range for this process.
func OwnIDs() IDRange {
	users, _ := os.ReadFile("/proc/self/uid_map")
	groups, _ := os.ReadFile("/proc/self/gid_map")
	return mapped(string(users), string(groups))
}

// idFile is in the state directory.
const idFile = "worker-ids.json"

// identities gives every tenant a number of its own, as user and as group, which stays its own for as long as the state
// directory does. A number that a user or a group of this machine has is nobody's, and one that another daemon gave out
// is not given again (claims). mu is a leaf but for the files.
type identities struct {
	path   string
	ids    IDRange
	inUse  func(id uint32) (bool, error) // by a user or group of this machine
	claims claims

	mu      sync.Mutex
	tenants map[string]uint32 // guarded by mu, like all below
	owners  map[uint32]string
	looked  map[string]bool // whose number was still free when this daemon first used it
	next    uint32          // where the search for a free one begins
}

// saidIDs is the file.
type saidIDs struct {
	Format  int               `json:"format"`
	Tenants map[string]uint32 `json:"tenants"`
}

// openIdentities reads what an earlier daemon gave out. damaged says that it cannot be read and that all begins again:
// then no cache may be believed to be its tenant's.
func openIdentities(stateDir string, ids IDRange) (t *identities, damaged error) {
	t = &identities{path: filepath.Join(stateDir, idFile), ids: ids, inUse: known, tenants: map[string]uint32{},
		owners: map[uint32]string{}, looked: map[string]bool{}}
	said, err := readIDs(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	for tenant, id := range said.Tenants {
		if other, twice := t.owners[id]; twice {
			delete(t.tenants, other) // neither keeps it
			continue
		}
		if t.owners[id] = tenant; ids.has(id) {
			t.tenants[tenant] = id
		}
	}
	return t, nil
}

func readIDs(path string) (said saidIDs, err error) {
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &said)
	}
	if err == nil && said.Format != 1 {
		err = fmt.Errorf("it has the form %d, this daemon knows 1", said.Format)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return said, err
}

// known reports whether a number is a user's or a group's of this machine, or of somebody's containers (subuid(5)).
func known(id uint32) (bool, error) {
	text := strconv.FormatUint(uint64(id), 10)
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		raw, _ := os.ReadFile(file) // most machines have none
		if delegates(string(raw), id) {
			return true, nil
		}
	}
	_, err := accounts.LookupId(text)
	if unknown := accounts.UnknownUserIdError(0); err == nil || !errors.As(err, &unknown) {
		return err == nil, err
	}
	_, err = accounts.LookupGroupId(text)
	if unknown := accounts.UnknownGroupIdError(""); err == nil || !errors.As(err, &unknown) {
		return err == nil, err
	}
	return false, nil
}

func delegates(table string, id uint32) bool {
	for line := range strings.Lines(table) {
		part := strings.Split(strings.TrimSpace(line), ":")
		if len(part) != 3 {
			continue
		}
		first, errA := strconv.ParseUint(part[1], 10, 32)
		count, errB := strconv.ParseUint(part[2], 10, 33)
		if errA == nil && errB == nil && uint64(id) >= first && uint64(id) < first+count {
			return true
		}
	}
	return false
}

// of gives a tenant's number.
func (t *identities) of(tenant string) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, has := t.tenants[tenant]
	if has && (t.looked[tenant] || t.stillFree(tenant, id)) {
		return id, nil
	}
	id, err := t.give(tenant)
	if err != nil {
		return 0, fmt.Errorf("a user for the workers of tenant %q: %w", tenant, err)
	}
	t.looked[tenant] = true
	return id, nil
}

// stillFree looks at a tenant's number when this daemon first uses it. Where that cannot be said it stays the tenant's,
// and is looked at again the next time. mu is held.
func (t *identities) stillFree(tenant string, id uint32) bool {
	taken, err := t.inUse(id)
	if err != nil {
		return true
	}
	if taken {
		return false
	}
	mine, err := t.claims.take(id)
	t.looked[tenant] = mine && err == nil
	return mine || err != nil
}

// give gives a tenant a number that nobody has. mu is held.
func (t *identities) give(tenant string) (uint32, error) {
	for range mostTries {
		id, err := t.free()
		if err == nil {
			err = t.keep(tenant, id) // first: a claim holds for as long as the table says so
		}
		if err != nil {
			return 0, err
		}
		switch mine, err := t.claims.take(id); {
		case err != nil:
			return 0, fmt.Errorf("claim the number %d: %w", id, err)
		case mine:
			return id, nil
		}
	}
	return 0, t.exhausted()
}

// mostTries bounds a search among numbers that other users have: each look may ask a server of the network.
const mostTries = 4096

// free finds a number that neither a tenant has nor anybody else. mu is held.
func (t *identities) free() (uint32, error) {
	tries := 0
	for i := uint32(0); i < t.ids.Count && tries < mostTries; i++ {
		id := t.ids.First + t.next
		t.next = (t.next + 1) % t.ids.Count
		if _, taken := t.owners[id]; taken {
			continue
		}
		tries++
		if taken, err := t.inUse(id); err != nil || !taken {
			return id, err
		}
	}
	if t.ids.Count == 0 {
		return 0, fmt.Errorf("%w: this user namespace has no numbers for it; name a range that it has with --worker-uid-range", object.ErrNoDevice)
	}
	return 0, t.exhausted()
}

func (t *identities) exhausted() error {
	return fmt.Errorf("%w: the user numbers %s are taken: name another range with --worker-uid-range",
		object.ErrNoDevice, t.ids)
}

// keep writes that id is tenant's before anybody uses it. mu is held.
func (t *identities) keep(tenant string, id uint32) error {
	said := saidIDs{Format: 1, Tenants: map[string]uint32{tenant: id}}
	for other, own := range t.tenants {
		if other != tenant {
			said.Tenants[other] = own
		}
	}
	raw, err := json.Marshal(said)
	if err == nil {
		err = durable.Replace(t.path, raw)
	}
	if err != nil {
		return err
	}
	t.tenants[tenant], t.owners[id] = id, tenant
	return nil
}
