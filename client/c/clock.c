/* The clock, pauses, and the timer of tendril_sweep_fd. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { FIRST_SWEEP_MS = 250 };

int64_t clock_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The pause is random so that not all clients connect at once when a daemon starts again. */
void pause_about(int64_t ms, int64_t until)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	int64_t left = until - clock_ms(), wait = ms / 2 + (now.tv_nsec / 1000 + getpid()) % (ms + 1);
	wait = wait < left ? wait : left;
	struct timespec t = {wait / 1000, wait % 1000 * 1000000L};
	while (wait > 0 && nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

static void set_timer(const tendril *t, int64_t ms)
{
	struct itimerspec at = {.it_value = {ms / 1000, ms % 1000 * 1000000L}};
	(void)timerfd_settime(t->sweep_fd, 0, &at, NULL); /* fails if there is no timer */
}

void sweep_timer_ran(tendril *t)
{
	if (t->sweep_set)
		set_timer(t, 0);
	t->sweep_set = false;
}

void sweep_later(tendril *t, int64_t ms)
{
	if (t->sweep_fd < 0 || t->sweep_set || t->status != TENDRIL_OK || (t->idle == 0 && !atomic_load(&t->index)))
		return;
	set_timer(t, ms ? ms : FIRST_SWEEP_MS);
	t->sweep_set = true;
}
