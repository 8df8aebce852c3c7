/* Streams, objects that several processes fill, and composites. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum {
	STREAM_READS = 1, STREAM_WRITES = 2,
	STREAM_FLAGS = TENDRIL_STREAM_NEW | TENDRIL_STREAM_EXISTING | TENDRIL_STREAM_DROP_OLDEST | TENDRIL_STREAM_KEEP,
	SMALL_FRAME = HEADER_BYTES + 64 + TENDRIL_MAX_NAME,
	COMPOSE_BYTES = HEADER_BYTES + MAX_PAYLOAD,
	UNPOP_BYTES = 8 + sizeof(tendril_id) + 8
};

struct tendril_stream {
	tendril *t; /* one reference */
	uint64_t number;
	uint64_t gen; /* the generation of the connection in which it is open */
	bool writes;
};

/* ---- opening and closing ---- */

static int open_stream(tendril *t, const char *name, const tendril_stream_options *o, bool writes, tendril_stream **out)
{
	static const tendril_stream_options none;
	uint8_t raw[SMALL_FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_STREAM_OPEN);
	struct call c;
	*out = NULL;
	o = o ? o : &none;
	int status = check_mine(t);
	if (status == TENDRIL_OK && (o->flags & ~(unsigned)STREAM_FLAGS))
		status = tdl_fail(TENDRIL_INVALID, "unknown stream flags in 0x%x", o->flags);
	if (status != TENDRIL_OK)
		return status;
	put_u8(&w, (uint8_t)(o->flags | (writes ? STREAM_WRITES : STREAM_READS)));
	put_u32(&w, o->frames);
	put_u64(&w, o->bytes);
	put_str16(&w, name);
	tendril_stream *s = calloc(1, sizeof *s);
	if (!s)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a stream");
	init_call(&c, M_STREAM_OPEN);
	status = round_trip(t, &w, &c);
	if (status == TENDRIL_OK) {
		if (c.length == 20)
			*s = (tendril_stream){t, load_u64(c.bytes), c.gen, writes};
		else
			status = tdl_fail(TENDRIL_PROTOCOL, "the reply to StreamOpen has %zu bytes", c.length);
		drop_call(&c);
	}
	if (status != TENDRIL_OK) {
		free(s);
		return status;
	}
	atomic_fetch_add(&t->refs, 1);
	*out = s;
	return TENDRIL_OK;
}

int tendril_stream_write(tendril *t, const char *name, const tendril_stream_options *o, tendril_stream **out)
{
	return open_stream(t, name, o, true, out);
}

int tendril_stream_read(tendril *t, const char *name, const tendril_stream_options *o, tendril_stream **out)
{
	return open_stream(t, name, o, false, out);
}

int tendril_stream_end(tendril_stream *s, int abort)
{
	uint8_t raw[HEADER_BYTES + 9];
	struct writer w = begin_frame(raw, sizeof raw, M_STREAM_END);
	put_u64(&w, s->number);
	put_u8(&w, abort != 0);
	return simple(s->t, s->gen, &w);
}

void tendril_stream_close(tendril_stream *s)
{
	if (!s)
		return;
	tendril *t = s->t;
	if (is_mine(t)) {
		uint8_t raw[HEADER_BYTES + 8];
		struct writer w = begin_frame(raw, sizeof raw, M_STREAM_CLOSE);
		put_u64(&w, s->number);
		/* Waits for the reply, so that whoever opens the stream next finds it closed here. If the connection broke,
		 * the daemon has closed it. */
		(void)simple(t, s->gen, &w);
		unref_connection(t);
	}
	free(s);
}

int tendril_stream_remove(tendril *t, const char *name)
{
	uint8_t raw[SMALL_FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_STREAM_REMOVE);
	put_key(&w, tendril_named(name));
	return simple(t, 0, &w);
}

/* ---- frames ---- */

static struct writer push_frame(uint8_t *raw, size_t cap, const tendril_stream *s, const tendril_id *id, bool seal,
                                int64_t wait_ms)
{
	struct writer w = begin_frame(raw, cap, M_STREAM_PUSH);
	put_u64(&w, s->number);
	put_bytes(&w, id, sizeof *id);
	put_u8(&w, seal);
	put_u32(&w, wire_wait(wait_ms));
	put_bytes32(&w, NULL, 0);
	return w;
}

static int check_writer(const tendril_stream *s, const void *owner)
{
	int status = check_mine(s->t);
	if (status != TENDRIL_OK)
		return status;
	if (!s->writes)
		return tdl_fail(TENDRIL_INVALID, "the stream was opened to read");
	if (!owner)
		return tdl_fail(TENDRIL_INVALID, "the frame was pushed, sealed, aborted or released already");
	if (owner != s->t)
		return tdl_fail(TENDRIL_INVALID, "the frame belongs to another connection than the stream");
	return TENDRIL_OK;
}

int tendril_stream_push(tendril_stream *s, tendril_buffer *b, int64_t wait_ms)
{
	uint8_t raw[HEADER_BYTES + 64];
	struct call c;
	int status = check_writer(s, buffer_connection(b));
	if (status == TENDRIL_OK && buffer_gen(b) != s->gen)
		status = tdl_fail(TENDRIL_DISCONNECTED,
			"the stream or the buffer was lost with its connection: begin again on the new one");
	if (status != TENDRIL_OK)
		return status;
	struct writer w = push_frame(raw, sizeof raw, s, &b->id, true, wait_ms);
	init_bound_call(&c, M_STREAM_PUSH, s->gen);
	status = send_with_spare(s->t, b, &w, &c);
	if (status != TENDRIL_OK)
		return status;
	buffer_shut(b); /* also if the push fails: it may only be pushed again unchanged */
	status = await_call(s->t, &c);
	if (status != TENDRIL_OK)
		return status;
	drop_call(&c);
	buffer_moved(b);
	return TENDRIL_OK;
}

int tendril_stream_push_object(tendril_stream *s, tendril_object *o, int64_t wait_ms)
{
	uint8_t raw[HEADER_BYTES + 64];
	int status = check_writer(s, object_connection(o));
	if (status == TENDRIL_OK)
		status = object_hold(o);
	if (status != TENDRIL_OK)
		return status;
	struct writer w = push_frame(raw, sizeof raw, s, &o->id, false, wait_ms);
	status = simple(s->t, s->gen, &w);
	if (status == TENDRIL_OK)
		object_moved(o);
	return status;
}

/* Puts a frame back that the program does not get. */
static void post_unpop(tendril_stream *s, const tendril_id *id, uint64_t number)
{
	uint8_t payload[UNPOP_BYTES];
	store_u64(payload, s->number);
	memcpy(payload + 8, id, sizeof *id);
	store_u64(payload + 8 + sizeof *id, number);
	post(s->t, M_STREAM_UNPOP, payload, sizeof payload);
}

int tendril_stream_pop(tendril_stream *s, int64_t wait_ms, tendril_object *out, uint64_t *number)
{
	uint8_t raw[HEADER_BYTES + 12];
	struct writer w = begin_frame(raw, sizeof raw, M_STREAM_POP);
	struct call c;
	memset(out, 0, sizeof *out);
	if (number)
		*number = 0;
	int status = check_mine(s->t);
	if (status == TENDRIL_OK && s->writes)
		status = tdl_fail(TENDRIL_INVALID, "the stream was opened to write");
	if (status != TENDRIL_OK)
		return status;
	put_u64(&w, s->number);
	put_u32(&w, wire_wait(wait_ms));
	init_bound_call(&c, M_STREAM_POP, s->gen);
	status = round_trip(s->t, &w, &c);
	if (status != TENDRIL_OK)
		return status;
	uint64_t frame = c.number;
	status = object_of_frame(s->t, &c, out);
	if (status != TENDRIL_OK) {
		post_unpop(s, &c.id, frame);
		give_back(s->t, 0, &c.id, c.view, false); /* of no generation: nothing is sent */
		drop_call(&c);
		return status;
	}
	if (number)
		*number = frame;
	post_ack(s->t, s->number, out, frame);
	return TENDRIL_OK;
}

int tendril_stream_unpop(tendril_stream *s, tendril_object *o, uint64_t number)
{
	uint8_t raw[HEADER_BYTES + 32];
	int status = check_mine(s->t);
	if (status == TENDRIL_OK && object_connection(o) != s->t)
		status = tdl_fail(TENDRIL_INVALID, "the frame belongs to another connection than the stream, or was released");
	if (status != TENDRIL_OK)
		return status;
	struct writer w = begin_frame(raw, sizeof raw, M_STREAM_UNPOP);
	put_u64(&w, s->number);
	put_bytes(&w, &o->id, sizeof o->id);
	put_u64(&w, number);
	status = simple(s->t, s->gen, &w);
	if (status == TENDRIL_OK)
		object_moved(o);
	return status;
}

/* ---- filling together ---- */

int tendril_fill(tendril *t, tendril_key key, tendril_buffer *out)
{
	uint8_t raw[SMALL_FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_FILL);
	struct call c;
	memset(out, 0, sizeof *out);
	put_key(&w, key);
	init_call(&c, M_FILL);
	int status = round_trip(t, &w, &c);
	return status == TENDRIL_OK ? part_of_call(t, &c, out) : status;
}

int tendril_filled(tendril_buffer *b)
{
	uint8_t raw[HEADER_BYTES + 16];
	tendril *t = buffer_connection(b);
	if (!t || !buffer_is_part(b))
		return tdl_fail(TENDRIL_INVALID, "the buffer is not one of tendril_fill, or is done already");
	int status = check_mine(t);
	if (status != TENDRIL_OK)
		return status;
	struct writer w = begin_frame(raw, sizeof raw, M_FILLED);
	put_bytes(&w, &b->id, sizeof b->id);
	buffer_unmap(b); /* before the daemon is told */
	uint64_t gen = buffer_gen(b);
	atomic_fetch_add(&t->refs, 1);
	buffer_moved(b);
	status = simple(t, gen, &w);
	unref_connection(t);
	return status;
}

int tendril_seal_filled(tendril_buffer *b, int64_t wait_ms, int despite, tendril_object *out)
{
	uint8_t raw[HEADER_BYTES + 22];
	struct writer w = begin_frame(raw, sizeof raw, M_SEAL_FILLED);
	if (out)
		memset(out, 0, sizeof *out);
	int status = check_sealable(b);
	if (status != TENDRIL_OK)
		return status;
	put_bytes(&w, &b->id, sizeof b->id);
	put_u8(&w, buffer_is_strict(b));
	put_u8(&w, despite != 0);
	put_u32(&w, wire_wait(wait_ms));
	if (buffer_is_strict(b))
		buffer_unmap(b);
	buffer_shut(b);
	status = simple(buffer_connection(b), buffer_gen(b), &w);
	return status == TENDRIL_OK ? buffer_sealed(b, out) : buffer_reopen(b, status);
}

/* ---- composites ---- */

static void put_composite(struct writer *w, const tendril_member *members, size_t count, const tendril_options *o)
{
	put_u8(w, (uint8_t)lifetime_of(o));
	put_str16(w, o->name);
	put_bytes32(w, o->meta, o->meta_size);
	put_u64(w, o->ttl_ms);
	put_labels(w, o->labels, o->label_count);
	put_u16(w, (uint16_t)count);
	for (size_t i = 0; i < count; i++) {
		put_str16(w, members[i].name);
		put_bytes(w, &members[i].id, sizeof members[i].id);
	}
	w->bad = w->bad || o->meta_size > TENDRIL_MAX_META || (unsigned)o->lifetime > TENDRIL_PERSISTED;
}

int tendril_compose(tendril *t, const tendril_member *members, size_t count, const tendril_options *options,
                    tendril_object *out)
{
	static const tendril_options none;
	const tendril_options *o = options ? options : &none;
	struct call c;
	tendril_object made;
	if (out)
		memset(out, 0, sizeof *out);
	if (count < 1 || count > TENDRIL_MAX_MEMBERS)
		return tdl_fail(TENDRIL_INVALID, "a composite of %zu members: want 1 to %d", count, TENDRIL_MAX_MEMBERS);
	uint8_t *raw = malloc(COMPOSE_BYTES);
	if (!raw)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a request");
	struct writer w = begin_frame(raw, COMPOSE_BYTES, M_COMPOSE);
	put_composite(&w, members, count, o);
	init_call(&c, M_COMPOSE);
	int status = round_trip(t, &w, &c);
	free(raw);
	if (status != TENDRIL_OK)
		return status;
	if (c.length == sizeof c.id)
		memcpy(&c.id, c.bytes, sizeof c.id);
	else
		status = tdl_fail(TENDRIL_PROTOCOL, "the reply to Compose has %zu bytes", c.length);
	c.length = 0;
	c.lifetime = (uint8_t)lifetime_of(o);
	if (status == TENDRIL_OK && o->meta_size)
		status = keep_bytes(&c, o->meta, o->meta_size);
	if (status != TENDRIL_OK) {
		drop_call(&c); /* the reference that came is released with the connection at the latest */
		return status;
	}
	status = object_of_call(t, &c, &made);
	if (status == TENDRIL_OK && out)
		*out = made;
	else
		tendril_release(&made);
	return status;
}
