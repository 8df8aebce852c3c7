/* Objects: create, seal, get, release. A get takes three system calls, a release one. They allocate nothing unless the
 * object has metadata. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

enum {
	SPARE_BYTES = 64 << 10, /* of larger objects, a round trip costs little beside the filling */
	SHUT_BYTES = 64 << 10, /* objects of this size and larger share no page with others */
	SMALL_FRAME = HEADER_BYTES + 32 + TENDRIL_MAX_NAME,
	LABELS_BYTES = TENDRIL_MAX_LABELS * 2 * (TENDRIL_MAX_NAME + 2),
	CREATE_FRAME = HEADER_BYTES + 64 + TENDRIL_MAX_NAME + TENDRIL_MAX_META + LABELS_BYTES,
	GET_AHEAD = 32, MAX_WANTED = 2048,
	CREATE_OWN = 1, CREATE_SHARED = 2, CREATE_SUMMED = 4
};

/* A buffer's internal fields, after the connection. */
enum { OF_VIEW = OF_CONNECTION + 1, OF_META, OF_META_SIZE, OF_OFFSET, OF_LIFETIME, OF_FLAGS, OF_GEN };
/* IS_WHOLE: it has a segment of its own. IS_UNSEEN: the program never had its address. IS_OPEN: the view counts it as
 * being filled. */
enum { IS_STRICT = 1, IS_PLAIN = 2, IS_PART = 4, IS_WHOLE = 8, IS_UNSEEN = 16, IS_OPEN = 32 };

static tendril *owner(void *const *internal) { return internal[OF_CONNECTION]; }
static uintptr_t flags_of(const tendril_buffer *b) { return (uintptr_t)b->internal[OF_FLAGS]; }
static bool has_flag(const tendril_buffer *b, uintptr_t flag) { return flags_of(b) & flag; }
static void set_flag(tendril_buffer *b, uintptr_t flag) { b->internal[OF_FLAGS] = (void *)(flags_of(b) | flag); }
static void clear_flag(tendril_buffer *b, uintptr_t flag) { b->internal[OF_FLAGS] = (void *)(flags_of(b) & ~flag); }

tendril *buffer_connection(const tendril_buffer *b) { return owner(b->internal); }
tendril *object_connection(const tendril_object *o) { return owner(o->internal); }
uint64_t buffer_gen(const tendril_buffer *b) { return (uint64_t)(uintptr_t)b->internal[OF_GEN]; }
bool buffer_is_part(const tendril_buffer *b) { return has_flag(b, IS_PART); }
bool buffer_is_strict(const tendril_buffer *b) { return has_flag(b, IS_STRICT); }

static void put_plain_create(struct writer *w, uint64_t size)
{
	put_u64(w, size);
	put_u8(w, TENDRIL_EPHEMERAL);
	put_u8(w, 0);
	put_str16(w, NULL);
	put_bytes32(w, NULL, 0);
}

/* ---- create ---- */

enum tendril_lifetime lifetime_of(const tendril_options *o)
{
	return o->lifetime == TENDRIL_EPHEMERAL && o->name && *o->name && !o->ephemeral_name ? TENDRIL_NAMED : o->lifetime;
}

static bool is_plain(uint64_t size, const tendril_options *o)
{
	return size <= SPARE_BYTES && lifetime_of(o) == TENDRIL_EPHEMERAL && !(o->name && *o->name) && !o->meta_size &&
	       !o->label_count && !o->ttl_ms && !o->own && !o->strict && !o->shared && !o->checksum;
}

static struct writer create_frame(uint8_t *raw, size_t cap, uint64_t size, const tendril_options *o)
{
	bool with = o->ttl_ms || o->label_count;
	struct writer w = begin_frame(raw, cap, with ? M_CREATE_WITH : M_CREATE);
	put_u64(&w, size);
	put_u8(&w, (uint8_t)lifetime_of(o));
	int own = o->own || o->strict ? CREATE_OWN : 0, shared = o->shared ? CREATE_SHARED : 0;
	put_u8(&w, (uint8_t)(own | shared | (o->checksum ? CREATE_SUMMED : 0)));
	put_str16(&w, o->name);
	put_bytes32(&w, o->meta, o->meta_size);
	if (with) {
		put_u64(&w, o->ttl_ms);
		put_labels(&w, o->labels, o->label_count);
	}
	w.bad = w.bad || o->meta_size > TENDRIL_MAX_META || (unsigned)o->lifetime > TENDRIL_PERSISTED;
	return w;
}

static int ask_create(tendril *t, uint64_t size, const tendril_options *o, bool plain, struct call *c)
{
	if (plain && take_spare(t, size, c))
		return TENDRIL_OK;
	give_up_spare(t);
	(void)sweep(t, false); /* if the connection broke, the next request makes a new one */
	int status;
	uint8_t *large = NULL, small[SMALL_FRAME];
	size_t cap = sizeof small;
	if (o->meta_size || o->label_count) {
		cap = CREATE_FRAME;
		large = malloc(cap);
		if (!large)
			return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a request");
	}
	struct writer w = create_frame(large ? large : small, cap, size, o);
	init_call(c, o->ttl_ms || o->label_count ? M_CREATE_WITH : M_CREATE);
	status = round_trip_full(t, &w, c);
	free(large);
	return status;
}

int copy_meta(const tendril_options *o, void **copy, void **size)
{
	if (!o->meta_size)
		return TENDRIL_OK;
	char *text = malloc(o->meta_size + 1);
	if (!text)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for metadata");
	memcpy(text, o->meta, o->meta_size);
	text[o->meta_size] = 0;
	*copy = text;
	*size = (void *)o->meta_size;
	return TENDRIL_OK;
}

static int own_buffer(tendril *t, uint64_t size, const tendril_options *o, struct call *c, tendril_buffer *b)
{
	atomic_fetch_add(&t->refs, 1);
	b->id = c->id;
	b->size = size;
	b->internal[OF_CONNECTION] = t;
	b->internal[OF_VIEW] = c->view;
	b->internal[OF_OFFSET] = (void *)(uintptr_t)c->place.offset;
	b->internal[OF_LIFETIME] = (void *)(uintptr_t)lifetime_of(o);
	set_flag(b, (o->strict ? IS_STRICT : 0) | (o->own || o->strict || o->shared ? IS_WHOLE : 0));
	b->internal[OF_GEN] = (void *)(uintptr_t)c->gen;
	int status = copy_meta(o, &b->internal[OF_META], &b->internal[OF_META_SIZE]);
	pthread_mutex_lock(&t->mu);
	if (c->view)
		c->view->filling++;
	if (status == TENDRIL_OK && c->gen != t->gen)
		status = tdl_fail(TENDRIL_DISCONNECTED, "the object was lost with its connection (%s)", t->socket);
	if (status == TENDRIL_OK)
		status = view_map(c->view, &c->place, size, true, &b->data);
	if (status == TENDRIL_OK)
		set_flag(b, IS_OPEN);
	pthread_mutex_unlock(&t->mu);
	return status;
}

/* Tells the view that the buffer is not filled any more. */
static void leave(tendril_buffer *b, bool shut)
{
	tendril *t = owner(b->internal);
	if (!has_flag(b, IS_OPEN))
		return;
	clear_flag(b, IS_OPEN);
	pthread_mutex_lock(&t->mu);
	if (!t->closed)
		view_leave(b->internal[OF_VIEW], (uint64_t)(uintptr_t)b->internal[OF_OFFSET], b->size, shut);
	pthread_mutex_unlock(&t->mu);
}

void buffer_shut(tendril_buffer *b)
{
	leave(b, !has_flag(b, IS_UNSEEN) && (has_flag(b, IS_WHOLE) || b->size >= SHUT_BYTES));
}

int buffer_reopen(tendril_buffer *b, int status)
{
	tendril *t = owner(b->internal);
	struct view *v = b->internal[OF_VIEW];
	char text[256];
	if (status == TENDRIL_DISCONNECTED || !v || !b->data)
		return status;
	snprintf(text, sizeof text, "%s", tendril_message());
	struct place p = {v->id, v->bytes, (uint64_t)(uintptr_t)b->internal[OF_OFFSET]};
	pthread_mutex_lock(&t->mu);
	/* If mapping fails, the buffer can still be aborted, or sealed as it is. */
	if (!t->closed && view_map(v, &p, b->size, true, &b->data) == TENDRIL_OK)
		set_flag(b, IS_OPEN);
	pthread_mutex_unlock(&t->mu);
	return tdl_fail(status, "%s", text);
}

static int create_once(tendril *t, uint64_t size, const tendril_options *o, bool plain, tendril_buffer *b)
{
	struct call c;
	memset(b, 0, sizeof *b);
	int status = ask_create(t, size, o, plain, &c);
	if (status != TENDRIL_OK)
		return status;
	status = own_buffer(t, size, o, &c, b);
	drop_call(&c);
	if (status != TENDRIL_OK)
		tendril_abort(b);
	return status;
}

int tendril_create(tendril *t, uint64_t size, const tendril_options *options, tendril_buffer *b)
{
	static const tendril_options none;
	const tendril_options *o = options ? options : &none;
	memset(b, 0, sizeof *b);
	int status = check_mine(t);
	if (status != TENDRIL_OK)
		return status;
	bool plain = is_plain(size, o);
	status = create_once(t, size, o, plain, b);
	if (status == TENDRIL_DISCONNECTED && t->revive) /* the reply, or the spare, came with a connection that broke */
		status = create_once(t, size, o, plain, b);
	if (status == TENDRIL_OK && plain && spare_is_likely(t, size))
		set_flag(b, IS_PLAIN);
	return status;
}

static void end_buffer(tendril_buffer *b)
{
	tendril *t = owner(b->internal);
	free(b->internal[OF_META]);
	memset(b, 0, sizeof *b);
	unref_connection(t);
}

void tendril_abort(tendril_buffer *b)
{
	tendril *t = owner(b->internal);
	if (!t)
		return;
	if (!is_mine(t)) {
		memset(b, 0, sizeof *b);
		return;
	}
	if (has_flag(b, IS_PART)) {
		buffer_moved(b); /* sends nothing: the creator's seal fails when this connection ends */
		return;
	}
	leave(b, false);
	give_back(t, buffer_gen(b), &b->id, b->internal[OF_VIEW], true);
	end_buffer(b);
}

void buffer_moved(tendril_buffer *b)
{
	tendril *t = owner(b->internal);
	struct view *v = b->internal[OF_VIEW];
	leave(b, false);
	pthread_mutex_lock(&t->mu);
	if (v && !t->closed) { /* otherwise tendril_close has done this */
		v->filling--;
		(void)view_unref(t, v); /* false: this connection fills the segment */
	}
	pthread_mutex_unlock(&t->mu);
	end_buffer(b);
}

void object_moved(tendril_object *o)
{
	tendril *t = owner(o->internal);
	hold_release(t, o->internal[OF_HOLD], true);
	free((void *)o->meta);
	memset(o, 0, sizeof *o);
	unref_connection(t);
}

void buffer_unmap(tendril_buffer *b)
{
	tendril *t = owner(b->internal);
	pthread_mutex_lock(&t->mu);
	if (b->internal[OF_VIEW] && !t->closed)
		view_freeze(b->internal[OF_VIEW]);
	pthread_mutex_unlock(&t->mu);
	b->data = NULL;
}

int part_of_call(tendril *t, struct call *c, tendril_buffer *b)
{
	tendril_options o = {.meta = c->length ? c->bytes : NULL, .meta_size = c->length};
	o.lifetime = (enum tendril_lifetime)c->lifetime;
	int status = own_buffer(t, c->size, &o, c, b);
	set_flag(b, IS_PART);
	drop_call(c);
	if (status != TENDRIL_OK)
		tendril_abort(b);
	return status;
}

/* ---- seal ---- */

int send_with_spare(tendril *t, const tendril_buffer *b, const struct writer *last, struct call *c)
{
	uint8_t ahead[HEADER_BYTES + 16];
	struct writer w[2] = {*last, begin_frame(ahead, sizeof ahead, M_CREATE)};
	struct call *calls[2] = {c, &t->spare.call};
	bool spare = has_flag(b, IS_PLAIN) && reserve_spare(t, b->size);
	if (!spare)
		return send_calls(t, w, calls, 1);
	put_plain_create(&w[1], b->size);
	int status = send_calls(t, w, calls, 2);
	set_spare(t, status == TENDRIL_OK ? SPARE_THERE : SPARE_NONE);
	return status;
}

static int send_seal(tendril *t, const tendril_buffer *b, struct call *c)
{
	uint8_t raw[HEADER_BYTES + 17];
	struct writer w = begin_frame(raw, sizeof raw, M_SEAL);
	put_bytes(&w, &b->id, sizeof b->id);
	put_u8(&w, buffer_is_strict(b));
	init_bound_call(c, M_SEAL, buffer_gen(b));
	return send_with_spare(t, b, &w, c);
}

/* Turns a sealed buffer into an object. */
static int become_object(tendril *t, tendril_buffer *b, tendril_object *o)
{
	struct view *v = b->internal[OF_VIEW];
	struct place p = {v ? v->id : 0, v ? v->bytes : 0, (uint64_t)(uintptr_t)b->internal[OF_OFFSET]};
	struct hold *h;
	void *data;
	pthread_mutex_lock(&t->mu);
	int status = t->closed ? tdl_fail(TENDRIL_DISCONNECTED, "%s", t->why) : view_map(v, &p, b->size, false, &data);
	if (status == TENDRIL_OK)
		status = hold_new(t, buffer_gen(b), &b->id, v, &h);
	if (status == TENDRIL_OK && v)
		v->filling--;
	pthread_mutex_unlock(&t->mu);
	if (status != TENDRIL_OK) {
		tendril_abort(b); /* sends a Release, which is right for a sealed object */
		return status;
	}
	*o = (tendril_object){
		.id = b->id, .data = data, .size = b->size,
		.meta = b->internal[OF_META], .meta_size = (size_t)b->internal[OF_META_SIZE],
		.lifetime = (enum tendril_lifetime)(uintptr_t)b->internal[OF_LIFETIME],
	};
	o->internal[OF_CONNECTION] = t;
	o->internal[OF_HOLD] = h;
	memset(b, 0, sizeof *b); /* the object has its reference to the connection now */
	return TENDRIL_OK;
}

int check_sealable(const tendril_buffer *b)
{
	if (!owner(b->internal))
		return tdl_fail(TENDRIL_SEALED, "the buffer is sealed or aborted already");
	if (has_flag(b, IS_PART))
		return tdl_fail(TENDRIL_INVALID, "only the creator seals an object: call tendril_filled instead");
	return check_mine(owner(b->internal));
}

int buffer_sealed(tendril_buffer *b, tendril_object *out)
{
	if (out)
		return become_object(owner(b->internal), b, out);
	tendril_abort(b); /* sends a Release, which is right for a sealed object */
	return TENDRIL_OK;
}

int tendril_seal(tendril_buffer *b, tendril_object *out)
{
	struct call c;
	if (out)
		memset(out, 0, sizeof *out);
	int status = check_sealable(b);
	if (status != TENDRIL_OK)
		return status;
	tendril *t = owner(b->internal);
	if (buffer_is_strict(b))
		buffer_unmap(b);
	status = send_seal(t, b, &c);
	if (status != TENDRIL_OK)
		return status;
	buffer_shut(b); /* while the daemon seals */
	status = await_call(t, &c);
	if (status != TENDRIL_OK)
		return buffer_reopen(b, status);
	drop_call(&c);
	return buffer_sealed(b, out);
}

int tendril_put(tendril *t, const void *data, size_t size, const tendril_options *o, tendril_object *out)
{
	tendril_buffer b;
	if (out)
		memset(out, 0, sizeof *out);
	int status = tendril_create(t, size, o, &b);
	if (status != TENDRIL_OK)
		return status;
	set_flag(&b, IS_UNSEEN);
	if (size)
		memcpy(b.data, data, size);
	status = tendril_seal(&b, out);
	if (status != TENDRIL_OK)
		tendril_abort(&b);
	return status;
}

/* ---- get ---- */

static struct writer get_frame(uint8_t *raw, size_t cap, tendril_key key, uint32_t wait_ms)
{
	struct writer w = begin_frame(raw, cap, M_GET);
	put_key(&w, key);
	put_u32(&w, wait_ms);
	return w;
}

int object_of_frame(tendril *t, struct call *c, tendril_object *o)
{
	struct hold *h;
	void *data;
	pthread_mutex_lock(&t->mu);
	int status = view_map(c->view, &c->place, c->size, false, &data);
	if (status == TENDRIL_OK)
		status = hold_new(t, c->gen, &c->id, c->view, &h);
	if (status == TENDRIL_OK)
		index_remember(t, c->view);
	pthread_mutex_unlock(&t->mu);
	if (status != TENDRIL_OK)
		return status;
	atomic_fetch_add(&t->refs, 1);
	*o = (tendril_object){.id = c->id, .data = data, .size = c->size, .lifetime = (enum tendril_lifetime)c->lifetime};
	if (c->length) {
		o->meta = c->bytes;
		o->meta_size = c->length;
		c->bytes = NULL;
	}
	o->internal[OF_CONNECTION] = t;
	o->internal[OF_HOLD] = h;
	drop_call(c);
	return TENDRIL_OK;
}

int object_of_call(tendril *t, struct call *c, tendril_object *o)
{
	int status = object_of_frame(t, c, o);
	if (status != TENDRIL_OK) {
		give_back(t, c->gen, &c->id, c->view, false);
		drop_call(c);
	}
	return status;
}

static int check_key(tendril_key key)
{
	static const tendril_id none;
	if (key.name ? *key.name == 0 : memcmp(&key.id, &none, sizeof none) == 0)
		return tdl_fail(TENDRIL_INVALID, "the name is empty, or the id is zero");
	return TENDRIL_OK;
}

/* A get over the socket. */
static int ask_get(tendril *t, tendril_key key, int64_t wait_ms, tendril_object *out)
{
	uint8_t raw[SMALL_FRAME];
	struct call c;
	int status;
	struct writer w = get_frame(raw, sizeof raw, key, wire_wait(wait_ms));
	do {
		init_call(&c, M_GET);
		status = round_trip_full(t, &w, &c);
	} while (status == TENDRIL_TIMEOUT && wait_ms == TENDRIL_FOREVER);
	return status == TENDRIL_OK ? object_of_call(t, &c, out) : status;
}

int tendril_get(tendril *t, tendril_key key, int64_t wait_ms, tendril_object *out)
{
	memset(out, 0, sizeof *out);
	int status = check_mine(t);
	if (status == TENDRIL_OK)
		status = check_key(key);
	if (status == TENDRIL_OK) {
		if (index_get(t, &key, out))
			return TENDRIL_OK;
		index_open(t);
		give_up_spare(t);
		(void)sweep(t, false);
	}
	if (status != TENDRIL_OK)
		return status;
	status = ask_get(t, key, wait_ms, out);
	if (status == TENDRIL_DISCONNECTED && t->revive) /* the connection broke after the reply */
		status = ask_get(t, key, wait_ms, out);
	index_grow(t);
	return status;
}

int object_hold(tendril_object *o)
{
	uint8_t raw[SMALL_FRAME];
	tendril *t = owner(o->internal);
	struct call c;
	tendril_object held;
	if (!o->internal[OF_SLOT])
		return TENDRIL_OK;
	struct writer w = get_frame(raw, sizeof raw, tendril_by_id(o->id), 0);
	init_call(&c, M_GET);
	int status = round_trip_full(t, &w, &c);
	if (status == TENDRIL_OK)
		status = object_of_call(t, &c, &held);
	if (status != TENDRIL_OK)
		return status;
	tendril_release(o);
	*o = held;
	return TENDRIL_OK;
}

void tendril_release(tendril_object *o)
{
	tendril *t = owner(o->internal);
	if (!t)
		return;
	if (is_mine(t)) {
		if (o->internal[OF_SLOT])
			index_release(t, o);
		else
			hold_release(t, o->internal[OF_HOLD], false);
		free((void *)o->meta);
		unref_connection(t);
	}
	memset(o, 0, sizeof *o);
}

void tendril_populate(const tendril_object *o)
{
	if (!o->data)
		return;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t from = (uintptr_t)o->data & ~(uintptr_t)(page - 1);
	(void)madvise((void *)from, (size_t)((uintptr_t)o->data + o->size - from), MADV_POPULATE_READ); /* may fail */
}

/* ---- many ---- */

/* Waits until the objects of the first keys exist and are sealed. *took: how many keys fit into one frame. */
static int await_some(tendril *t, const tendril_key *keys, size_t count, uint32_t wait_ms, uint8_t *raw, size_t *took)
{
	struct writer w = begin_frame(raw, HEADER_BYTES + MAX_PAYLOAD, M_AWAIT_MANY);
	size_t n = 0;
	put_u32(&w, wait_ms);
	put_u16(&w, 0);
	for (; n < count && n < MAX_WANTED && w.n + SMALL_FRAME < w.cap; n++)
		put_key(&w, keys[n]);
	raw[HEADER_BYTES + 4] = (uint8_t)n;
	raw[HEADER_BYTES + 5] = (uint8_t)(n >> 8);
	*took = n;
	return simple(t, 0, &w);
}

static int await_many(tendril *t, const tendril_key *keys, size_t count, int64_t wait_ms)
{
	int64_t until = clock_ms() + wait_ms;
	uint8_t *raw = malloc(HEADER_BYTES + MAX_PAYLOAD);
	int status = raw ? TENDRIL_OK : tdl_fail(TENDRIL_NO_MEMORY, "no memory for a request");
	for (size_t at = 0, n; status == TENDRIL_OK && at < count; at += n) {
		int64_t left = wait_ms == TENDRIL_FOREVER ? TENDRIL_FOREVER : until - clock_ms();
		left = left == 0 || left < TENDRIL_FOREVER || (left < 0 && wait_ms != TENDRIL_FOREVER) ? 1 : left;
		do
			status = await_some(t, keys + at, count - at, wire_wait(left), raw, &n);
		while (status == TENDRIL_TIMEOUT && wait_ms == TENDRIL_FOREVER);
	}
	free(raw);
	return status;
}

/* Gets count ≤ GET_AHEAD objects in one round trip. After an error some of out may hold objects. */
static int get_batch(tendril *t, const tendril_key *keys, size_t count, uint8_t *raw, tendril_object *out)
{
	struct writer w[GET_AHEAD];
	struct call calls[GET_AHEAD], *list[GET_AHEAD];
	for (size_t i = 0; i < count; i++) {
		w[i] = get_frame(raw + i * SMALL_FRAME, SMALL_FRAME, keys[i], 0);
		init_call(&calls[i], M_GET);
		list[i] = &calls[i];
	}
	int status = send_calls(t, w, list, count);
	if (status != TENDRIL_OK)
		return status;
	char text[256] = "";
	for (size_t i = 0; i < count; i++) {
		int one = await_call(t, &calls[i]);
		one = one == TENDRIL_OK ? object_of_call(t, &calls[i], &out[i]) : one;
		/* FULL, QUOTA: it is on disk, and memory is short: tendril_get waits for memory. */
		if (one == TENDRIL_FULL || one == TENDRIL_QUOTA || (one == TENDRIL_DISCONNECTED && t->revive))
			one = tendril_get(t, keys[i], 0, &out[i]);
		if (one != TENDRIL_OK && status == TENDRIL_OK) {
			status = one;
			snprintf(text, sizeof text, "%s", tendril_message());
		}
	}
	return status == TENDRIL_OK ? status : tdl_fail(status, "%s", text);
}

int tendril_get_many(tendril *t, const tendril_key *keys, size_t count, int64_t wait_ms, tendril_object *out)
{
	if (count)
		memset(out, 0, count * sizeof *out);
	int status = check_mine(t);
	for (size_t i = 0; status == TENDRIL_OK && i < count; i++)
		status = check_key(keys[i]);
	if (status != TENDRIL_OK || count == 0)
		return status;
	size_t have = 0; /* how many came through the index */
	while (have < count && index_get(t, &keys[have], &out[have]))
		have++;
	if (have == count)
		return TENDRIL_OK;
	index_open(t);
	give_up_spare(t);
	uint8_t *raw = malloc(GET_AHEAD * SMALL_FRAME);
	status = raw ? status : tdl_fail(TENDRIL_NO_MEMORY, "no memory for requests");
	if (status == TENDRIL_OK && wait_ms != 0)
		status = await_many(t, keys + have, count - have, wait_ms);
	for (size_t at = have; status == TENDRIL_OK && at < count; at += GET_AHEAD) {
		size_t n = count - at < GET_AHEAD ? count - at : GET_AHEAD;
		status = get_batch(t, keys + at, n, raw, out + at);
	}
	free(raw);
	char text[256];
	snprintf(text, sizeof text, "%s", tendril_message());
	for (size_t i = 0; status != TENDRIL_OK && i < count; i++)
		tendril_release(&out[i]);
	return status == TENDRIL_OK ? status : tdl_fail(status, "%s", text);
}

int tendril_gone(const tendril_object *o)
{
	tendril *t = o->internal[OF_CONNECTION];
	if (!t || !is_mine(t))
		return 0;
	pthread_mutex_lock(&t->mu);
	bool gone = o->internal[OF_SLOT] ? index_is_gone(o) : ((struct hold *)o->internal[OF_HOLD])->state == HOLD_GONE;
	pthread_mutex_unlock(&t->mu);
	return gone;
}
