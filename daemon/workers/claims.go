package workers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ClaimsDir is where root's daemons of this machine tell each other which numbers their tenants' workers have. It is
// gone at the next boot.
const ClaimsDir = "/run/tendril-worker-ids"

// claims keeps the daemons of one machine, which share the default range, from giving two tenants one number. A claim
// is a file with the number as its name and the state directory of the daemon that gave it out as its content. It holds
// for as long as that directory says so, also while no daemon runs there: the caches are still the number's. Daemons in
// mount namespaces of their own, such as containers, do not see each other. The zero value keeps none.
type claims struct {
	dir   string
	owner string // the state directory, as every process names it
}

// openClaims gives a daemon's claims in dir; "" = none are kept.
func openClaims(dir, stateDir string) (claims, error) {
	if dir == "" {
		return claims{}, nil
	}
	owner, err := filepath.Abs(stateDir)
	if err == nil {
		owner, err = filepath.EvalSymlinks(owner)
	}
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return claims{}, err
	}
	return claims{dir: dir, owner: owner}, nil
}

// take claims a number; false: it is a tenant's of another daemon. The daemon's own table must have it by then.
func (c claims) take(id uint32) (mine bool, err error) {
	if c.dir == "" {
		return true, nil
	}
	lock, err := os.Open(c.dir)
	if err != nil {
		return false, err
	}
	defer lock.Close() // ends the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return false, fmt.Errorf("lock %s: %w", c.dir, err)
	}
	path := filepath.Join(c.dir, strconv.FormatUint(uint64(id), 10))
	raw, err := os.ReadFile(path)
	switch owner := strings.TrimSuffix(string(raw), "\n"); {
	case err == nil && owner == c.owner:
		return true, nil
	case err == nil && gaveOut(owner, id):
		return false, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	return true, os.WriteFile(path, []byte(c.owner+"\n"), 0o600)
}

// gaveOut reports whether a state directory says that a number is a tenant's.
func gaveOut(stateDir string, id uint32) bool {
	said, err := readIDs(filepath.Join(stateDir, idFile))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // who cannot be asked keeps it
	}
	for _, own := range said.Tenants {
		if own == id {
			return true
		}
	}
	return false
}
