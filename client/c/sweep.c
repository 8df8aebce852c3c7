/* Sweeping: a daemon cannot revoke a mapping, so clients ask it now and then which idle ones it wants them to unmap.
 * Calls that need memory ask. A program that goes idle asks with tendril_sweep, from its poll loop, because the library
 * has no thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { SWEEP_MS = 1000 };

/* ---- the timer of tendril_sweep_fd ---- */

int tendril_sweep_fd(tendril *t)
{
	if (check_mine(t) != TENDRIL_OK)
		return -1;
	pthread_mutex_lock(&t->mu);
	if (t->sweep_fd < 0)
		t->sweep_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (t->sweep_fd < 0)
		tdl_fail(TENDRIL_NO_MEMORY, "cannot make a timer: %s", strerror(errno));
	sweep_later(t, 0);
	int fd = t->sweep_fd;
	pthread_mutex_unlock(&t->mu);
	return fd;
}

/* ---- sweeping ---- */

static bool sweep_is_due(tendril *t, bool now, uint64_t *gen)
{
	pthread_mutex_lock(&t->mu);
	if (t->retired)
		index_tidy(t);
	now = now || index_wants_sweep(t);
	int64_t ms = t->idle || now ? clock_ms() : 0;
	bool due = now || (t->idle && ms - t->swept_ms >= SWEEP_MS);
	*gen = t->gen;
	if (due) {
		t->swept_ms = ms;
		sweep_timer_ran(t);
	}
	pthread_mutex_unlock(&t->mu);
	return due;
}

int sweep(tendril *t, bool now)
{
	int status = check_mine(t);
	uint64_t gen;
	if (status != TENDRIL_OK || !sweep_is_due(t, now, &gen))
		return status;
	uint8_t raw[HEADER_BYTES];
	struct writer w = begin_frame(raw, sizeof raw, M_SWEEP);
	struct call c;
	init_bound_call(&c, M_SWEEP, gen); /* bound: a sweep alone makes no new connection */
	index_swept(t);
	status = round_trip(t, &w, &c);
	if (status != TENDRIL_OK)
		return status;
	struct reader r = {c.bytes, c.bytes + c.length, false};
	pthread_mutex_lock(&t->send_mu);
	for (uint32_t n = take_u32(&r); n > 0 && !r.bad; n--) {
		pthread_mutex_lock(&t->mu);
		struct view *v = view_find(t, take_u64(&r));
		if (v && !r.bad && v->refs == 0 && !t->calls && t->status == TENDRIL_OK && c.gen == t->gen) {
			if (view_let_go(v))
				forget(t, v);
			else
				index_sweep_again(t);
		}
		pthread_mutex_unlock(&t->mu);
	}
	push(t, 0);
	pthread_mutex_lock(&t->mu);
	sweep_later(t, SWEEP_MS);
	pthread_mutex_unlock(&t->mu);
	pthread_mutex_unlock(&t->send_mu);
	drop_call(&c);
	return TENDRIL_OK;
}

/* The number after a key in the daemon's status; 0 if the key is missing. */
static uint64_t number_after(const char *status, const char *key)
{
	const char *at = strstr(status, key);
	return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/* Whether memory is being freed: clients have yet to unmap it. own: the tenant's own, if the daemon says. */
static bool memory_leaves(tendril *t, bool own)
{
	static const char tenants[] = "\"tenant_leaving_bytes\":", all[] = "\"leaving_bytes\":";
	uint8_t raw[HEADER_BYTES];
	struct writer w = begin_frame(raw, sizeof raw, M_STATUS);
	struct call c;
	init_call(&c, M_STATUS);
	if (round_trip(t, &w, &c) != TENDRIL_OK)
		return false;
	const char *status = c.bytes ? (const char *)c.bytes : "";
	bool leaves = number_after(status, own && strstr(status, tenants) ? tenants : all) > 0;
	drop_call(&c);
	return leaves;
}

int round_trip_full(tendril *t, struct writer *w, struct call *c)
{
	static const int pauses_ms[] = {0, 20, 80, 300}; /* other clients sweep some 250 ms after a release */
	enum { PAUSES = 4, LEAVING_TRIES = 40, LEAVING_MS = 200 };
	enum message kind = c->kind;
	int status = round_trip(t, w, c);
	for (int try = 0; try < PAUSES + LEAVING_TRIES && (status == TENDRIL_FULL || status == TENDRIL_QUOTA); try++) {
		char text[256];
		snprintf(text, sizeof text, "%s", tendril_message());
		bool more = try < PAUSES || memory_leaves(t, status == TENDRIL_QUOTA);
		int ms = try < PAUSES ? pauses_ms[try] : LEAVING_MS;
		struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
		while (more && nanosleep(&left, &left) < 0 && errno == EINTR)
			;
		if (!more || sweep(t, true) != TENDRIL_OK)
			return tdl_fail(status, "%s", text);
		init_call(c, kind);
		status = round_trip(t, w, c);
	}
	return status;
}

int tendril_sweep(tendril *t) { return sweep(t, true); }
