package workers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"tendril/daemon/tenancy"
)

// tenantCache returns the directory under CacheRoot where a tenant's workers keep compiled kernels and temporary files,
// and makes it at first use: owned by the user that the workers run as, mode 0700. It is made aside and renamed, so
// that it is never found half-made and root never writes inside a directory that a tenant owns already. One that
// another user has, or had, is dropped: what lies in it may be anybody's work.
func (p *Pool) tenantCache(tenant string, u user) (string, error) {
	p.caches.Lock()
	defer p.caches.Unlock()
	name := tenancy.CacheName(tenant)
	dir := filepath.Join(p.opts.CacheRoot, name)
	err := checkCache(dir, u.uid)
	if errors.Is(err, errForeign) && os.Geteuid() == 0 {
		p.opts.Log.WithError(err).Info("a tenant's kernel cache is not its own: it is removed and made again")
		err = p.dropCache(name)
	}
	if errors.Is(err, errForeign) {
		return dir, fmt.Errorf("%w: remove it", err)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	made, err := os.MkdirTemp(p.opts.CacheRoot, newPrefix)
	if err != nil {
		return "", fmt.Errorf("tenant cache: %w", err)
	}
	defer os.RemoveAll(made) // gone already when the rename succeeded
	for _, d := range []string{filepath.Join(made, "tmp"), filepath.Join(made, "pocl"),
		filepath.Join(made, "cuda"), made} {
		if err := makeOwned(d, u.uid, u.gid); err != nil {
			return "", fmt.Errorf("tenant cache: %w", err)
		}
	}
	if err := os.Rename(made, dir); err != nil {
		return "", fmt.Errorf("tenant cache: %w", err)
	}
	return dir, checkCache(dir, u.uid)
}

// dropCache takes a cache out of the way and removes it, whatever it is: a link is removed, not followed. It returns
// fs.ErrNotExist, as there is none then.
func (p *Pool) dropCache(name string) error {
	old, err := os.MkdirTemp(p.opts.CacheRoot, oldPrefix)
	if err != nil {
		return fmt.Errorf("tenant cache: %w", err)
	}
	if err := os.Rename(filepath.Join(p.opts.CacheRoot, name), filepath.Join(old, name)); err != nil {
		return fmt.Errorf("tenant cache: %w", err)
	}
	p.removeCache(old)
	return fs.ErrNotExist
}

func makeOwned(dir string, uid, gid uint32) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Lchown(dir, int(uid), int(gid))
}

// errForeign says that a cache is not its tenant's.
var errForeign = errors.New("it belongs to somebody else")

// checkCache reports whether dir is a directory of uid, closed to others.
func checkCache(dir string, uid uint32) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("tenant cache %s: %w: it is no directory", dir, errForeign)
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "fstat", Path: dir, Err: err}
	}
	if st.Uid != uid {
		return fmt.Errorf("tenant cache %s: %w: user %d, not %d", dir, errForeign, st.Uid, uid)
	}
	if st.Mode&0o077 == 0 {
		return nil
	}
	if err := unix.Fchmod(fd, 0o700); err != nil { // a driver opened it to others
		return fmt.Errorf("tenant cache %s has mode %#o and cannot be closed to others: %w", dir, st.Mode&0o777, err)
	}
	return nil
}

// Reachable reports whether every user may pass through dir and all directories above it; if not, the first one that is
// closed.
func Reachable(dir string) error {
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("%s has mode %v, closed to other users", d, info.Mode().Perm())
		}
		if d == "/" {
			return nil
		}
	}
}
