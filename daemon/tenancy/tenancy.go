// Package tenancy says which tenant a peer belongs to.
//
// A tenant is what objects, sessions, workers and kernel caches are kept apart by. Without configuration each user of
// the machine is one, called "uid:N", and remote clients belong to the tenant that their certificate names.
//
// Trust: the numbers come from the kernel (SO_PEERCRED) and the certificate from the cluster's authority, never from
// the peer. Names of tenants are used as file names, so CacheName maps them onto a safe alphabet.
//
// Locks: none; a Table is immutable.
package tenancy

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxNameBytes bounds a tenant's name.
const MaxNameBytes = 253

// Tenant is a configured tenant: who of these is one.
type Tenant struct {
	Name         string
	Users        []uint32
	Groups       []uint32 // of the process's own group, not of its supplementary ones
	Certificates []string // names in client certificates, reserved for tokens of this tenant
}

// String lists the members.
func (t Tenant) String() string {
	return fmt.Sprintf("users %v, groups %v, certificates %q", t.Users, t.Groups, t.Certificates)
}

// Table finds tenants.
type Table struct {
	users    map[uint32]string
	groups   map[uint32]string
	names    map[string]string
	disabled map[string]bool
}

// NewTable makes a Table and names every fault: bad names, and members of two tenants.
func NewTable(list []Tenant) (*Table, error) {
	t := &Table{users: map[uint32]string{}, groups: map[uint32]string{}, names: map[string]string{}}
	var faults []error
	for _, x := range list {
		if err := CheckName(x.Name); err != nil {
			faults = append(faults, err)
		}
		faults = append(faults, enter(t.users, x.Users, "user", x.Name), enter(t.groups, x.Groups, "group", x.Name),
			enter(t.names, x.Certificates, "certificate", x.Name))
	}
	return t, errors.Join(faults...)
}

// With gives a Table that has those of list, too, and refuses the tenants of disabled. Who is in the Table already, or
// in an earlier one of list, stays what it is; taken names those who are in the Table as another tenant.
func (t *Table) With(list []Tenant, disabled map[string]bool) (with *Table, taken []string) {
	with = &Table{maps.Clone(t.users), maps.Clone(t.groups), maps.Clone(t.names), disabled}
	for _, x := range list {
		taken = append(taken, slices.Concat(more(t.users, with.users, x.Users, "user", x.Name),
			more(t.groups, with.groups, x.Groups, "group", x.Name),
			more(t.names, with.names, x.Certificates, "certificate", x.Name))...)
	}
	return with, taken
}

func more[K comparable](first, all map[K]string, members []K, what, name string) (taken []string) {
	for _, k := range members {
		if other, there := first[k]; there && other != name {
			taken = append(taken, fmt.Sprintf("%s %v is tenant %q", what, k, other))
		}
		if _, there := all[k]; !there {
			all[k] = name
		}
	}
	return taken
}

// Disabled reports whether a tenant's programs are not let in.
func (t *Table) Disabled(tenant string) bool { return t.disabled[tenant] }

func enter[K comparable](m map[K]string, members []K, what, name string) error {
	var faults []error
	for _, k := range members {
		if other, taken := m[k]; taken && other != name {
			faults = append(faults, fmt.Errorf("%s %v is in the tenants %q and %q", what, k, other, name))
		}
		m[k] = name
	}
	return errors.Join(faults...)
}

// CheckName reports whether a configured tenant may have this name: those that begin with "uid:", "token:" and "node:"
// are made here.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > MaxNameBytes || !utf8.ValidString(name):
		return fmt.Errorf("tenant name %.60q: want 1 to %d bytes of UTF-8", name, MaxNameBytes)
	case strings.HasPrefix(name, "uid:"), strings.HasPrefix(name, "token:"), strings.HasPrefix(name, "node:"):
		return fmt.Errorf("tenant name %.60q: names that begin with uid:, token: or node: are reserved for the daemon",
			name)
	case strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return fmt.Errorf("tenant name %.60q holds a control character", name)
	}
	return nil
}

// Local gives the tenant of a local process: its user's, else its group's, else one of its user alone.
func (t *Table) Local(uid, gid uint32) string {
	if name, ok := t.users[uid]; ok {
		return name
	}
	if name, ok := t.groups[gid]; ok {
		return name
	}
	return Resolve(uid, gid)
}

// Reserved gives the tenant that alone may have certificates with this name; "" = everybody may.
func (t *Table) Reserved(certificate string) string { return t.names[certificate] }

// Resolve returns the tenant of a local process where none is configured.
func Resolve(uid, _ uint32) string { return "uid:" + strconv.FormatUint(uint64(uid), 10) }

// Tenants that are no single user of this machine are users that nobody is, one a tenant: far above those of people,
// services and containers.
const (
	tenantUsers    = 0x70000000
	tenantUserMask = 0x07FFFFFF
	nobody         = 65534
)

// UserOf gives the user and group that a tenant's programs on other machines are: the same for all who belong to it,
// wherever they are. For the tenant of one user it is that one, and nobody's group. In a user namespace that does not
// have the number it is nobody. Nothing runs as that user: workers have users of their own (daemon/workers).
func UserOf(tenant string) (uid, gid uint32) {
	if n, ok := single(tenant); ok {
		return n, nobody
	}
	sum := sha256.Sum256([]byte(tenant))
	uid = tenantUsers + binary.LittleEndian.Uint32(sum[:])&tenantUserMask
	raw, _ := os.ReadFile("/proc/self/uid_map")
	if !mapped(string(raw), uint64(uid)) {
		return nobody, nobody
	}
	return uid, uid
}

// single gives the one user that a tenant is; ok is false for others.
func single(tenant string) (uid uint32, ok bool) {
	text, ok := strings.CutPrefix(tenant, "uid:")
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), ok && err == nil
}

// CheckAny is CheckName that takes the tenant of one user, too.
func CheckAny(name string) error {
	if _, ok := single(name); ok {
		return nil
	}
	return CheckName(name)
}

// mapped looks for a number in a user namespace's map (user_namespaces(7)).
func mapped(table string, uid uint64) bool {
	for line := range strings.Lines(table) {
		var inside, outside, count uint64
		if n, _ := fmt.Sscan(line, &inside, &outside, &count); n == 3 && uid >= inside && uid-inside < count {
			return true
		}
	}
	return false
}

// CacheName returns a file name for tenant: no separator, no leading dot, never empty, and different for different
// tenants.
func CacheName(tenant string) string {
	var b strings.Builder
	b.WriteByte('t')
	for i := range len(tenant) {
		c := tenant[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '-':
			b.WriteByte(c)
		default:
			const hex = "0123456789abcdef"
			b.Write([]byte{'_', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}
