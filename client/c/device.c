/* Objects in the memory of GPUs. No driver is called here: the program imports the descriptors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum {
	SMALL_FRAME = HEADER_BYTES + 64 + TENDRIL_MAX_NAME,
	CREATE_FRAME = SMALL_FRAME + TENDRIL_MAX_META + TENDRIL_MAX_LABELS * 2 * (TENDRIL_MAX_NAME + 2)
};

/* A buffer's internal fields, after the connection. An object's are those of index.c: a hold. */
enum { OF_META = OF_CONNECTION + 1, OF_META_SIZE, OF_LIFETIME, OF_GEN };

static tendril *owner(void *const *internal) { return internal[OF_CONNECTION]; }
static uint64_t gen_of(const tendril_device_buffer *b) { return (uint64_t)(uintptr_t)b->internal[OF_GEN]; }

static void no_buffer(tendril_device_buffer *b)
{
	memset(b, 0, sizeof *b);
	b->fd = -1;
}

static void no_object(tendril_device_object *o)
{
	memset(o, 0, sizeof *o);
	o->fd = -1;
}

/* Takes the descriptor that came with a reply; -1: none did. */
static int take_fd(struct call *c)
{
	if (c->nfds == 0)
		return -1;
	c->nfds = 0;
	return c->fds[0];
}

/* ---- which GPUs there are ---- */

static int read_gpu(struct json *j, tendril_gpu *g)
{
	bool first = true;
	tendril_id id;
	memset(g, 0, sizeof *g);
	if (!json_enter(j, '{'))
		return false;
	while (json_next(j, '{', &first)) {
		const char *key = json_key(j);
		if (strcmp(key, "uuid") == 0 && json_id(j, &id))
			memcpy(&g->device, &id, sizeof g->device);
		else if (strcmp(key, "uuid") == 0)
			return false;
		else if (strcmp(key, "index") == 0)
			g->index = (int)json_u64(j);
		else if (strcmp(key, "memory_bytes") == 0)
			g->bytes = json_u64(j);
		else if (strcmp(key, "shares") == 0)
			g->shares = json_bool(j);
		else if (strcmp(key, "name") == 0)
			snprintf(g->name, sizeof g->name, "%s", json_string(j));
		else
			json_skip(j);
	}
	return !j->bad;
}

static int read_gpus(struct call *c, tendril_gpu **out, size_t *count)
{
	struct json j = {(char *)c->bytes, (char *)c->bytes + c->length, false, 0};
	bool first = true;
	size_t cap = 0;
	json_enter(&j, '[');
	while (json_next(&j, '[', &first)) {
		if (*count == cap) {
			cap = cap ? 2 * cap : 8;
			tendril_gpu *larger = realloc(*out, cap * sizeof **out);
			if (!larger)
				return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a list of %zu GPUs", cap);
			*out = larger;
		}
		if (!read_gpu(&j, &(*out)[*count]))
			break;
		++*count;
	}
	if (!json_done(&j))
		return tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a malformed list of GPUs");
	return TENDRIL_OK;
}

int tendril_gpus(tendril *t, tendril_gpu **out, size_t *count)
{
	uint8_t raw[HEADER_BYTES];
	struct writer w = begin_frame(raw, sizeof raw, M_GPUS);
	struct call c;
	*out = NULL;
	*count = 0;
	init_call(&c, M_GPUS);
	int status = round_trip(t, &w, &c);
	if (status != TENDRIL_OK)
		return status;
	status = c.bytes ? read_gpus(&c, out, count)
	                 : tdl_fail(TENDRIL_PROTOCOL, "the daemon sent an empty list of GPUs");
	drop_call(&c);
	if (status != TENDRIL_OK) {
		free(*out);
		*out = NULL;
		*count = 0;
	}
	return status;
}

static int not_a_device(const char *text)
{
	return tdl_fail(TENDRIL_INVALID, "device \"%.60s\": want cuda:N, or a UUID of 32 hexadecimal digits", text);
}

static int nth_gpu(tendril *t, const char *text, tendril_device *out)
{
	tendril_gpu *list;
	size_t count;
	char *end;
	unsigned long n = strtoul(text + 5, &end, 10);
	if (text[5] < '0' || text[5] > '9' || *end != 0)
		return not_a_device(text);
	int status = tendril_gpus(t, &list, &count);
	if (status != TENDRIL_OK)
		return status;
	status = TENDRIL_NO_DEVICE;
	for (size_t i = 0; i < count; i++)
		if (list[i].index >= 0 && (unsigned long)list[i].index == n) {
			*out = list[i].device;
			status = TENDRIL_OK;
		}
	free(list);
	if (status != TENDRIL_OK)
		tdl_fail(status, "\"%.60s\": this node has %zu GPU%s, the first is cuda:0", text, count, count == 1 ? "" : "s");
	return status;
}

int tendril_find_gpu(tendril *t, const char *text, tendril_device *out)
{
	char digits[33];
	size_t n = 0;
	tendril_id id;
	memset(out, 0, sizeof *out);
	if (strncmp(text, "cuda:", 5) == 0)
		return nth_gpu(t, text, out);
	for (const char *p = strncmp(text, "GPU-", 4) ? text : text + 4; *p && n < sizeof digits; p++)
		if (*p != '-')
			digits[n++] = *p;
	digits[n < sizeof digits ? n : sizeof digits - 1] = 0;
	if (n != 32 || tendril_id_parse(digits, &id) != TENDRIL_OK)
		return not_a_device(text);
	memcpy(out, &id, sizeof *out);
	return TENDRIL_OK;
}

/* ---- create ---- */

static struct writer create_frame(uint8_t *raw, const tendril_device *d, uint64_t size, const tendril_options *o)
{
	struct writer w = begin_frame(raw, CREATE_FRAME, M_CREATE_DEVICE);
	put_u64(&w, size);
	put_bytes(&w, d, sizeof *d);
	put_u8(&w, (uint8_t)lifetime_of(o));
	put_str16(&w, o->name);
	put_bytes32(&w, o->meta, o->meta_size);
	put_u64(&w, o->ttl_ms);
	put_labels(&w, o->labels, o->label_count);
	w.bad = w.bad || o->meta_size > TENDRIL_MAX_META || (unsigned)o->lifetime > TENDRIL_PERSISTED;
	return w;
}

static int ask_create(tendril *t, const tendril_device *d, uint64_t size, const tendril_options *o, struct call *c)
{
	uint8_t *raw = malloc(CREATE_FRAME);
	if (!raw)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a request");
	struct writer w = create_frame(raw, d, size, o);
	init_call(c, M_CREATE_DEVICE);
	int status = round_trip(t, &w, c);
	free(raw);
	return status;
}

int tendril_create_device(tendril *t, const tendril_device *d, uint64_t size, const tendril_options *options,
                          tendril_device_buffer *b)
{
	static const tendril_options none;
	const tendril_options *o = options ? options : &none;
	struct call c;
	no_buffer(b);
	int status = check_mine(t);
	if (status == TENDRIL_OK && (o->own || o->strict || o->shared || o->checksum))
		status = tdl_fail(TENDRIL_UNSUPPORTED, "own, strict, shared or checksum for an object in the memory of a device");
	if (status != TENDRIL_OK)
		return status;
	give_up_spare(t);
	status = ask_create(t, d, size, o, &c);
	if (status != TENDRIL_OK)
		return status;
	atomic_fetch_add(&t->refs, 1);
	b->id = c.id;
	b->device = c.device;
	b->size = c.size;
	b->bytes = c.place.bytes;
	b->fd = take_fd(&c);
	b->internal[OF_CONNECTION] = t;
	b->internal[OF_LIFETIME] = (void *)(uintptr_t)c.lifetime;
	b->internal[OF_GEN] = (void *)(uintptr_t)c.gen;
	drop_call(&c);
	status = copy_meta(o, &b->internal[OF_META], &b->internal[OF_META_SIZE]);
	if (status != TENDRIL_OK)
		tendril_abort_device(b);
	return status;
}

static void end_buffer(tendril_device_buffer *b)
{
	tendril *t = owner(b->internal);
	if (b->fd >= 0)
		close(b->fd);
	free(b->internal[OF_META]);
	no_buffer(b);
	unref_connection(t);
}

void tendril_abort_device(tendril_device_buffer *b)
{
	tendril *t = owner(b->internal);
	if (!t)
		return;
	if (!is_mine(t)) {
		if (b->fd >= 0)
			close(b->fd);
		no_buffer(b);
		return;
	}
	give_back(t, gen_of(b), &b->id, NULL, true);
	end_buffer(b);
}

/* ---- seal ---- */

/* Turns a sealed buffer into an object. */
static int become_object(tendril *t, tendril_device_buffer *b, tendril_device_object *o)
{
	struct hold *h;
	pthread_mutex_lock(&t->mu);
	int status = hold_new(t, gen_of(b), &b->id, NULL, &h);
	pthread_mutex_unlock(&t->mu);
	if (status != TENDRIL_OK) {
		tendril_abort_device(b); /* sends a Release, which is right for a sealed object */
		return status;
	}
	*o = (tendril_device_object){
		.id = b->id, .device = b->device, .size = b->size, .bytes = b->bytes, .fd = b->fd,
		.meta = b->internal[OF_META], .meta_size = (size_t)b->internal[OF_META_SIZE],
		.lifetime = (enum tendril_lifetime)(uintptr_t)b->internal[OF_LIFETIME],
	};
	o->internal[OF_CONNECTION] = t;
	o->internal[OF_HOLD] = h;
	no_buffer(b); /* the object has its descriptor and its reference to the connection now */
	return TENDRIL_OK;
}

/* What seals a buffer: as it was created, or with other metadata. The memory is raw. */
static struct writer seal_frame(uint8_t *raw, size_t cap, const tendril_device_buffer *b, const void *meta, size_t size)
{
	struct writer w = begin_frame(raw, cap, meta ? M_SEAL_DEVICE : M_SEAL);
	put_bytes(&w, &b->id, sizeof b->id);
	if (meta)
		put_bytes32(&w, meta, size);
	else
		put_u8(&w, 0);
	return w;
}

int tendril_seal_device(tendril_device_buffer *b, tendril_device_object *out)
{
	return tendril_seal_device_with(b, NULL, 0, out);
}

int tendril_seal_device_with(tendril_device_buffer *b, const void *meta, size_t meta_size, tendril_device_object *out)
{
	tendril *t = owner(b->internal);
	if (out)
		no_object(out);
	if (!t)
		return tdl_fail(TENDRIL_SEALED, "the buffer is sealed or aborted already");
	int status = check_mine(t);
	if (status == TENDRIL_OK && meta_size > TENDRIL_MAX_META)
		status = tdl_fail(TENDRIL_INVALID, "%zu bytes of metadata, at most %d", meta_size, TENDRIL_MAX_META);
	if (status != TENDRIL_OK)
		return status;
	size_t cap = HEADER_BYTES + 17 + 4 + meta_size;
	uint8_t *raw = malloc(cap);
	if (!raw)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a request");
	struct writer w = seal_frame(raw, cap, b, meta_size ? meta : NULL, meta_size);
	status = simple(t, gen_of(b), &w);
	free(raw);
	if (status == TENDRIL_OK && meta_size) {
		free(b->internal[OF_META]);
		b->internal[OF_META] = NULL;
		b->internal[OF_META_SIZE] = NULL;
		(void)copy_meta(&(tendril_options){.meta = meta, .meta_size = meta_size}, &b->internal[OF_META],
		                &b->internal[OF_META_SIZE]); /* the store has it */
	}
	if (status != TENDRIL_OK)
		return status;
	if (out)
		return become_object(t, b, out);
	tendril_abort_device(b); /* sends a Release, which is right for a sealed object */
	return TENDRIL_OK;
}

/* ---- get ---- */

static int await_object(tendril *t, tendril_key key, int64_t wait_ms)
{
	uint8_t raw[SMALL_FRAME];
	int status;
	do {
		struct writer w = begin_frame(raw, sizeof raw, M_AWAIT_MANY);
		put_u32(&w, wire_wait(wait_ms));
		put_u16(&w, 1);
		put_key(&w, key);
		status = simple(t, 0, &w);
	} while (status == TENDRIL_TIMEOUT && wait_ms == TENDRIL_FOREVER);
	return status;
}

static int ask_get(tendril *t, tendril_key key, struct call *c)
{
	uint8_t raw[SMALL_FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_GET_DEVICE);
	put_key(&w, key);
	init_call(c, M_GET_DEVICE);
	return round_trip(t, &w, c);
}

static int object_of_reply(tendril *t, struct call *c, tendril_device_object *o)
{
	struct hold *h;
	pthread_mutex_lock(&t->mu);
	int status = hold_new(t, c->gen, &c->id, NULL, &h);
	pthread_mutex_unlock(&t->mu);
	if (status != TENDRIL_OK) {
		give_back(t, c->gen, &c->id, NULL, false);
		drop_call(c);
		return status;
	}
	atomic_fetch_add(&t->refs, 1);
	*o = (tendril_device_object){.id = c->id, .device = c->device, .size = c->size, .bytes = c->place.bytes,
	                             .fd = take_fd(c), .lifetime = (enum tendril_lifetime)c->lifetime};
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

static int get_once(tendril *t, tendril_key key, tendril_device_object *out)
{
	struct call c;
	int status = ask_get(t, key, &c);
	return status == TENDRIL_OK ? object_of_reply(t, &c, out) : status;
}

int tendril_get_device(tendril *t, tendril_key key, int64_t wait_ms, tendril_device_object *out)
{
	no_object(out);
	int status = check_mine(t);
	if (status != TENDRIL_OK)
		return status;
	give_up_spare(t);
	status = get_once(t, key, out);
	if (wait_ms != 0 && (status == TENDRIL_NOT_FOUND || status == TENDRIL_NOT_SEALED)) {
		status = await_object(t, key, wait_ms);
		if (status == TENDRIL_OK)
			status = get_once(t, key, out);
	}
	if (status == TENDRIL_DISCONNECTED && t->revive) /* the connection broke after the reply */
		status = get_once(t, key, out);
	return status;
}

void tendril_release_device(tendril_device_object *o)
{
	tendril *t = owner(o->internal);
	if (!t)
		return;
	if (o->fd >= 0)
		close(o->fd);
	if (is_mine(t)) {
		hold_release(t, o->internal[OF_HOLD], false);
		free((void *)o->meta);
		unref_connection(t);
	}
	no_object(o);
}

/* ---- a copy for programs that open CUDA handles ---- */

/* Its internal fields, after the connection: the number takes 8 bytes. */
enum { OF_COPY_GEN = OF_CONNECTION + 1, OF_NUMBER };

static int copy_of_reply(const struct call *c, tendril_ipc_copy *o)
{
	struct reader r = {c->bytes, c->bytes + c->length, false};
	const uint8_t *number = take(&r, 8), *device = take(&r, sizeof o->device);
	o->size = take_u64(&r);
	o->bytes = take_u64(&r);
	const uint8_t *handle = take(&r, sizeof o->handle);
	if (!took_all(&r) || o->size == 0 || o->size > o->bytes)
		return tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a malformed CUDA handle of %zu bytes", c->length);
	memcpy(&o->device, device, sizeof o->device);
	memcpy(o->handle, handle, sizeof o->handle);
	o->internal[OF_COPY_GEN] = (void *)(uintptr_t)c->gen;
	memcpy(&o->internal[OF_NUMBER], number, 8);
	return TENDRIL_OK;
}

int tendril_ipc_handle(tendril *t, tendril_key key, tendril_ipc_copy *out)
{
	uint8_t raw[SMALL_FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_IPC_HANDLE);
	struct call c;
	memset(out, 0, sizeof *out);
	put_key(&w, key);
	init_call(&c, M_IPC_HANDLE);
	int status = round_trip(t, &w, &c);
	if (status != TENDRIL_OK)
		return status;
	status = copy_of_reply(&c, out);
	drop_call(&c);
	if (status != TENDRIL_OK) {
		memset(out, 0, sizeof *out);
		return status;
	}
	atomic_fetch_add(&t->refs, 1);
	out->internal[OF_CONNECTION] = t;
	return TENDRIL_OK;
}

int tendril_release_ipc(tendril_ipc_copy *o)
{
	uint8_t raw[HEADER_BYTES + 8];
	struct writer w = begin_frame(raw, sizeof raw, M_CLOSE_IPC);
	tendril *t = owner(o->internal);
	if (!t)
		return TENDRIL_OK;
	int status = check_mine(t);
	if (status == TENDRIL_OK) {
		put_bytes(&w, &o->internal[OF_NUMBER], 8);
		status = simple(t, (uint64_t)(uintptr_t)o->internal[OF_COPY_GEN], &w);
		unref_connection(t);
	}
	memset(o, 0, sizeof *o);
	return status;
}

int tendril_copy(tendril *t, const tendril_id *to, uint64_t to_offset, tendril_key from, uint64_t from_offset,
                 uint64_t size)
{
	uint8_t raw[SMALL_FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_COPY_OBJECT);
	put_bytes(&w, to, sizeof *to);
	put_u64(&w, to_offset);
	put_key(&w, from);
	put_u64(&w, from_offset);
	put_u64(&w, size);
	return simple(t, 0, &w);
}
