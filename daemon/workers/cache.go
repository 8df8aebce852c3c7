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

// tenantCache returns the directory under root where owner's workers keep compiled kernels and temporary files, and makes it at
// first use: owned by the user that the workers run as, mode 0700. It is made aside and renamed, so that it is never found
// half-made and root never writes inside a directory that a tenant owns already.
func tenantCache(root string, owner Owner) (string, error) {
	uid, gid := workerUser(owner)
	dir := filepath.Join(root, tenancy.CacheName(owner.Tenant))
	err := checkCache(dir, uid)
	if !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	made, err := os.MkdirTemp(root, newPrefix)
	if err != nil {
		return "", fmt.Errorf("tenant cache: %w", err)
	}
	defer os.RemoveAll(made) // gone already when the rename succeeded
	for _, d := range []string{filepath.Join(made, "tmp"), filepath.Join(made, "pocl"), filepath.Join(made, "cuda"), made} {
		if err := makeOwned(d, uid, gid); err != nil {
			return "", fmt.Errorf("tenant cache: %w", err)
		}
	}
	if err := os.Rename(made, dir); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return "", fmt.Errorf("tenant cache: %w", err)
	}
	return dir, checkCache(dir, uid) // another goroutine may have been first
}

func makeOwned(dir string, uid, gid uint32) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Lchown(dir, int(uid), int(gid))
}

func checkCache(dir string, uid uint32) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != uid {
		return fmt.Errorf("tenant cache %s: not a directory of user %d; remove it", dir, uid)
	}
	return nil
}

// Reachable reports whether every user may pass through dir and all directories above it; if not, the first one that is closed.
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
