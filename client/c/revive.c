/* Reconnecting: the program's next call replaces a connection that broke, and claims what is held. It connects to the
 * daemon that took over, or to one that was started after a crash. The calling thread does it.
 *
 * If the daemon has the same incarnation, segment numbers mean the same memory. Then a view stays known if a claim in
 * it was granted. All other views become orphans: readable until their last object is released. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

enum {
	FIRST_TRY_MS = 5000,                    /* how long the first call tries, unless patience_ms says otherwise */
	FIRST_PAUSE_MS = 5, LONGEST_PAUSE_MS = 400, /* between tries */
	FIRST_PENALTY_MS = 1000, LONGEST_PENALTY_MS = 30000, /* how long calls fail at once after a call that tried */
	MAX_CLAIMS = 4096, CLAIM_BYTES = 24
};

enum verdict { VERDICT_GONE = 0, VERDICT_HELD = 1, VERDICT_IN_PLACE = 2 };

/* The claims of one try to reconnect. No other thread ends a hold that is in it. */
struct claims {
	struct hold **holds;
	uint8_t *verdicts;
	size_t count;
	bool same; /* same incarnation: the new daemon has the memory of the one before */
};

/* ---- claiming ---- */

static void undo_claims(tendril *t, struct claims *c)
{
	pthread_mutex_lock(&t->mu);
	for (size_t i = 0; i < c->count; i++) {
		if (c->holds[i]->state == HOLD_DROPPED)
			(void)hold_end(t, c->holds[i]);
		else
			c->holds[i]->state = HOLD_GOOD;
	}
	pthread_mutex_unlock(&t->mu);
}

/* Ends the old generation, and lists what to claim. What other threads release from now on waits for its verdict. */
static int begin_claims(tendril *t, const tendril *n, struct claims *c)
{
	pthread_mutex_lock(&t->mu);
	while (t->reading)
		pthread_cond_wait(&t->turn_free, &t->mu);
	t->gen++; /* replies that have not become objects yet are lost */
	index_retire(t);
	size_t count = 0;
	for (struct hold *h = t->held; h; h = h->next)
		count += h->state == HOLD_GOOD;
	c->same = memcmp(t->daemon.incarnation, n->daemon.incarnation, sizeof t->daemon.incarnation) == 0;
	c->holds = calloc(count + 1, sizeof *c->holds);
	c->verdicts = calloc(count + 1, 1);
	int status = c->holds && c->verdicts ? TENDRIL_OK : tdl_fail(TENDRIL_NO_MEMORY, "no memory for %zu claims", count);
	for (struct hold *h = t->held; status == TENDRIL_OK && h; h = h->next)
		if (h->state == HOLD_GOOD) {
			h->state = HOLD_CLAIMED;
			c->holds[c->count++] = h;
		}
	pthread_mutex_unlock(&t->mu);
	return status;
}

/* Reads the verdicts on count claims. */
static int take_verdicts(const struct call *r, uint8_t *verdicts, size_t count)
{
	struct reader in = {r->bytes, r->bytes + r->length, false};
	size_t n = take_u16(&in);
	const uint8_t *given = take(&in, n);
	if (!took_all(&in) || n != count)
		return tdl_fail(TENDRIL_PROTOCOL, "the daemon answered %zu of %zu claims", n, count);
	for (size_t i = 0; i < count; i++)
		if (given[i] > VERDICT_IN_PLACE)
			return tdl_fail(TENDRIL_PROTOCOL, "unknown verdict %u on a claim", (unsigned)given[i]);
	memcpy(verdicts, given, count);
	return TENDRIL_OK;
}

static int claim_some(tendril *n, const struct claims *c, size_t from, size_t count)
{
	size_t room = HEADER_BYTES + 2 + count * CLAIM_BYTES;
	uint8_t *raw = malloc(room);
	struct call r;
	if (!raw)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for %zu claims", count);
	struct writer w = begin_frame(raw, room, M_RECLAIM);
	put_u16(&w, (uint16_t)count);
	for (size_t i = from; i < from + count; i++) {
		const struct hold *h = c->holds[i]; /* while it is claimed, only its state changes */
		put_bytes(&w, &h->id, sizeof h->id);
		put_u64(&w, c->same && h->view && !h->view->orphan ? h->view->id : 0);
	}
	init_call(&r, M_RECLAIM);
	int status = round_trip(n, &w, &r);
	free(raw);
	if (status != TENDRIL_OK)
		return status;
	status = take_verdicts(&r, c->verdicts + from, count);
	drop_call(&r);
	return status;
}

static int claim_all(tendril *n, const struct claims *c)
{
	int status = TENDRIL_OK;
	for (size_t at = 0; status == TENDRIL_OK && at < c->count; at += MAX_CLAIMS)
		status = claim_some(n, c, at, c->count - at < MAX_CLAIMS ? c->count - at : MAX_CLAIMS);
	return status;
}

/* ---- the new generation ---- */

/* Applies the verdicts. Both locks are held, and the connection is the new one. */
static void sort_holds(tendril *t, const struct claims *c)
{
	for (size_t i = 0; i < c->count; i++)
		if (c->verdicts[i] == VERDICT_IN_PLACE && c->same && c->holds[i]->view && !c->holds[i]->view->orphan)
			c->holds[i]->view->gen = t->gen;
	views_orphan(t);
	for (size_t i = 0; i < c->count; i++) {
		struct hold *h = c->holds[i];
		bool dropped = h->state == HOLD_DROPPED;
		h->state = c->verdicts[i] == VERDICT_GONE ? HOLD_GONE : HOLD_GOOD;
		if (dropped && h->state == HOLD_GOOD)
			post_locked(t, M_RELEASE, &h->id, sizeof h->id);
		if (dropped)
			(void)hold_end(t, h); /* a large view waits for the next sweep */
	}
}

/* Gives up what was asked for ahead. mu is held. */
static void drop_spare(tendril *t)
{
	if (t->spare_state != SPARE_THERE)
		return; /* there is none, or a thread waits for it and gets an error */
	if (t->spare.call.status == TENDRIL_OK && t->spare.call.view)
		(void)view_unref(t, t->spare.call.view);
	drop_call(&t->spare.call);
	t->spare_state = SPARE_NONE;
}

/* Makes n's socket that of t. Nobody else has n; it has no socket afterwards. */
static int follow(tendril *t, tendril *n, const struct claims *c)
{
	int status = TENDRIL_OK;
	pthread_mutex_lock(&t->send_mu);
	pthread_mutex_lock(&t->mu);
	if (dup3(n->fd, t->fd, O_CLOEXEC) < 0) {
		status = tdl_fail(TENDRIL_DISCONNECTED, "cannot take over a new socket: %s", strerror(errno));
	} else {
		inbox_free(&t->in);
		t->in = n->in;
		memset(&n->in, 0, sizeof n->in);
		t->speaks = n->speaks;
		t->out_n = 0; /* releases that were not sent: these references were not claimed */
		t->next = n->next;
		adopt_daemon(t, n);
		close(n->fd);
		n->fd = -1;
		t->status = TENDRIL_OK;
		drop_spare(t);
		sort_holds(t, c);
	}
	pthread_mutex_unlock(&t->mu);
	if (status == TENDRIL_OK)
		push(t, MSG_DONTWAIT);
	pthread_mutex_unlock(&t->send_mu);
	return status;
}

/* One try to reconnect. */
static int come_back(tendril *t)
{
	tendril_connect_options o = {.socket = t->socket, .program = t->program};
	o.no_ahead = o.no_reconnect = 1;
	o.index = -1;
	struct claims c = {0};
	tendril *n;
	int status = open_connection(&o, &n);
	if (status != TENDRIL_OK)
		return status;
	status = begin_claims(t, n, &c);
	if (status == TENDRIL_OK)
		status = claim_all(n, &c);
	if (status == TENDRIL_OK)
		status = follow(t, n, &c);
	if (status != TENDRIL_OK)
		undo_claims(t, &c);
	tendril_close(n);
	free(c.holds);
	free(c.verdicts);
	return status;
}

/* The status of the connection, and its reason. *final: it does not reconnect. */
static int broken(tendril *t, char *why, size_t n, bool *final)
{
	pthread_mutex_lock(&t->mu);
	int status = t->status;
	*final = t->closed || !t->revive;
	snprintf(why, n, "%s", status == TENDRIL_OK ? "" : t->why);
	pthread_mutex_unlock(&t->mu);
	return status;
}

static int try_for_a_while(tendril *t)
{
	int64_t until = clock_ms() + (t->revival.penalty_ms ? 0 : t->patience_ms ? t->patience_ms : FIRST_TRY_MS);
	for (int64_t pause = FIRST_PAUSE_MS;; pause = 2 * pause < LONGEST_PAUSE_MS ? 2 * pause : LONGEST_PAUSE_MS) {
		int status = come_back(t);
		if (status != TENDRIL_DISCONNECTED || clock_ms() >= until)
			return status;
		pause_about(pause, until);
	}
}

static int revive_once(tendril *t)
{
	char why[256], again[300];
	bool final;
	int status = broken(t, why, sizeof why, &final);
	if (status == TENDRIL_OK)
		return TENDRIL_OK; /* another thread has reconnected */
	if (final || clock_ms() < t->revival.not_until_ms)
		return tdl_fail(status, "%s", why);
	if (try_for_a_while(t) == TENDRIL_OK) {
		t->revival.penalty_ms = 0;
		return TENDRIL_OK;
	}
	int64_t penalty = t->revival.penalty_ms ? 2 * t->revival.penalty_ms : FIRST_PENALTY_MS;
	t->revival.penalty_ms = penalty < LONGEST_PENALTY_MS ? penalty : LONGEST_PENALTY_MS;
	t->revival.not_until_ms = clock_ms() + t->revival.penalty_ms;
	snprintf(again, sizeof again, "%s", tendril_message());
	return tdl_fail(status, "%s; reconnecting failed: %s", why, again);
}

int revive(tendril *t)
{
	pthread_mutex_lock(&t->revival.mu);
	int status = revive_once(t);
	pthread_mutex_unlock(&t->revival.mu);
	return status;
}
