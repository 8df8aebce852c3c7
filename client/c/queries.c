/* Names, changes, lists and descriptions. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum {
	FRAME = HEADER_BYTES + 64 + 2 * TENDRIL_MAX_NAME + TENDRIL_MAX_LABELS * 2 * (TENDRIL_MAX_NAME + 2),
	READ_BYTES = 1 << 20
};

/* ---- requests with an empty reply ---- */

int tendril_delete(tendril *t, tendril_key key)
{
	uint8_t raw[FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_DELETE);
	put_key(&w, key);
	return simple(t, 0, &w);
}

int tendril_bind(tendril *t, const tendril_id *id, const char *name, int replace)
{
	uint8_t raw[FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_BIND);
	put_bytes(&w, id, sizeof *id);
	put_str16(&w, name);
	put_u8(&w, replace != 0);
	return simple(t, 0, &w);
}

int tendril_rename(tendril *t, const char *from, const char *to, int replace)
{
	uint8_t raw[FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_RENAME);
	put_str16(&w, from);
	put_str16(&w, to);
	put_u8(&w, replace != 0);
	return simple(t, 0, &w);
}

int tendril_update(tendril *t, tendril_key key, unsigned what, const tendril_options *options)
{
	static const tendril_options none;
	const tendril_options *o = options ? options : &none;
	uint8_t raw[FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_UPDATE);
	put_key(&w, key);
	put_u8(&w, (uint8_t)what);
	put_u64(&w, what & TENDRIL_SET_TTL ? o->ttl_ms : 0);
	put_labels(&w, o->labels, what & TENDRIL_SET_LABELS ? o->label_count : 0);
	if (what > UINT8_MAX)
		return tdl_fail(TENDRIL_INVALID, "unknown bits 0x%x of enum tendril_change_bits", what);
	return simple(t, 0, &w);
}

static int grant(tendril *t, tendril_key key, bool revoke, const char *to)
{
	uint8_t raw[FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_GRANT);
	put_key(&w, key);
	put_u8(&w, revoke);
	put_str16(&w, to);
	return simple(t, 0, &w);
}

int tendril_share(tendril *t, tendril_key key, const char *to) { return grant(t, key, false, to); }
int tendril_unshare(tendril *t, tendril_key key, const char *to) { return grant(t, key, true, to); }

/* ---- bytes and checksums ---- */

int tendril_read(tendril *t, tendril_key key, uint64_t offset, void *to, size_t size)
{
	uint8_t raw[FRAME];
	int status = check_mine(t);
	give_up_spare(t);
	for (size_t at = 0; status == TENDRIL_OK && (at < size || size == 0);) {
		size_t n = size - at < READ_BYTES ? size - at : READ_BYTES;
		struct writer w = begin_frame(raw, sizeof raw, M_READ_RANGE);
		struct call c;
		init_call(&c, M_READ_RANGE);
		put_key(&w, key);
		put_u64(&w, offset + at);
		put_u32(&w, (uint32_t)n);
		c.into = size ? (uint8_t *)to + at : raw;
		c.into_cap = n;
		status = round_trip(t, &w, &c);
		if (status != TENDRIL_OK)
			return status;
		if (c.length != n)
			status = tdl_fail(TENDRIL_PROTOCOL, "the daemon sent %zu bytes of an object instead of %zu", c.length, n);
		drop_call(&c);
		at += n;
		if (size == 0)
			break;
	}
	return status;
}

int tendril_checksum(tendril *t, tendril_key key, uint64_t *out)
{
	uint8_t raw[FRAME], sum[8];
	struct writer w = begin_frame(raw, sizeof raw, M_CHECKSUM);
	struct call c;
	*out = 0;
	give_up_spare(t);
	init_call(&c, M_CHECKSUM);
	put_key(&w, key);
	c.into = sum;
	c.into_cap = sizeof sum;
	int status = round_trip(t, &w, &c);
	if (status != TENDRIL_OK)
		return status;
	if (c.length == sizeof sum)
		*out = load_u64(sum);
	else
		status = tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a checksum of %zu bytes", c.length);
	drop_call(&c);
	return status;
}

/* ---- descriptions ---- */

/* tendril_stat and tendril_list return infos, which lie in one of these. */
struct listing {
	char *text;           /* the reply, in which the strings lie */
	tendril_label *pool;  /* all labels */
	size_t pool_n, pool_cap;
	tendril_member *parts; /* all members */
	size_t parts_n, parts_cap;
	size_t n, cap;
	tendril_info infos[];
};

static struct listing *grow(struct listing *l)
{
	if (l && l->n < l->cap)
		return l;
	size_t cap = l ? 2 * l->cap : 1;
	struct listing *larger = realloc(l, sizeof *l + cap * sizeof(tendril_info));
	if (!larger)
		return NULL;
	if (!l)
		memset(larger, 0, sizeof *larger);
	larger->cap = cap;
	return larger;
}

static void free_listing(struct listing *l)
{
	if (!l)
		return;
	free(l->text);
	free(l->pool);
	free(l->parts);
	free(l);
}

void tendril_info_free(tendril_info *info)
{
	if (info)
		free_listing((struct listing *)((char *)info - offsetof(struct listing, infos)));
}

static void read_labels(struct json *j, struct listing *l, tendril_info *i)
{
	bool first = true;
	if (!json_enter(j, '{'))
		return;
	while (json_next(j, '{', &first)) {
		if (l->pool_n == l->pool_cap) {
			size_t cap = l->pool_cap ? 2 * l->pool_cap : 16;
			tendril_label *larger = realloc(l->pool, cap * sizeof *larger);
			if (!larger) {
				j->bad = true;
				return;
			}
			l->pool = larger;
			l->pool_cap = cap;
		}
		tendril_label *label = &l->pool[l->pool_n];
		label->key = json_key(j);
		label->value = json_string(j);
		l->pool_n++;
		i->label_count++;
	}
}

static tendril_member *another_member(struct listing *l)
{
	if (l->parts_n == l->parts_cap) {
		size_t cap = l->parts_cap ? 2 * l->parts_cap : 16;
		tendril_member *larger = realloc(l->parts, cap * sizeof *larger);
		if (!larger)
			return NULL;
		l->parts = larger;
		l->parts_cap = cap;
	}
	tendril_member *m = &l->parts[l->parts_n++];
	*m = (tendril_member){.name = ""};
	return m;
}

static void read_members(struct json *j, struct listing *l, tendril_info *i)
{
	bool first = true;
	if (!json_enter(j, '['))
		return;
	while (json_next(j, '[', &first)) {
		tendril_member *m = another_member(l);
		bool inner = true;
		if (!m || !json_enter(j, '{')) {
			j->bad = true;
			return;
		}
		i->member_count++;
		while (json_next(j, '{', &inner)) {
			const char *key = json_key(j);
			if (strcmp(key, "name") == 0)
				m->name = json_string(j);
			else if (strcmp(key, "id") == 0)
				json_id(j, &m->id);
			else
				json_skip(j);
		}
	}
}

/* The end of a value that is kept as it is written. It gets its NUL once the character there was read. */
struct raw_end {
	char *end;
};

static void read_member(struct json *j, const char *key, struct listing *l, tendril_info *i, struct raw_end *meta)
{
	const struct { const char *key; const char **to; } texts[] = {
		{"name", &i->name}, {"kind", &i->kind}, {"class", &i->lifetime}, {"state", &i->state}, {"tenant", &i->tenant},
		{"creator", &i->creator}, {"created", &i->created}, {"sealed", &i->sealed}, {"expires", &i->expires},
		{"fault", &i->fault},
	};
	const struct { const char *key; uint8_t *to; } flags[] = {
		{"strict", &i->strict}, {"pinned", &i->pinned}, {"on_disk", &i->on_disk}, {"checksum", &i->checksum},
	};
	for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
		if (strcmp(key, texts[k].key) == 0) {
			*texts[k].to = json_string(j);
			return;
		}
	for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
		if (strcmp(key, flags[k].key) == 0) {
			*flags[k].to = json_bool(j);
			return;
		}
	if (strcmp(key, "id") == 0) {
		json_id(j, &i->id);
	} else if (strcmp(key, "size_bytes") == 0) {
		i->size = json_u64(j);
	} else if (strcmp(key, "refs") == 0) {
		i->refs = json_u64(j);
	} else if (strcmp(key, "creator_pid") == 0) {
		i->creator_pid = (uint32_t)json_u64(j);
	} else if (strcmp(key, "labels") == 0 && i->label_count == 0) {
		read_labels(j, l, i);
	} else if (strcmp(key, "members") == 0 && i->member_count == 0) {
		read_members(j, l, i);
	} else if (strcmp(key, "meta") == 0) {
		size_t n;
		i->meta = json_raw(j, &n);
		meta->end = (char *)i->meta + n;
	} else {
		json_skip(j); /* a newer daemon's field */
	}
}

static bool read_info(struct json *j, struct listing *l)
{
	tendril_info *i = &l->infos[l->n];
	struct raw_end meta = {NULL};
	bool first = true;
	*i = (tendril_info){.name = "", .kind = "", .lifetime = "", .state = "", .tenant = "", .creator = "", .created = "",
	                    .sealed = "", .expires = "", .meta = "", .fault = ""};
	if (!json_enter(j, '{'))
		return false;
	while (json_next(j, '{', &first))
		read_member(j, json_key(j), l, i, &meta);
	if (meta.end && !j->bad)
		*meta.end = 0; /* a comma or bracket that was read */
	l->n++;
	return !j->bad;
}

/* Sets the pointers into the pools. While the pools grow, infos have only the counts. */
static void place_pools(struct listing *l)
{
	const tendril_label *at = l->pool;
	const tendril_member *part = l->parts;
	for (size_t i = 0; i < l->n; i++) {
		l->infos[i].labels = l->infos[i].label_count ? at : NULL;
		at += l->infos[i].label_count;
		l->infos[i].members = l->infos[i].member_count ? part : NULL;
		part += l->infos[i].member_count;
	}
}

/* Reads the descriptions in a call's reply, and takes over its bytes. A List's reply is one array or several. */
static int read_listing(struct call *c, bool many, struct listing **out)
{
	struct listing *l = grow(NULL);
	struct json j = {(char *)c->bytes, (char *)c->bytes + c->length, false, 0};
	if (!l)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a list");
	l->text = (char *)c->bytes;
	c->bytes = NULL;
	if (!many)
		read_info(&j, l);
	for (bool more = many; more; more = !j.bad && !json_done(&j)) {
		bool first = true;
		json_enter(&j, '[');
		while (json_next(&j, '[', &first)) {
			struct listing *larger = grow(l);
			if (!larger) {
				free_listing(l);
				return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a list");
			}
			l = larger;
			read_info(&j, l);
		}
	}
	if (!json_done(&j)) {
		free_listing(l);
		return tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a malformed description of an object");
	}
	place_pools(l);
	*out = l;
	return TENDRIL_OK;
}

/* A round trip whose reply is text. */
static int ask_text(tendril *t, struct writer *w, struct call *c)
{
	give_up_spare(t);
	int status = round_trip(t, w, c);
	if (status == TENDRIL_OK && !c->bytes) {
		drop_call(c);
		status = tdl_fail(TENDRIL_PROTOCOL, "the daemon sent an empty reply");
	}
	return status;
}

static int ask_listing(tendril *t, struct writer *w, enum message kind, bool many, tendril_info **out, size_t *count)
{
	struct listing *l = NULL;
	struct call c;
	init_call(&c, kind);
	int status = ask_text(t, w, &c);
	if (status != TENDRIL_OK)
		return status;
	status = read_listing(&c, many, &l);
	drop_call(&c);
	if (status != TENDRIL_OK)
		return status;
	*out = l->infos;
	if (count)
		*count = l->n;
	return TENDRIL_OK;
}

int tendril_stat(tendril *t, tendril_key key, tendril_info **out)
{
	uint8_t raw[FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_STAT);
	*out = NULL;
	put_key(&w, key);
	return ask_listing(t, &w, M_STAT, false, out, NULL);
}

/* ---- listings, page by page ---- */

enum { MAX_CURSOR = 1024 };

/* A list's conditions: the payload of ListWhere, and the first part of that of ListPage. */
static void put_query(struct writer *w, const tendril_query *query)
{
	static const tendril_query everything;
	const tendril_query *q = query ? query : &everything;
	put_str16(w, q->prefix);
	put_u8(w, q->all != 0);
	put_u8(w, q->shared != 0);
	put_labels(w, q->labels, q->label_count);
}

/* Asks for a page. Its JSON is c->bytes, and next gets the cursor of the next page, "" after the last. The caller drops
 * the call. */
static int ask_page(tendril *t, const tendril_query *query, uint32_t limit, const char *cursor, struct call *c,
                    char next[MAX_CURSOR + 1])
{
	uint8_t raw[FRAME + MAX_CURSOR];
	struct writer w = begin_frame(raw, sizeof raw, M_LIST_PAGE);
	init_call(c, M_LIST_PAGE);
	put_query(&w, query);
	put_u32(&w, limit);
	put_str16(&w, cursor);
	int status = ask_text(t, &w, c);
	if (status != TENDRIL_OK)
		return status;
	struct reader r = {c->bytes, c->bytes + c->length, false};
	uint16_t letters = take_u16(&r);
	const uint8_t *text = take(&r, letters);
	uint32_t n = take_u32(&r);
	const uint8_t *items = take(&r, n);
	if (!took_all(&r) || letters > MAX_CURSOR || memchr(text, 0, letters) ||
	    (letters && strlen(cursor) == letters && memcmp(cursor, text, letters) == 0)) {
		size_t had = c->length;
		drop_call(c);
		return tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a malformed page of %zu bytes, or the same cursor again",
			had);
	}
	memcpy(next, text, letters);
	next[letters] = 0;
	memmove(c->bytes, items, n);
	c->bytes[n] = 0; /* there is room, because the items were not at the front */
	c->length = n;
	return TENDRIL_OK;
}

/* Appends a page's JSON to text. */
static int join_page(struct call *text, struct call *page)
{
	uint8_t *joined = realloc(text->bytes, text->length + page->length + 1);
	if (!joined)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a list of %zu bytes", text->length + page->length);
	memcpy(joined + text->length, page->bytes, page->length + 1);
	text->bytes = joined;
	text->length += page->length;
	return TENDRIL_OK;
}

static int give_listing(struct call *c, tendril_info **out, size_t *count)
{
	struct listing *l = NULL;
	int status = read_listing(c, true, &l);
	if (status == TENDRIL_OK) {
		*out = l->infos;
		*count = l->n;
	}
	return status;
}

int tendril_list(tendril *t, const tendril_query *query, tendril_info **out, size_t *count)
{
	char cursor[MAX_CURSOR + 1] = "", next[MAX_CURSOR + 1];
	struct call all = {0}, page;
	int status;
	*out = NULL;
	*count = 0;
	do {
		status = ask_page(t, query, 0, cursor, &page, next);
		if (status == TENDRIL_UNSUPPORTED && !*cursor) { /* a daemon of an earlier release */
			uint8_t raw[FRAME];
			struct writer w = begin_frame(raw, sizeof raw, M_LIST_WHERE);
			put_query(&w, query);
			return ask_listing(t, &w, M_LIST_WHERE, true, out, count);
		}
		if (status == TENDRIL_OK) {
			status = join_page(&all, &page);
			drop_call(&page);
			strcpy(cursor, next);
		}
	} while (status == TENDRIL_OK && *cursor);
	if (status == TENDRIL_OK)
		status = give_listing(&all, out, count);
	free(all.bytes);
	return status;
}

int tendril_list_page(tendril *t, const tendril_query *query, uint32_t limit, char **cursor, tendril_info **out,
                      size_t *count)
{
	char next[MAX_CURSOR + 1];
	struct call page;
	*out = NULL;
	*count = 0;
	if (*cursor && strlen(*cursor) > MAX_CURSOR)
		return tdl_fail(TENDRIL_INVALID, "the cursor has %zu bytes: pass on what the last call set, or NULL",
			strlen(*cursor));
	int status = ask_page(t, query, limit, *cursor ? *cursor : "", &page, next);
	if (status != TENDRIL_OK)
		return status;
	char *behind = *next ? strdup(next) : NULL;
	if (*next && !behind)
		status = tdl_fail(TENDRIL_NO_MEMORY, "no memory for a cursor");
	if (status == TENDRIL_OK)
		status = give_listing(&page, out, count);
	drop_call(&page);
	if (status != TENDRIL_OK) {
		free(behind);
		return status;
	}
	free(*cursor);
	*cursor = behind;
	return TENDRIL_OK;
}

static int answer_text(tendril *t, struct writer *w, enum message kind, char **out)
{
	struct call c;
	*out = NULL;
	init_call(&c, kind);
	int status = ask_text(t, w, &c);
	if (status != TENDRIL_OK)
		return status;
	*out = (char *)c.bytes;
	c.bytes = NULL;
	drop_call(&c);
	return TENDRIL_OK;
}

int tendril_status_json(tendril *t, char **out)
{
	uint8_t raw[FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_STATUS);
	return answer_text(t, &w, M_STATUS, out);
}

int tendril_streams_json(tendril *t, const char *prefix, char **out)
{
	uint8_t raw[FRAME];
	struct writer w = begin_frame(raw, sizeof raw, M_STREAM_LIST);
	put_str16(&w, prefix);
	return answer_text(t, &w, M_STREAM_LIST, out);
}
