package sandbox

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var errNoSeccomp = errors.New("this kernel has no seccomp filters")

// denied are refused with EPERM. A driver needs none of them: it gets its
// sockets and its memory from outside, and starts a linker at most, which stays
// in the worker's process group.
var denied = []uint32{
	// New connections of any kind.
	unix.SYS_SOCKET, unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4,
	// Other processes.
	unix.SYS_SETSID, unix.SYS_SETPGID, // the daemon ends what is in the process group
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_PROCESS_MADVISE,
	// The kernel's larger interfaces.
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_FANOTIFY_INIT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_QUOTACTL,
	unix.SYS_QUOTACTL_FD,
	// Namespaces and mounts.
	unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_MOUNT_SETATTR,
	// The machine.
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_CLOCK_ADJTIME, unix.SYS_SETHOSTNAME,
	unix.SYS_SETDOMAINNAME,
}

// Offsets into struct seccomp_data (seccomp(2)); both architectures are little-endian.
const (
	offNumber = 0
	offArch   = 4
	offArg0   = 16
)

const (
	newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	x32Bit   = 0x40000000 // system calls of the x32 interface, which a list by number would miss
	allow    = unix.SECCOMP_RET_ALLOW
	refuse   = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	notThere = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// architecture is the AUDIT_ARCH number that a filter must see, or 0.
func architecture() uint32 {
	switch runtime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64
	}
	return 0
}

// program is the filter: another architecture's calls kill the process, x32's
// and the denied ones are refused, clone3 is not there (its flags cannot be
// seen; libraries fall back to clone), clone makes no namespaces, unshare gives a
// thread a working directory of its own, for builds, and nothing else,
// prctl leaves PR_SET_PDEATHSIG alone, and prlimit is for the calling process.
func program(arch uint32) []bpf.Instruction {
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32Bit, SkipTrue: 1},
		bpf.RetConstant{Val: refuse},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1},
		bpf.RetConstant{Val: notThere},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_UNSHARE, SkipTrue: 4},
		bpf.LoadAbsolute{Off: offArg0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.CLONE_FS, SkipFalse: 1},
		bpf.RetConstant{Val: allow},
		bpf.RetConstant{Val: refuse},
		// To end with the daemon is not a thing to change one's mind about.
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_PRCTL, SkipTrue: 4},
		bpf.LoadAbsolute{Off: offArg0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PR_SET_PDEATHSIG, SkipTrue: 1},
		bpf.RetConstant{Val: allow},
		bpf.RetConstant{Val: refuse},
		// One's own limits, and nobody else's: landlock does not know this call.
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_PRLIMIT64, SkipTrue: 4},
		bpf.LoadAbsolute{Off: offArg0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: refuse},
		bpf.RetConstant{Val: allow},
	}
	for i, n := range denied {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: n, SkipTrue: uint8(len(denied) - i + 3)})
	}
	return append(prog,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 2},
		bpf.LoadAbsolute{Off: offArg0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: newNamespaces, SkipTrue: 1},
		bpf.RetConstant{Val: allow},
		bpf.RetConstant{Val: refuse},
	)
}

func seccomp() error {
	arch := architecture()
	if arch == 0 {
		return fmt.Errorf("%w for %s here", errNoSeccomp, runtime.GOARCH)
	}
	raw, err := bpf.Assemble(program(arch))
	if err != nil {
		return fmt.Errorf("assemble the seccomp filter: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	err = setFilter(filter)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", errNoSeccomp, err)
	}
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}
