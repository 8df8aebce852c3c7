/* Opening and closing connections. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

enum { HELLO_MS = 30000, PROGRAM_BYTES = 255 };

/* Makes the page that is zero in a forked child. Reading it takes no system call, and unlike pthread_atfork it leaves
 * no handler behind when the library is unloaded. */
static int mark_mine(tendril *t)
{
	void *page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return tdl_fail(TENDRIL_NO_MEMORY, "cannot map a page: %s", strerror(errno));
	t->mine = page;
	if (madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) < 0)
		return tdl_fail(TENDRIL_UNSUPPORTED, "this kernel is older than Linux 4.14: %s", strerror(errno));
	*t->mine = 1;
	return TENDRIL_OK;
}

/* A copy of n bytes that lives as long as the connection; NULL: no memory. */
static const char *keep_text(tendril *t, const uint8_t *p, size_t n)
{
	for (struct text *k = t->texts; k; k = k->next)
		if (strlen(k->text) == n && memcmp(k->text, p, n) == 0)
			return k->text;
	struct text *fresh = malloc(sizeof *fresh + n + 1);
	if (!fresh)
		return NULL;
	memcpy(fresh->text, p, n);
	fresh->text[n] = 0;
	fresh->next = t->texts;
	t->texts = fresh;
	return fresh->text;
}

static int read_hello(tendril *t, const struct frame *f)
{
	struct reader r = {f->payload, f->payload + f->length, false};
	if (f->type == ERROR_FRAME) {
		int code = take_u16(&r);
		size_t n = take_u16(&r);
		const uint8_t *text = take(&r, n);
		return took_all(&r) && code ? tdl_fail_text(code, (const char *)text, n)
		                            : tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a malformed error");
	}
	uint16_t version = take_u16(&r);
	size_t n = take_u16(&r);
	const uint8_t *program = take(&r, n);
	const uint8_t *incarnation = take(&r, sizeof t->daemon.incarnation);
	size_t m = take_u16(&r);
	const uint8_t *tenant = take(&r, m);
	t->daemon.pid = take_u32(&r);
	t->daemon.capacity_bytes = take_u64(&r);
	if (f->type != (M_HELLO | REPLY_BIT) || f->nfds || !took_all(&r))
		return tdl_fail(TENDRIL_PROTOCOL, "what answers at %s is not a Tendril daemon", t->socket);
	if (version < WIRE_LOWEST || version > WIRE_VERSION)
		return tdl_fail(TENDRIL_VERSION, "the daemon chose version %u; this client offered %d to %d",
			version, WIRE_LOWEST, WIRE_VERSION);
	t->speaks = version;
	memcpy(t->daemon.incarnation, incarnation, sizeof t->daemon.incarnation);
	t->daemon.version = keep_text(t, program, n);
	t->daemon.tenant = keep_text(t, tenant, m);
	if (!t->daemon.version || !t->daemon.tenant)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a connection");
	return TENDRIL_OK;
}

void adopt_daemon(tendril *t, const tendril *from)
{
	const char *version = keep_text(t, (const uint8_t *)from->daemon.version, strlen(from->daemon.version));
	const char *tenant = keep_text(t, (const uint8_t *)from->daemon.tenant, strlen(from->daemon.tenant));
	tendril_daemon before = t->daemon;
	t->daemon = from->daemon;
	t->daemon.version = version ? version : before.version;
	t->daemon.tenant = tenant ? tenant : before.tenant;
}

/* *hung_up: the daemon ended the connection before its first answer, without a reason. */
static int hello(tendril *t, const char *program, bool *hung_up)
{
	uint8_t raw[HEADER_BYTES + 16 + PROGRAM_BYTES];
	struct writer w = begin_frame(raw, sizeof raw, M_HELLO);
	struct frame f = {.fds = {-1, -1}};
	char name[PROGRAM_BYTES + 1];
	size_t sent;
	snprintf(name, sizeof name, "%s", program ? program : program_invocation_short_name);
	put_u32(&w, WIRE_MAGIC);
	put_u16(&w, WIRE_LOWEST);
	put_u16(&w, WIRE_VERSION);
	put_str16(&w, name);
	raw[0] = (uint8_t)(w.n - HEADER_BYTES);
	raw[1] = (uint8_t)((w.n - HEADER_BYTES) >> 8);
	store_u64(raw + 8, ++t->next);
	bool whole = send_all(t->fd, raw, w.n, 0, &sent);
	int err = errno;
	/* A daemon that refuses the connection sends the reason and hangs up. It can be read although writing failed. */
	int status = receive_frame(t->fd, &t->in, whole ? HELLO_MS : 0, &f);
	*hung_up = status == TENDRIL_DISCONNECTED || (!whole && status != TENDRIL_OK);
	if (!whole && status != TENDRIL_OK)
		return tdl_fail(TENDRIL_DISCONNECTED, "cannot write to the daemon at %s: %s", t->socket, strerror(err));
	if (status == TENDRIL_TIMEOUT)
		return tdl_fail(TENDRIL_DISCONNECTED, "no answer at %s within %d s: is it a Tendril daemon?",
			t->socket, HELLO_MS / 1000);
	if (status == TENDRIL_OK)
		status = read_hello(t, &f);
	close_frame_fds(&f);
	return status;
}

/* Connects to the named socket. NULL: to the first of the default ones at which a daemon answers. */
static int find_daemon(tendril *t, const char *named)
{
	char paths[MAX_SOCKETS][SOCKET_BYTES], tried[2 * (SOCKET_BYTES + 128)] = "";
	int n = named ? 1 : default_sockets(paths), worst = TENDRIL_DISCONNECTED;
	bool denied = false;
	for (int i = 0; i < n; i++) {
		const char *path = named ? named : paths[i];
		int status = dial(path, &t->fd, &denied);
		if (status == TENDRIL_OK) {
			t->socket = strdup(path);
			return t->socket ? TENDRIL_OK : tdl_fail(TENDRIL_NO_MEMORY, "no memory for a connection");
		}
		if (status != TENDRIL_DISCONNECTED)
			worst = status;
		size_t at = strlen(tried);
		snprintf(tried + at, sizeof tried - at, "%s%s (%s)", i ? " or " : "", path, tendril_message());
	}
	return tdl_fail(worst, "no daemon answers at %s: %s", tried,
		denied ? "ask who runs the daemon there to let you in" : "start one with: tendril daemon");
}

/* Finds a daemon and greets it; once more if it hangs up: it was taken over then, and nothing had been asked of it. */
static int meet_daemon(tendril *t, const char *named, const char *program)
{
	bool hung_up = true;
	int status = TENDRIL_OK;
	for (int i = 0; i < 2 && hung_up; i++) {
		if (t->fd >= 0)
			close(t->fd);
		t->fd = -1;
		inbox_free(&t->in);
		free(t->socket);
		t->socket = NULL;
		hung_up = false;
		status = find_daemon(t, named);
		if (status == TENDRIL_OK)
			status = hello(t, program, &hung_up);
	}
	return status;
}

int open_connection(const tendril_connect_options *o, tendril **out)
{
	tendril *t = calloc(1, sizeof *t);
	if (!t)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a connection");
	t->fd = t->sweep_fd = -1;
	atomic_init(&t->refs, 1);
	atomic_init(&t->spare_state, 0);
	pthread_mutex_init(&t->revival.mu, NULL);
	pthread_mutex_init(&t->send_mu, NULL);
	pthread_mutex_init(&t->mu, NULL);
	pthread_cond_init(&t->turn_free, NULL);
	t->gen = 1;
	t->keep_bytes = o && o->keep_bytes ? o->keep_bytes : 64ull << 20;
	t->ahead = !(o && o->no_ahead);
	t->defer = o && o->defer;
	t->patience_ms = o ? o->patience_ms : 0;
	if (o && o->program)
		t->program = strdup(o->program); /* without memory: the default name */
	index_want(t, o);
	explain_if_asked();
	int status = mark_mine(t);
	if (status == TENDRIL_OK)
		status = meet_daemon(t, o ? o->socket : NULL, o ? o->program : NULL);
	if (status != TENDRIL_OK) {
		if (t->fd >= 0)
			close(t->fd);
		t->fd = -1;
		unref_connection(t);
		return status;
	}
	*out = t;
	return TENDRIL_OK;
}

void unref_connection(tendril *t)
{
	if (atomic_fetch_sub(&t->refs, 1) != 1)
		return;
	views_free(t, true);
	if (t->sweep_fd >= 0)
		close(t->sweep_fd);
	holds_free(t);
	index_free(t);
	inbox_free(&t->in);
	if (t->mine)
		munmap((void *)t->mine, (size_t)sysconf(_SC_PAGESIZE));
	pthread_mutex_destroy(&t->revival.mu);
	pthread_mutex_destroy(&t->send_mu);
	pthread_mutex_destroy(&t->mu);
	pthread_cond_destroy(&t->turn_free);
	for (struct text *k = t->texts, *next; k; k = next) {
		next = k->next;
		free(k);
	}
	free(t->socket);
	free(t->program);
	free(t);
}

/* In a forked child: closes the descriptors. The parent's objects stay mapped. It takes no lock, because a thread of
 * the parent may have held it at the fork. */
static void close_inherited(tendril *t)
{
	for (size_t i = 0; i <= BUCKETS; i++)
		for (struct view *v = t->views[i]; v; v = v->next)
			if (v->fd >= 0) {
				close(v->fd);
				v->fd = -1;
			}
	if (t->fd >= 0)
		close(t->fd);
	if (t->sweep_fd >= 0)
		close(t->sweep_fd);
	t->fd = t->sweep_fd = -1;
}

void tendril_close(tendril *t)
{
	if (!t)
		return;
	if (!is_mine(t)) {
		close_inherited(t);
		return;
	}
	give_up_spare(t);
	pthread_mutex_lock(&t->send_mu);
	if (t->fd >= 0)
		push(t, MSG_DONTWAIT); /* what was popped is not to go back, and what was put back is */
	pthread_mutex_lock(&t->mu);
	t->closed = true;
	if (t->index_over)
		atomic_store(t->index_over, true);
	if (t->status == TENDRIL_OK) {
		t->status = TENDRIL_DISCONNECTED;
		snprintf(t->why, sizeof t->why, "the connection was closed");
	}
	if (t->fd >= 0) {
		shutdown(t->fd, SHUT_RDWR); /* the daemon releases all that this connection held */
		close(t->fd);
		t->fd = -1;
	}
	if (t->sweep_fd >= 0)
		close(t->sweep_fd);
	t->sweep_fd = -1;
	views_free(t, false);
	pthread_mutex_unlock(&t->mu);
	pthread_mutex_unlock(&t->send_mu);
	unref_connection(t);
}

void tendril_about(tendril *t, tendril_daemon *out)
{
	if (!is_mine(t)) { /* no lock: a thread of the parent may have held it at the fork. Nothing changes here any more */
		*out = t->daemon;
		return;
	}
	pthread_mutex_lock(&t->mu);
	*out = t->daemon;
	pthread_mutex_unlock(&t->mu);
}

int tendril_alive(tendril *t)
{
	int status = check_mine(t);
	if (status != TENDRIL_OK)
		return status;
	pthread_mutex_lock(&t->mu);
	status = t->status;
	if (status != TENDRIL_OK)
		tdl_fail(status, "%s", t->why);
	pthread_mutex_unlock(&t->mu);
	if (status == TENDRIL_OK) {
		char byte;
		ssize_t n = recv(t->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
			status = tdl_fail(TENDRIL_DISCONNECTED, "the daemon has closed the connection (%s)", t->socket);
	}
	return status;
}
