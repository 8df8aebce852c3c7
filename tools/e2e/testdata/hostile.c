// A vendor library with bad intentions: it passes everything on to PoCL and, once the file "targets" lies beside it, tries to get out
// of the worker that loaded it. It says on standard error what held and what did not. One line of targets: NAME VALUE.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char here[4096];
static char held[900], broke[900];
static int heldCount, brokeCount;
static struct { unsigned bytes; int type; char handle[8]; } byte_zero_handle = {8, 1, ""};

static void verdict(int got_through, const char *format, ...) {
    char what[200];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    char *into = got_through ? broke : held;
    if (got_through) brokeCount++; else heldCount++;
    if (strlen(into) + strlen(what) + 3 < sizeof held) {
        if (*into) strcat(into, "; ");
        strcat(into, what);
    }
}

static int opens(int flags, const char *format, ...) {
    char path[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(path, sizeof path, format, list);
    va_end(list);
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static int lists(const char *path) {
    DIR *d = opendir(path);
    if (d) closedir(d);
    return d != NULL;
}

static int connects(int family, int type, const void *address, socklen_t n) {
    int fd = socket(family, type, 0);
    if (fd < 0) return 0;
    int ok = connect(fd, address, n) == 0;
    close(fd);
    return ok;
}

static char *target(const char *name) {
    static char lines[16][4096];
    static int next;
    char path[4200], key[64];
    char *value = lines[next++ % 16];
    snprintf(path, sizeof path, "%s/targets", here);
    *value = 0;
    FILE *f = fopen(path, "re");
    if (!f) return value;
    while (fscanf(f, "%63s %4095s", key, value) == 2)
        if (!strcmp(key, name)) break;
    fclose(f);
    return value;
}

static void processes(void) {
    char byte, *names[] = {"daemon", "victim"};
    for (int i = 0; i < 2; i++) {
        pid_t pid = atoi(target(names[i]));
        if (pid <= 0) { verdict(1, "no target %s", names[i]); continue; }
        struct iovec mine = {&byte, 1}, theirs = {(void *)0x400000, 1};
        verdict(opens(O_RDONLY, "/proc/%d/mem", pid), "memory of the %s", names[i]);
        verdict(opens(O_RDWR, "/proc/%d/mem", pid), "write the memory of the %s", names[i]);
        verdict(opens(O_RDONLY, "/proc/%d/environ", pid), "environment of the %s", names[i]);
        verdict(opens(O_RDONLY, "/proc/%d/maps", pid), "maps of the %s", names[i]);
        verdict(opens(O_RDWR, "/proc/%d/fd/3", pid), "descriptors of the %s", names[i]);
        verdict(process_vm_readv(pid, &mine, 1, &theirs, 1, 0) > 0 || errno == EFAULT, "process_vm_readv of the %s", names[i]);
        verdict(process_vm_writev(pid, &mine, 1, &theirs, 1, 0) > 0 || errno == EFAULT, "process_vm_writev of the %s", names[i]);
        verdict(ptrace(PTRACE_ATTACH, pid, 0, 0) == 0, "ptrace of the %s", names[i]);
        verdict(kill(pid, 0) == 0, "signal to the %s", names[i]);
        int fd = syscall(SYS_pidfd_open, pid, 0);
        verdict(fd >= 0 && syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0, "signal by pidfd to the %s", names[i]);
        verdict(fd >= 0 && syscall(SYS_pidfd_getfd, fd, 0, 0) >= 0, "pidfd_getfd of the %s", names[i]);
        if (fd >= 0) close(fd);
        struct rlimit limit;
        struct rlimit none = {0, 0};
        verdict(prlimit(pid, RLIMIT_NOFILE, &none, &limit) == 0, "limits of the %s", names[i]);
    }
}

static void files(void) {
    char *state = target("state"), *other = target("other"), *cache = target("cache"), path[4200], mine[4200];
    verdict(lists(state), "list the state directory");
    verdict(lists(cache), "list another tenant's cache");
    char *keys[] = {"authority.pem", "node.pem", "identity.json", "raft/lock", "raft", "objects", "lock"};
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++) verdict(opens(O_RDONLY, "%s/%s", state, keys[i]), "%s", keys[i]);
    verdict(opens(O_RDONLY, "%s", target("key")), "the authority's key");
    verdict(opens(O_WRONLY | O_CREAT, "%s/planted", state), "write into the state directory");
    verdict(opens(O_RDONLY, "%s", other), "another tenant's file");
    verdict(opens(O_WRONLY | O_TRUNC, "%s", other), "write another tenant's file");
    snprintf(mine, sizeof mine, "%s/link", getenv("HOME"));
    verdict(link(other, mine) == 0, "a link to another tenant's file");
    if (symlink(other, mine) == 0) {
        verdict(opens(O_RDONLY, "%s", mine), "another tenant's file by a symbolic link");
        unlink(mine);
    }
    snprintf(path, sizeof path, "%s/moved", getenv("HOME"));
    verdict(rename(other, path) == 0, "move another tenant's file");
    verdict(unlink(other) == 0, "remove another tenant's file");
    char *system[] = {"/etc/shadow", "/etc/passwd", "/root", "/proc/1/environ", "/proc/kcore", "/dev/mem", "/dev/kmsg", "/dev/vda", "/proc/sysrq-trigger", "/run", "/tmp", "/home", "/"};
    for (unsigned i = 0; i < sizeof system / sizeof *system; i++) verdict(opens(O_RDONLY, "%s", system[i]), "%s", system[i]);
    verdict(opens(O_WRONLY | O_CREAT, "/tmp/tendril-hostile"), "write to /tmp");
    verdict(opens(O_WRONLY | O_CREAT, "/dev/shm/tendril-hostile"), "write to /dev/shm");
    verdict(opens(O_WRONLY | O_CREAT, "%s/planted", here), "write beside the driver");
    verdict(opens(O_RDWR, "%s/tty", "/dev"), "the terminal");
    char *core = "/proc/sys/kernel/core_pattern";
    verdict(opens(O_WRONLY, "%s", core), "%s", core);
    verdict(syscall(SYS_open_by_handle_at, AT_FDCWD, &byte_zero_handle, 0) >= 0, "open_by_handle_at");
}

static void descriptors(void) {
    char path[64], at[4096], *state = target("state");
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, at, sizeof at - 1);
        if (n < 0) continue;
        at[n] = 0;
        struct stat st;
        if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) verdict(1, "descriptor %d is the directory %.80s", fd, at);
        if (!strncmp(at, state, strlen(state)) && !strstr(at, "/cache/")) verdict(1, "descriptor %d is %.80s", fd, at);
    }
    extern char **environ;
    for (char **e = environ; *e; e++)
        if (strstr(*e, "TOKEN") || strstr(*e, "SECRET") || strstr(*e, "tdl_")) verdict(1, "a secret in the environment: %.20s", *e);
    verdict(0, "nothing inherited");
}

static void network(void) {
    struct sockaddr_un local = {AF_UNIX, ""}, abstract = {AF_UNIX, ""};
    snprintf(local.sun_path, sizeof local.sun_path, "%s", target("socket"));
    snprintf(abstract.sun_path + 1, sizeof abstract.sun_path - 1, "%s", target("abstract"));
    struct sockaddr_in tcp = {AF_INET, htons(atoi(target("port"))), {htonl(INADDR_LOOPBACK)}, ""};
    verdict(connects(AF_UNIX, SOCK_STREAM, &local, sizeof local), "the daemon's socket");
    snprintf(local.sun_path, sizeof local.sun_path, "%s", target("neighbour"));
    verdict(connects(AF_UNIX, SOCK_STREAM, &local, sizeof local), "another tenant's socket");
    verdict(connects(AF_UNIX, SOCK_STREAM, &abstract, 2 + 1 + strlen(target("abstract"))), "an abstract socket");
    verdict(connects(AF_INET, SOCK_STREAM, &tcp, sizeof tcp), "TCP to this machine");
    tcp.sin_port = htons(53), tcp.sin_addr.s_addr = htonl(0x08080808);
    verdict(connects(AF_INET, SOCK_DGRAM, &tcp, sizeof tcp), "UDP to another machine");
    struct { int family, type; const char *name; } kinds[] = {{AF_INET, SOCK_STREAM, "TCP"}, {AF_INET, SOCK_RAW, "raw"}, {AF_INET6, SOCK_STREAM, "TCP over IPv6"}, {AF_PACKET, SOCK_RAW, "packet"}, {AF_NETLINK, SOCK_RAW, "netlink"}, {AF_UNIX, SOCK_STREAM, "unix"}, {40, SOCK_STREAM, "vsock"}, {38, SOCK_SEQPACKET, "crypto"}};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int fd = socket(kinds[i].family, kinds[i].type, 0);
        verdict(fd >= 0, "a socket: %s", kinds[i].name);
        if (fd >= 0) close(fd);
    }
    for (int fd = 0; fd < 64; fd++) { // those that it was given
        struct sockaddr_in any = {AF_INET, htons(4711), {htonl(INADDR_ANY)}, ""};
        if (bind(fd, (void *)&any, sizeof any) == 0 || listen(fd, 1) == 0) verdict(1, "bind or listen on descriptor %d", fd);
        if (connect(fd, (void *)&local, sizeof local) == 0) verdict(1, "connect descriptor %d", fd);
    }
}

static void privileges(void) {
    verdict(setuid(0) == 0 || setresuid(0, 0, 0) == 0 || geteuid() == 0, "become root");
    verdict(setgid(0) == 0 || setresgid(0, 0, 0) == 0, "become the group root");
    gid_t none = 0;
    verdict(setgroups(1, &none) == 0, "setgroups");
    verdict(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1, "new privileges by execve");
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct caps[2] = {{0, 0, 0}};
    syscall(SYS_capget, &head, caps);
    verdict(caps[0].effective | caps[0].permitted | caps[1].effective | caps[1].permitted, "capabilities 0x%x", caps[0].permitted);
    verdict(mount("none", getenv("HOME"), "tmpfs", 0, "") == 0, "mount");
    verdict(umount("/proc") == 0, "umount");
    verdict(unshare(CLONE_NEWUSER) == 0, "a user namespace");
    verdict(unshare(CLONE_NEWNET) == 0, "a network namespace");
    verdict(chroot("/") == 0, "chroot");
    int ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    verdict(ns >= 0 && setns(ns, 0) == 0, "setns");
    if (ns >= 0) close(ns);
    struct { long number; const char *name; } calls[] = {{SYS_bpf, "bpf"}, {SYS_perf_event_open, "perf_event_open"}, {SYS_io_uring_setup, "io_uring"}, {SYS_userfaultfd, "userfaultfd"}, {SYS_init_module, "init_module"}, {SYS_kexec_load, "kexec_load"}, {SYS_add_key, "add_key"}, {SYS_keyctl, "keyctl"}, {SYS_fanotify_init, "fanotify_init"}, {SYS_syslog, "syslog"}, {SYS_reboot, "reboot"}, {SYS_fsopen, "fsopen"}, {SYS_open_tree, "open_tree"}};
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        errno = 0;
        long got = syscall(calls[i].number, 0, 0, 0, 0, 0);
        verdict(got >= 0 || (errno != EPERM && errno != ENOSYS && errno != EACCES), "%s", calls[i].name);
    }
}

// forked runs step in a child, where it may do harm to itself, and gives what it returned.
static int forked(int (*step)(void)) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(step());
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 0;
    return WEXITSTATUS(status);
}

enum { stays = 255 }; // no errno

static int own_session(void) { return setsid() >= 0; }
static int own_group(void) { return setpgid(0, 0) == 0; }

// own is this process's number outside its PID namespace, where it is 1.
static int own(void) {
    char at[32] = "";
    if (readlink("/proc/self", at, sizeof at - 1) <= 0) return getpid();
    return atoi(at);
}

// stay leaves a process behind whose parent is gone; the test counts those of its name, which it has from its first
// moment.
static int stay(void) {
    prctl(PR_SET_NAME, target("name"), 0, 0, 0);
    pid_t child = fork();
    if (child < 0) return errno;
    if (child > 0) return stays;
    setsid();
    for (;;) pause();
}

// leave has a process stay. A machine that is busy with others' processes may refuse one for a while.
static void leave(void) {
    for (int tries = 0; tries < 100; tries++) {
        int got = forked(stay);
        if (got == stays) return;
        fprintf(stderr, "hostile %d could not leave a process: %d (0: %s)\n", own(), got, strerror(errno));
        usleep(20000);
    }
}

// wander leaves a process that starts the next one and ends, again and again: whoever looks for it finds it gone. It
// begins where its parent is gone already.
static int wander(void) {
    prctl(PR_SET_NAME, target("name"), 0, 0, 0);
    for (int first = 1;; first = 0) {
        pid_t child = fork();
        if (child > 0) _exit(stays);
        if (child < 0 && first) return errno;
        setsid();
        usleep(500);
    }
}

enum { bomb = 1500, many = 20000 };

static void herd(void) {
    static pid_t pids[bomb];
    int n = 0;
    while (n < bomb && (pids[n] = fork()) >= 0) {
        if (pids[n] == 0) for (;;) pause();
        n++;
    }
    verdict(n == bomb, "%d processes", n);
    for (int i = 0; i < n; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < n; i++) waitpid(pids[i], NULL, 0);
}

static void hoard(void) {
    static int fds[many];
    int n = 0;
    while (n < many && (fds[n] = dup(2)) >= 0) n++;
    verdict(n == many, "%d open files", n);
    for (int i = 0; i < n; i++) close(fds[i]);
    char path[4200];
    void (*was)(int) = signal(SIGXFSZ, SIG_IGN);
    snprintf(path, sizeof path, "%s/big", getenv("HOME"));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), mem = memfd_create("big", MFD_CLOEXEC);
    verdict(ftruncate(fd, 1L << 40) == 0, "a file of 1 TiB");
    verdict(pwrite(fd, "x", 1, 1L << 40) == 1, "a byte at 1 TiB");
    verdict(ftruncate(mem, 1L << 40) == 0, "1 TiB of memory as a file");
    close(fd), close(mem), unlink(path);
    signal(SIGXFSZ, was);
}

static void escapes(void) {
    verdict(forked(own_session), "a session of its own");
    verdict(forked(own_group), "a process group of its own");
    verdict(prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) == 0, "to outlive the daemon");
    pid_t pid = atoi(target("victim"));
    struct sched_param none = {0};
    cpu_set_t cpu;
    CPU_ZERO(&cpu);
    CPU_SET(0, &cpu);
    verdict(kill(-pid, 0) == 0, "signal to the victim's group");
    verdict(setpriority(PRIO_PROCESS, pid, 19) == 0, "priority of the victim");
    verdict(setpriority(PRIO_PGRP, pid, 19) == 0, "priority of the victim's group");
    verdict(sched_setscheduler(pid, SCHED_BATCH, &none) == 0, "policy of the victim");
    verdict(sched_setaffinity(pid, sizeof cpu, &cpu) == 0, "processors of the victim");
    verdict(syscall(SYS_ioprio_set, 1, pid, 3 << 13) == 0, "I/O priority of the victim");
    verdict(setpriority(PRIO_PROCESS, 0, -5) == 0, "a higher priority");
    // Whom it meets, the victim's own priority says. This process it meets too, which nothing takes back: by one step
    // alone, or beside a machine's other work the strikes that follow take minutes.
    setpriority(PRIO_USER, 0, getpriority(PRIO_PROCESS, 0) + 1);
    int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    verdict(score >= 0 && write(score, "-1000", 5) == 5, "to be spared when memory is short");
    if (score >= 0) close(score);
    leave();
    for (int i = 0; i < atoi(target("wanderers")); i++) forked(wander);
}

static void report(void) {
    fprintf(stderr, "hostile %d held %d: %s\n", own(), heldCount, held);
    if (brokeCount) fprintf(stderr, "hostile %d broke %d: %s\n", own(), brokeCount, broke);
    heldCount = brokeCount = *held = *broke = 0;
}

static void *attack(void *unused) {
    (void)unused;
    char path[4200];
    snprintf(path, sizeof path, "%s/targets", here);
    while (access(path, R_OK) != 0) usleep(20000);
    void (*steps[])(void) = {processes, files, descriptors, network, privileges, escapes, herd, hoard};
    for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
        if ((steps[i] == herd || steps[i] == hoard) && strcmp(target("greedy"), "true")) continue; // which takes seconds
        steps[i]();
        report();
    }
    fprintf(stderr, "hostile %d done\n", own());
    return NULL;
}

static void *pocl(void) {
    static void *lib;
    if (!lib) lib = dlopen(POCL, RTLD_NOW | RTLD_LOCAL);
    if (!lib) fprintf(stderr, "%s\n", dlerror());
    return lib;
}

__attribute__((constructor)) static void load(void) {
    Dl_info info;
    if (!dladdr((void *)load, &info)) return;
    snprintf(here, sizeof here, "%s", info.dli_fname);
    *strrchr(here, '/') = 0;
    char path[4200];
    snprintf(path, sizeof path, "%s/targets", here);
    if (access(path, R_OK) == 0) { // a probe, too, which does not live long
        attack(NULL);
        return;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, attack, NULL);
}

void *clGetExtensionFunctionAddress(const char *name) {
    void *(*get)(const char *) = pocl() ? (void *(*)(const char *))dlsym(pocl(), "clGetExtensionFunctionAddress") : NULL;
    return get ? get(name) : NULL;
}
