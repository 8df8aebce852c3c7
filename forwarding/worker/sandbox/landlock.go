package sandbox

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Rights by version of the interface (landlock(7)).
const (
	rightsV1 uint64 = 1<<13 - 1
	forFiles uint64 = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	toRead uint64 = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_READ_DIR
	toUse uint64 = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// ruleset is what a version of landlock can restrict.
type ruleset struct {
	attr      unix.LandlockRulesetAttr
	attrBytes uintptr
	fallbacks []Fallback
}

// rulesetFor asks for all that version abi offers, and names what it lacks.
func rulesetFor(abi int) ruleset {
	r := ruleset{attrBytes: 8}
	r.attr.Handled_access_fs = rightsV1
	lack := func(least int, what string) bool {
		if abi < least {
			r.fallbacks = append(r.fallbacks,
				Fallback{what, fmt.Sprintf("this kernel's landlock is version %d, it needs %d", abi, least)})
		}
		return abi < least
	}
	if !lack(2, "landlock: links between directories") {
		r.attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if !lack(3, "landlock: truncation") {
		r.attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if !lack(4, "landlock: TCP") {
		r.attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
		r.attrBytes = 16
	}
	if !lack(5, "landlock: device control") {
		r.attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if !lack(6, "landlock: abstract sockets and signals") {
		r.attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
		r.attrBytes = 24
	}
	return r
}

func landlock(o Options) ([]Fallback, error) {
	abi, err := landlockVersion()
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return []Fallback{{"landlock",
				"this kernel has none, or has it turned off (add landlock to lsm= on its command line): " +
					err.Error()}},
			nil
	}
	if err != nil {
		return nil, fmt.Errorf("landlock: %w", err)
	}
	r := rulesetFor(abi)
	fd, err := createRuleset(&r.attr, r.attrBytes)
	if err != nil {
		return nil, fmt.Errorf("landlock ruleset: %w", err)
	}
	defer unix.Close(fd)
	if err := r.allow(fd, o); err != nil {
		return nil, err
	}
	if err := restrictSelf(fd); err != nil {
		return nil, fmt.Errorf("landlock: %w", err)
	}
	return r.fallbacks, nil
}

func (r *ruleset) allow(fd int, o Options) error {
	for _, path := range o.Read {
		if err := r.allowPath(fd, path, toRead); err != nil {
			return err
		}
	}
	for _, path := range o.Write {
		if err := r.allowPath(fd, path,
			r.attr.Handled_access_fs&^(unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK|
				unix.LANDLOCK_ACCESS_FS_MAKE_CHAR)); err != nil {
			return err
		}
	}
	for _, pattern := range o.Devices {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("device pattern %q: %w", pattern, err)
		}
		for _, path := range paths {
			if err := r.allowPath(fd, path, toUse); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *ruleset) allowPath(fd int, path string, rights uint64) error {
	p, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("landlock %s: %w", path, err)
	}
	defer unix.Close(p)
	var st unix.Stat_t
	if err := unix.Fstat(p, &st); err != nil {
		return fmt.Errorf("landlock %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= forFiles
	}
	if err := addPath(fd, p, rights&r.attr.Handled_access_fs); err != nil {
		return fmt.Errorf("landlock %s: %w", path, err)
	}
	return nil
}
