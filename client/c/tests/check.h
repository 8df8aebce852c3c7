/* What the tests share: checks that say where they failed, and a daemon of their own. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tendril.h"

#define CHECK(cond) do { if (!(cond)) { \
	fprintf(stderr, "%s:%d: %s is false (last message: %s)\n", __FILE__, __LINE__, #cond, tendril_message()); \
	exit(1); } } while (0)
#define OK(call) do { int s_ = (call); if (s_ != TENDRIL_OK) { \
	fprintf(stderr, "%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, s_, tendril_message()); exit(1); } } while (0)
#define IS(status, call) do { int s_ = (call); if (s_ != (status)) { \
	fprintf(stderr, "%s:%d: %s returned %d (%s), not %s\n", __FILE__, __LINE__, #call, s_, tendril_message(), #status); \
	exit(1); } } while (0)

static inline int count_fds(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	if (!d)
		return -1;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* How long a busy machine may take for a state to come, in ms, and how many looks at it with pauses of 5 ms that is: it
 * ends a test that would wait for ever, and no other. */
enum { PATIENCE_MS = 300000, LOOKS = PATIENCE_MS / 5 };

static inline void pause_ms(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};
	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

static inline void wait_ok(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static char daemon_dir[64], daemon_socket[96];
static pid_t daemon_pid;

static inline void stop_daemon(void)
{
	char command[128];
	if (daemon_pid <= 0)
		return;
	kill(daemon_pid, SIGTERM);
	waitpid(daemon_pid, NULL, 0);
	daemon_pid = 0;
	snprintf(command, sizeof command, "rm -rf %s", daemon_dir);
	CHECK(system(command) == 0);
}

/* Starts a daemon in daemon_dir, with a store of 512 MiB. flag: a further flag, or NULL. Other threads may run: one may
 * hold a lock of malloc's, so the child calls nothing that allocates. */
static inline void spawn_daemon(char *flag)
{
	char *bin = getenv("TENDRIL_BIN");
	char socket[128], state[128], vendors[128], log[128];
	snprintf(socket, sizeof socket, "TENDRIL_SOCKET=%s", daemon_socket);
	snprintf(state, sizeof state, "TENDRIL_STATE_DIR=%s/state", daemon_dir);
	snprintf(vendors, sizeof vendors, "TENDRIL_VENDORS=%s/vendors", daemon_dir);
	snprintf(log, sizeof log, "%s/log", daemon_dir);
	char *argv[] = {"env", socket, state, vendors, "TENDRIL_CAPACITY=512MiB", "TENDRIL_LISTEN=none", bin, "daemon", flag,
		NULL};
	daemon_pid = fork();
	CHECK(daemon_pid >= 0);
	if (daemon_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int in = open("/dev/null", O_RDONLY), err = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
		if (dup2(in, 0) < 0 || dup2(err, 2) < 0)
			_exit(1);
		close(in);
		close(err);
		execv("/usr/bin/env", argv);
		_exit(127);
	}
}

static inline void await_daemon(void)
{
	tendril *t;
	for (int i = 0; i < LOOKS; i++) {
		if (tendril_connect(daemon_socket, &t) == TENDRIL_OK) {
			tendril_close(t);
			return;
		}
		CHECK(waitpid(daemon_pid, NULL, WNOHANG) == 0);
		pause_ms(5);
	}
	CHECK(!"the daemon answers within 5 minutes");
}

/* Starts a daemon for this test alone. Skips the test if TENDRIL_BIN is not set. */
static inline void start_daemon(void)
{
	char path[128];
	if (!getenv("TENDRIL_BIN")) {
		fprintf(stderr, "skipped: TENDRIL_BIN names no daemon\n");
		exit(0);
	}
	snprintf(daemon_dir, sizeof daemon_dir, "/tmp/tendril-c-XXXXXX");
	CHECK(mkdtemp(daemon_dir));
	snprintf(daemon_socket, sizeof daemon_socket, "%s/s", daemon_dir);
	snprintf(path, sizeof path, "%s/vendors", daemon_dir);
	CHECK(mkdir(path, 0700) == 0);
	spawn_daemon(NULL);
	await_daemon();
}

static inline void kill_daemon(void)
{
	CHECK(kill(daemon_pid, SIGKILL) == 0 && waitpid(daemon_pid, NULL, 0) == daemon_pid);
	daemon_pid = 0;
}

/* Starts a daemon that takes over from the one that runs. */
static inline void hand_over(void)
{
	pid_t before = daemon_pid;
	spawn_daemon("--takeover");
	wait_ok(before);
}

struct test {
	const char *name;
	void (*run)(void);
};

/* Runs n tests against one daemon, and last the one in which the daemon dies. Each must leave as many descriptors open
 * as it found. */
static inline int run_tests(const char *program, const struct test *tests, size_t n, void (*daemon_dies)(void))
{
	tendril *t;
	start_daemon();
	atexit(stop_daemon);
	OK(tendril_connect(daemon_socket, &t));
	tendril_close(t);
	int before = count_fds();
	for (size_t i = 0; i <= n; i++) {
		if (getenv("VERBOSE"))
			fprintf(stderr, "%s\n", i < n ? tests[i].name : "daemon_dies");
		(i < n ? tests[i].run : daemon_dies)();
		CHECK(count_fds() == before);
	}
	printf("%s: %zu tests passed\n", program, n + 1);
	return 0;
}

#endif
