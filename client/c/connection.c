/* A connection: requests and their replies, for any number of threads.
 *
 * The calling thread itself writes its request and reads its reply, with blocking system calls. If several threads
 * wait, one reads for all (tendril.reading). When it has its own reply, it wakes another one to read. The library
 * starts no thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum {
	MAX_REPLY = 256 << 20, ACK_BYTES = 24,
	MOST_REPEATS = 4 /* of a request: the connection that replaced a broken one may break at once, too */
};

int check_mine(const tendril *t)
{
	if (is_mine(t))
		return TENDRIL_OK;
	return tdl_fail(TENDRIL_FORKED,
		"this connection is the parent process's: a forked child opens its own with tendril_connect");
}

/* ---- the end of a connection ---- */

static void finish(tendril *t, struct call *c, int status)
{
	if (c->prev)
		c->prev->next = c->next;
	else
		t->calls = c->next;
	if (c->next)
		c->next->prev = c->prev;
	c->status = status;
	c->done = true;
	if (c->sleeping)
		pthread_cond_signal(&c->cond);
}

/* Ends the connection for all threads. The first reason counts. mu is held. */
static void fail_connection(tendril *t, int status, const char *why)
{
	if (t->status == TENDRIL_OK) {
		t->status = status;
		if (t->index_over)
			atomic_store(t->index_over, true);
		snprintf(t->why, sizeof t->why, "%s (%s)", why, t->socket);
		shutdown(t->fd, SHUT_RDWR);
	}
	while (t->calls) {
		struct call *c = t->calls;
		c->lost = true;
		c->length = 0;
		(void)keep_bytes(c, (const uint8_t *)t->why, strlen(t->why)); /* without memory: tendril_strerror's words */
		finish(t, c, t->status);
	}
	views_drop_idle(t);
}

/* ---- replies ---- */

static int bad_reply(const struct frame *f)
{
	return tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a malformed reply of type 0x%x and %u bytes",
		(unsigned)f->type, (unsigned)f->length);
}

int keep_bytes(struct call *c, const uint8_t *p, size_t n)
{
	if (n > MAX_REPLY - c->length)
		return tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a reply of more than %d bytes", MAX_REPLY);
	if (c->length + n + 1 > c->room) {
		size_t room = c->room ? 2 * c->room : n + 1;
		while (room < c->length + n + 1)
			room *= 2;
		uint8_t *larger = realloc(c->bytes, room);
		if (!larger)
			return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a reply of %zu bytes", room);
		c->bytes = larger;
		c->room = room;
	}
	if (n)
		memcpy(c->bytes + c->length, p, n);
	c->length += n;
	c->bytes[c->length] = 0;
	return TENDRIL_OK;
}

static void take_place(struct reader *r, struct call *c)
{
	const uint8_t *id = take(r, sizeof c->id);
	if (id)
		memcpy(&c->id, id, sizeof c->id);
	c->place.segment = take_u64(r);
	c->place.bytes = take_u64(r);
	c->place.offset = take_u64(r);
}

/* Memory of a device: of a GPU with its descriptor, of an OpenCL driver with none and no bytes to be mapped. */
static int take_device(struct call *c, struct frame *f)
{
	struct reader r = {f->payload, f->payload + f->length, false};
	const uint8_t *id = take(&r, sizeof c->id), *device = take(&r, sizeof c->device);
	c->size = take_u64(&r);
	c->place.bytes = take_u64(&r);
	c->lifetime = take_u8(&r);
	uint32_t n = take_u32(&r);
	const uint8_t *meta = take(&r, n);
	bool maps = c->place.bytes > 0;
	bool fits = took_all(&r) && n <= TENDRIL_MAX_META && c->size > 0 && (!maps || c->size <= c->place.bytes);
	if (!fits || f->flags & FLAG_MORE || f->nfds != (maps ? 1 : 0))
		return bad_reply(f);
	memcpy(&c->id, id, sizeof c->id);
	memcpy(&c->device, device, sizeof c->device);
	if (maps) {
		c->fds[c->nfds++] = f->fds[0];
		f->fds[0] = -1;
	}
	return n ? keep_bytes(c, meta, n) : TENDRIL_OK;
}

/* Moves a frame's contents into its call. Only replies without structure come in several frames. */
static int fill_call(tendril *t, struct call *c, struct frame *f)
{
	struct reader r = {f->payload, f->payload + f->length, false};
	bool more = f->flags & FLAG_MORE;
	switch (c->kind) {
	case M_CREATE:
	case M_CREATE_WITH:
		take_place(&r, c);
		return took_all(&r) && !more ? view_adopt(t, f, &c->place, true, &c->view) : bad_reply(f);
	case M_STREAM_POP:
	case M_FILL:
	case M_GET: {
		if (c->kind == M_STREAM_POP)
			c->number = take_u64(&r);
		take_place(&r, c);
		c->size = take_u64(&r);
		c->lifetime = take_u8(&r);
		uint32_t n = take_u32(&r);
		const uint8_t *meta = take(&r, n);
		if (!took_all(&r) || n > TENDRIL_MAX_META || more)
			return bad_reply(f);
		int status = n ? keep_bytes(c, meta, n) : TENDRIL_OK;
		return status == TENDRIL_OK ? view_adopt(t, f, &c->place, c->kind == M_FILL, &c->view) : status;
	}
	case M_CREATE_DEVICE:
	case M_GET_DEVICE:
		return take_device(c, f);
	case M_OPEN_INDEX:
	case M_INDEX_LEVEL:
		if (more)
			return bad_reply(f);
		for (; c->nfds < f->nfds; c->nfds++) {
			c->fds[c->nfds] = f->fds[c->nfds];
			f->fds[c->nfds] = -1;
		}
		return keep_bytes(c, f->payload, f->length);
	default:
		if (!c->into)
			return keep_bytes(c, f->payload, f->length);
		if (f->length > c->into_cap - c->length)
			return bad_reply(f);
		memcpy(c->into + c->length, f->payload, f->length);
		c->length += f->length;
		return TENDRIL_OK;
	}
}

static int deliver_error(tendril *t, struct call *c, struct frame *f)
{
	struct reader r = {f->payload, f->payload + f->length, false};
	int code = take_u16(&r);
	uint16_t n = take_u16(&r);
	const uint8_t *text = take(&r, n);
	if (!took_all(&r) || code == 0)
		return bad_reply(f);
	if (!c) {
		tdl_fail_text(code, (const char *)text, n);
		return tdl_fail(TENDRIL_DISCONNECTED, "the daemon ended the connection: %.200s", tendril_message());
	}
	c->length = 0;
	int status = keep_bytes(c, text, n);
	if (status == TENDRIL_OK)
		finish(t, c, code < TENDRIL_DISCONNECTED ? code : TENDRIL_INTERNAL);
	return status;
}

/* Gives a frame to its call. mu is held; an error ends the connection. */
static int deliver(tendril *t, struct frame *f)
{
	struct call *c = t->calls;
	while (c && c->request != f->request)
		c = c->next;
	if (f->type == ERROR_FRAME)
		return deliver_error(t, c, f);
	if (!c || f->type != (c->kind | REPLY_BIT))
		return tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a reply of type 0x%x to no request", (unsigned)f->type);
	int status = fill_call(t, c, f);
	if (status == TENDRIL_OK && !(f->flags & FLAG_MORE))
		finish(t, c, TENDRIL_OK);
	return status;
}

/* Reads until c is done. mu is held, but not while the thread waits in the kernel. */
static void read_until(tendril *t, struct call *c)
{
	t->reading = true;
	while (!c->done) {
		struct frame f = {.fds = {-1, -1}};
		pthread_mutex_unlock(&t->mu);
		int status = receive_frame(t->fd, &t->in, TENDRIL_FOREVER, &f);
		pthread_mutex_lock(&t->mu);
		if (status == TENDRIL_OK)
			status = deliver(t, &f);
		close_frame_fds(&f);
		if (status != TENDRIL_OK)
			fail_connection(t, status, tendril_message());
	}
	t->reading = false;
	if (t->status != TENDRIL_OK)
		pthread_cond_broadcast(&t->turn_free);
}

int await_call(tendril *t, struct call *c)
{
	pthread_mutex_lock(&t->mu);
	while (!c->done) {
		if (!t->reading) {
			read_until(t, c);
			break;
		}
		c->sleeping = true;
		pthread_cond_wait(&c->cond, &t->mu);
		c->sleeping = false;
	}
	if (!t->reading)
		for (struct call *o = t->calls; o; o = o->next)
			if (o->sleeping) {
				pthread_cond_signal(&o->cond);
				break;
			}
	int status = c->status;
	if (status != TENDRIL_OK)
		tdl_fail_text(status, (const char *)c->bytes, c->length);
	pthread_mutex_unlock(&t->mu);
	if (status != TENDRIL_OK)
		drop_call(c);
	return status;
}

void init_call(struct call *c, enum message kind)
{
	memset(c, 0, sizeof *c);
	c->kind = kind;
	pthread_cond_init(&c->cond, NULL);
}

void init_bound_call(struct call *c, enum message kind, uint64_t gen)
{
	init_call(c, kind);
	c->bound = true;
	c->gen = gen;
}

void drop_call(struct call *c)
{
	while (c->nfds > 0)
		close(c->fds[--c->nfds]);
	free(c->bytes);
	c->bytes = NULL;
	c->length = c->room = 0;
	pthread_cond_destroy(&c->cond);
}

/* ---- sending ---- */

/* Ends the connection after a failed send. If the daemon hung up, it may have sent the reason: the reader sees it. */
static void sending_failed(tendril *t)
{
	int err = errno;
	t->out_n = 0;
	if (err == EPIPE || err == ECONNRESET)
		return;
	char text[128];
	snprintf(text, sizeof text, "cannot write to the daemon: %s", strerror(err));
	pthread_mutex_lock(&t->mu);
	fail_connection(t, TENDRIL_DISCONNECTED, text);
	pthread_mutex_unlock(&t->mu);
}

/* With MSG_DONTWAIT, what a full socket does not take stays in out. So no frame is sent in part. */
bool push(tendril *t, int flags)
{
	size_t sent;
	if (t->out_n == 0)
		return true;
	if (send_all(t->fd, t->out, t->out_n, flags, &sent)) {
		t->out_n = 0;
	} else if (flags && (errno == EAGAIN || errno == EWOULDBLOCK)) {
		memmove(t->out, t->out + sent, t->out_n - sent);
		t->out_n -= sent;
	} else {
		sending_failed(t);
		return false;
	}
	return true;
}

/* Sends a frame. If out has something, or more follows, the frame goes with the next push, in one system call. send_mu
 * is held. False: the daemon does not get all of it. */
static bool send_frame(tendril *t, const struct writer *w, bool more)
{
	size_t sent;
	if ((t->out_n || more) && w->n <= sizeof t->out - t->out_n) {
		memcpy(t->out + t->out_n, w->to, w->n);
		t->out_n += w->n;
		return true;
	}
	if (push(t, 0) && send_all(t->fd, w->to, w->n, 0, &sent))
		return true;
	sending_failed(t);
	return false;
}

static void number_frame(struct writer *w, uint64_t request)
{
	uint32_t length = (uint32_t)(w->n - HEADER_BYTES);
	for (int i = 0; i < 4; i++)
		w->to[i] = (uint8_t)(length >> 8 * i);
	store_u64(w->to + 8, request);
}

static int register_calls(tendril *t, struct writer *frames, struct call **calls, size_t n)
{
	pthread_mutex_lock(&t->mu);
	int status = t->status;
	if (calls[0]->bound && calls[0]->gen != t->gen)
		status = tdl_fail(TENDRIL_DISCONNECTED, "it was lost with its connection: begin again on the new one (%s)",
			t->socket);
	else if (status != TENDRIL_OK)
		tdl_fail(status, "%s", t->why);
	for (size_t i = 0; status == TENDRIL_OK && i < n; i++) {
		struct call *c = calls[i];
		c->gen = t->gen;
		c->request = ++t->next;
		number_frame(&frames[i], c->request);
		c->prev = NULL;
		c->next = t->calls;
		if (t->calls)
			t->calls->prev = c;
		t->calls = c;
	}
	pthread_mutex_unlock(&t->mu);
	return status;
}

/* On an error nothing was sent. If sending fails after the calls are registered, await_call returns the error. */
static int send_once(tendril *t, struct writer *frames, struct call **calls, size_t n)
{
	pthread_mutex_lock(&t->send_mu);
	int status = register_calls(t, frames, calls, n);
	bool sent = true;
	for (size_t i = 0; status == TENDRIL_OK && i < n; i++)
		sent = send_frame(t, &frames[i], n > 1) && sent;
	sent = push(t, 0) && sent;
	if (status == TENDRIL_OK && n == 1)
		calls[0]->unsent = !sent;
	pthread_mutex_unlock(&t->send_mu);
	return status;
}

int send_calls(tendril *t, struct writer *frames, struct call **calls, size_t n)
{
	int status = check_mine(t);
	for (size_t i = 0; status == TENDRIL_OK && i < n; i++)
		if (frames[i].bad || frames[i].n > HEADER_BYTES + MAX_PAYLOAD)
			status = tdl_fail(TENDRIL_INVALID, "a name, label or metadata is too long: names have at most 255 bytes");
	if (status == TENDRIL_OK) {
		status = send_once(t, frames, calls, n);
		for (int i = 0; status != TENDRIL_OK && i < MOST_REPEATS && t->revive && !calls[0]->bound; i++) {
			if ((status = t->revive(t)) != TENDRIL_OK)
				break;
			status = send_once(t, frames, calls, n);
		}
	}
	if (status != TENDRIL_OK)
		for (size_t i = 0; i < n; i++)
			drop_call(calls[i]);
	return status;
}

/* Whether a request may be sent twice: it changes nothing, or only what ends with its connection. */
static bool is_repeatable(enum message kind)
{
	switch (kind) {
	case M_GET: case M_CREATE: case M_CREATE_WITH: case M_STAT: case M_STATUS: case M_SWEEP: case M_LIST_WHERE:
	case M_AWAIT_MANY: case M_CHECKSUM: case M_READ_RANGE: case M_STREAM_LIST: case M_LIST_PAGE:
	case M_CREATE_DEVICE: case M_GET_DEVICE: case M_GPUS: case M_IPC_HANDLE:
		return true;
	default:
		return false;
	}
}

static int round_trip_once(tendril *t, struct writer *w, struct call *c)
{
	int status = send_calls(t, w, &c, 1);
	return status == TENDRIL_OK ? await_call(t, c) : status;
}

int round_trip(tendril *t, struct writer *w, struct call *c)
{
	struct call asked = *c;
	int status = round_trip_once(t, w, c);
	for (int i = 0; i < MOST_REPEATS; i++) {
		bool again = status == TENDRIL_DISCONNECTED && c->lost && (c->unsent || is_repeatable(asked.kind));
		if (!again || asked.bound || !t->revive)
			break;
		init_call(c, asked.kind);
		c->into = asked.into;
		c->into_cap = asked.into_cap;
		status = round_trip_once(t, w, c);
	}
	return status;
}

int simple(tendril *t, uint64_t gen, struct writer *w)
{
	struct call c;
	init_call(&c, (enum message)(w->to[4] | w->to[5] << 8));
	c.bound = gen != 0;
	c.gen = gen;
	int status = round_trip(t, w, &c);
	if (status == TENDRIL_OK)
		drop_call(&c);
	return status;
}

void post_locked(tendril *t, enum message kind, const void *payload, size_t n)
{
	uint8_t raw[HEADER_BYTES + 32];
	struct writer w = begin_frame(raw, sizeof raw, kind);
	put_bytes(&w, payload, n);
	number_frame(&w, 0);
	if (w.n > sizeof t->out - t->out_n)
		push(t, 0);
	if (w.n <= sizeof t->out - t->out_n) {
		memcpy(t->out + t->out_n, raw, w.n);
		t->out_n += w.n;
	}
}

void post(tendril *t, enum message kind, const void *payload, size_t n)
{
	pthread_mutex_lock(&t->send_mu);
	post_locked(t, kind, payload, n);
	push(t, MSG_DONTWAIT);
	pthread_mutex_unlock(&t->send_mu);
}

void forget(tendril *t, struct view *v)
{
	uint8_t number[8];
	store_u64(number, v->id);
	view_forget(t, v);
	post_locked(t, M_FORGET, number, sizeof number);
}

void post_ack(tendril *t, uint64_t stream, const tendril_object *o, uint64_t number)
{
	uint8_t payload[8 + ACK_BYTES]; /* of a FrameAck; a StreamAck is what follows the stream */
	store_u64(payload, stream);
	memcpy(payload + 8, &o->id, sizeof o->id);
	store_u64(payload + 8 + sizeof o->id, number);
	pthread_mutex_lock(&t->send_mu);
	if (t->speaks >= WIRE_FRAME_ACKS)
		post_locked(t, M_FRAME_ACK, payload, sizeof payload);
	else if (t->speaks >= WIRE_ACKS)
		post_locked(t, M_STREAM_ACK, payload + 8, ACK_BYTES);
	pthread_mutex_unlock(&t->send_mu);
}

void say_released(tendril *t, const tendril_id *id, struct view *v, bool large)
{
	post_locked(t, M_RELEASE, id, sizeof *id); /* of an unsealed object: an abort */
	if (large) {
		pthread_mutex_lock(&t->mu);
		if (!t->calls && v->refs == 0 && t->status == TENDRIL_OK && view_let_go(v))
			forget(t, v);
		pthread_mutex_unlock(&t->mu);
	}
	if (!t->defer || large || t->out_n > sizeof t->out / 2)
		push(t, MSG_DONTWAIT);
}

void give_back(tendril *t, uint64_t gen, const tendril_id *id, struct view *v, bool filling)
{
	pthread_mutex_lock(&t->send_mu);
	pthread_mutex_lock(&t->mu);
	bool live = !t->closed && t->status == TENDRIL_OK && gen == t->gen, large = false;
	if (v && filling && !t->closed)
		v->filling--;
	if (v && !(filling && t->closed)) /* tendril_close has aborted what was being filled */
		large = view_unref(t, v);
	pthread_mutex_unlock(&t->mu);
	if (live)
		say_released(t, id, v, large);
	pthread_mutex_unlock(&t->send_mu);
}

void tendril_flush(tendril *t)
{
	if (!is_mine(t))
		return;
	pthread_mutex_lock(&t->send_mu);
	push(t, 0);
	pthread_mutex_unlock(&t->send_mu);
}
