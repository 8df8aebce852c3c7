/* Watching: a connection of its own, on which the daemon sends one frame for each event. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { BEGIN_MS = 30000 }; /* as for a Hello: on a machine that is busy */

struct tendril_watch {
	tendril *t;
	uint64_t request;
	char *text; /* the last event, in which its strings lie */
};

/* Receives the next event. A frame's descriptors are closed, because no event has any. */
static int next_payload(tendril_watch *w, int64_t wait_ms, struct frame *f)
{
	*f = (struct frame){.fds = {-1, -1}};
	int status = check_mine(w->t);
	if (status == TENDRIL_OK)
		status = receive_frame(w->t->fd, &w->t->in, wait_ms, f);
	close_frame_fds(f);
	if (status != TENDRIL_OK)
		return status;
	if (f->type == ERROR_FRAME) {
		struct reader r = {f->payload, f->payload + f->length, false};
		int code = take_u16(&r);
		size_t n = take_u16(&r);
		const uint8_t *text = take(&r, n);
		if (took_all(&r) && code)
			return tdl_fail_text(code, (const char *)text, n);
	}
	if (f->type != (M_WATCH | REPLY_BIT) || f->request != w->request)
		return tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a message of type 0x%x to a watch", (unsigned)f->type);
	return TENDRIL_OK;
}

static int begin(tendril_watch *w, const char *prefix)
{
	uint8_t raw[HEADER_BYTES + 2 + TENDRIL_MAX_NAME];
	struct writer m = begin_frame(raw, sizeof raw, M_WATCH);
	struct frame f;
	size_t sent;
	put_str16(&m, prefix);
	if (m.bad)
		return tdl_fail(TENDRIL_INVALID, "the prefix has more than %d bytes", TENDRIL_MAX_NAME);
	w->request = ++w->t->next;
	raw[0] = (uint8_t)(m.n - HEADER_BYTES);
	raw[1] = (uint8_t)((m.n - HEADER_BYTES) >> 8);
	store_u64(raw + 8, w->request);
	if (!send_all(w->t->fd, raw, m.n, 0, &sent))
		return tdl_fail(TENDRIL_DISCONNECTED, "cannot write to the daemon");
	int status = next_payload(w, BEGIN_MS, &f);
	if (status == TENDRIL_OK && f.length)
		status = tdl_fail(TENDRIL_PROTOCOL, "the daemon did not confirm the watch");
	return status;
}

int tendril_watch_open(const tendril_connect_options *o, const char *prefix, tendril_watch **out)
{
	*out = NULL;
	tendril_watch *w = calloc(1, sizeof *w);
	if (!w)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a watch");
	int status = open_connection(o, &w->t);
	if (status == TENDRIL_OK)
		status = begin(w, prefix);
	if (status != TENDRIL_OK) {
		tendril_watch_close(w);
		return status;
	}
	*out = w;
	return TENDRIL_OK;
}

static int read_event(struct json *j, tendril_event *e)
{
	bool first = true;
	*e = (tendril_event){.event = "", .name = "", .at = ""};
	json_enter(j, '{');
	while (json_next(j, '{', &first)) {
		const char *key = json_key(j);
		if (strcmp(key, "event") == 0)
			e->event = json_string(j);
		else if (strcmp(key, "name") == 0)
			e->name = json_string(j);
		else if (strcmp(key, "at") == 0)
			e->at = json_string(j);
		else if (strcmp(key, "id") == 0)
			json_id(j, &e->id);
		else if (strcmp(key, "size_bytes") == 0)
			e->size = json_u64(j);
		else
			json_skip(j);
	}
	if (json_done(j))
		return TENDRIL_OK;
	memset(e, 0, sizeof *e);
	return tdl_fail(TENDRIL_PROTOCOL, "the daemon sent a malformed event");
}

int tendril_watch_next(tendril_watch *w, int64_t wait_ms, tendril_event *out)
{
	struct frame f;
	memset(out, 0, sizeof *out);
	int status = next_payload(w, wait_ms, &f);
	if (status != TENDRIL_OK)
		return status;
	char *text = realloc(w->text, (size_t)f.length + 1);
	if (!text)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for an event");
	w->text = text;
	memcpy(text, f.payload, f.length);
	text[f.length] = 0;
	struct json j = {text, text + f.length, false, 0};
	return read_event(&j, out);
}

int tendril_watch_fd(const tendril_watch *w) { return w->t->fd; }

void tendril_watch_close(tendril_watch *w)
{
	if (!w)
		return;
	free(w->text);
	tendril_close(w->t);
	free(w);
}
