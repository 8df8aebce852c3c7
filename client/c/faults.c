/* tendril_explain_faults: a sentence on standard error before a write to a sealed object ends the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "internal.h"

/* Where segments are mapped. The handler may take no lock, so this is a table of atomics. If it is full, writes to
 * further segments are not explained. */
enum { RANGES = 4096 };
static struct range {
	_Atomic uintptr_t from; /* 0: the entry is free; 1: it is being filled in */
	_Atomic uintptr_t to;
} ranges[RANGES];
static atomic_size_t used; /* all entries from this one on are free */

void range_enter(const void *from, uint64_t bytes)
{
	for (size_t i = 0; i < RANGES; i++) {
		uintptr_t as_free = 0;
		if (!atomic_compare_exchange_strong(&ranges[i].from, &as_free, 1))
			continue;
		atomic_store(&ranges[i].to, (uintptr_t)from + (uintptr_t)bytes);
		atomic_store(&ranges[i].from, (uintptr_t)from);
		size_t n = atomic_load(&used);
		while (n <= i && !atomic_compare_exchange_weak(&used, &n, i + 1))
			;
		return;
	}
}

void range_leave(const void *from)
{
	size_t n = atomic_load(&used);
	for (size_t i = 0; i < n; i++)
		if (atomic_load(&ranges[i].from) == (uintptr_t)from) {
			atomic_store(&ranges[i].to, 0);
			atomic_store(&ranges[i].from, 0);
			return;
		}
}

static bool is_ours(uintptr_t at)
{
	size_t n = atomic_load(&used);
	for (size_t i = 0; i < n; i++)
		if (at >= atomic_load(&ranges[i].from) && at < atomic_load(&ranges[i].to))
			return true;
	return false;
}

/* Calls only what signal-safety(7) allows. */
static void explain(uintptr_t at)
{
	static const char before[] = "tendril: this process wrote to a sealed object, at 0x";
	static const char after[] = ". Sealed objects never change, so they are mapped read-only, and SIGSEGV follows: "
	                            "write before the seal, or to a copy.\n";
	char text[sizeof before + 2 * sizeof at + sizeof after];
	size_t n = sizeof before - 1;
	memcpy(text, before, n);
	for (int shift = 8 * (int)sizeof at - 4; shift >= 0; shift -= 4)
		if (at >> shift || shift == 0)
			text[n++] = "0123456789abcdef"[at >> shift & 15];
	memcpy(text + n, after, sizeof after - 1);
	n += sizeof after - 1;
	if (write(STDERR_FILENO, text, n) < 0)
		return; /* standard error is closed */
}

static struct sigaction earlier; /* immutable once the handler is installed */

static void on_fault(int signo, siginfo_t *info, void *context)
{
	int kept = errno;
	if (info->si_code == SEGV_ACCERR && is_ours((uintptr_t)info->si_addr))
		explain((uintptr_t)info->si_addr);
	errno = kept;
	if (earlier.sa_flags & SA_SIGINFO) {
		earlier.sa_sigaction(signo, info, context);
	} else if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) {
		earlier.sa_handler(signo);
	} else {
		struct sigaction end = {.sa_handler = SIG_DFL};
		(void)sigaction(signo, &end, NULL);
		if (info->si_code <= 0)
			(void)raise(signo); /* a process sent it (kill): it does not occur again by itself */
	}
}

int tendril_explain_faults(void)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	static bool done;
	struct sigaction ours = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
	int status = TENDRIL_OK;
	ours.sa_sigaction = on_fault;
	pthread_mutex_lock(&once);
	if (!done && (sigaction(SIGSEGV, NULL, &earlier) < 0 || sigaction(SIGSEGV, &ours, NULL) < 0))
		status = tdl_fail(TENDRIL_UNSUPPORTED, "cannot install a handler for SIGSEGV: %s", strerror(errno));
	done = done || status == TENDRIL_OK;
	pthread_mutex_unlock(&once);
	return status;
}

void explain_if_asked(void)
{
	const char *env = getenv("TENDRIL_EXPLAIN_FAULTS");
	if (env && (!strcasecmp(env, "1") || !strcasecmp(env, "on") || !strcasecmp(env, "yes") || !strcasecmp(env, "true")))
		(void)tendril_explain_faults();
}
