// Package tenancy says which tenant a local process belongs to.
//
// A tenant is what objects, sessions, workers and kernel caches are kept apart by. Without configuration each user of the
// machine is one, called "uid:N".
//
// Trust: the numbers come from the kernel (SO_PEERCRED), never from the peer. Names of tenants are used as file names, so
// CacheName maps them onto a safe alphabet.
//
// Locks: none; everything here is a pure function.
package tenancy

import (
	"strconv"
	"strings"
)

// Resolve returns the tenant of a local process with these credentials.
func Resolve(uid, _ uint32) string { return "uid:" + strconv.FormatUint(uint64(uid), 10) }

// CacheName returns a file name for tenant: no separator, no leading dot, never empty, and different for different tenants.
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
