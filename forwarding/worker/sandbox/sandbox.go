// Package sandbox takes away what a process that runs tenants' code does not
// need, before it loads a driver: new privileges, most of the file system, the
// network, other processes, and the kernel interfaces with the longest record
// of holes.
//
// Apply restricts the calling thread. Landlock and seccomp are inherited
// through execve, so the caller locks itself to its thread, applies, and
// executes itself again: then every thread of the new image is inside.
//
// Trust: it guards against what runs afterwards, not against its caller. A
// step that the kernel does not offer is a Fallback, which the caller reports;
// whether that is good enough is policy, and decided elsewhere. There are no
// locks and no state.
package sandbox

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Fallback is one step that the system does not offer.
type Fallback struct{ What, Why string }

// Options say what the process keeps. Paths that do not exist are skipped.
type Options struct {
	Read  []string // files and directories to read and execute
	Write []string // directories to read, write and execute in: the cache
	// Devices are patterns of device files to use (read, write, ioctl).
	Devices []string
}

// ForDriver keeps what an OpenCL driver needs: system libraries and tools
// (compilers run a linker), its configuration, device files, and cache, the
// one directory to write. extra is read as well.
func ForDriver(cache string, extra ...string) Options {
	return Options{
		Read: append([]string{
			"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/sys",
			"/etc/OpenCL", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
			"/etc/alternatives",
			"/etc/nvidia", "/etc/vulkan", "/etc/localtime",
			"/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/modules",
			"/proc/devices", "/proc/filesystems",
			"/proc/sys", "/proc/driver", "/proc/self/exe",
		}, extra...),
		Write: []string{cache},
		Devices: []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/nvidia*",
			"/dev/nvidia-caps/*", "/dev/dri", "/dev/kfd"},
	}
}

// Apply restricts the calling thread and everything it becomes and starts. An
// error means that a step failed halfway: the caller must not go on.
func Apply(o Options) ([]Fallback, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("no_new_privs: %w", err)
	}
	var fallbacks []Fallback
	fs, err := landlock(o)
	if err != nil {
		return nil, err
	}
	fallbacks = append(fallbacks, fs...)
	switch err := seccomp(); {
	case errors.Is(err, errNoSeccomp):
		fallbacks = append(fallbacks, Fallback{"seccomp", err.Error()})
	case err != nil:
		return nil, err
	}
	// A crash must end the process at once, and leave no image of a tenant's memory.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		fallbacks = append(fallbacks, Fallback{"no core dumps", err.Error()})
	}
	return fallbacks, nil
}
