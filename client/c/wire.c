/* Encoding and decoding, byte by byte. Every length is checked before it is used. */
#include <string.h>

#include "internal.h"

void put_bytes(struct writer *w, const void *p, size_t n)
{
	if (w->bad || n > w->cap - w->n) {
		w->bad = true;
		return;
	}
	if (n)
		memcpy(w->to + w->n, p, n);
	w->n += n;
}

void put_u8(struct writer *w, uint8_t v) { put_bytes(w, &v, 1); }

void put_u16(struct writer *w, uint16_t v)
{
	put_bytes(w, (uint8_t[]){(uint8_t)v, (uint8_t)(v >> 8)}, 2);
}

void put_u32(struct writer *w, uint32_t v)
{
	put_bytes(w, (uint8_t[]){(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)}, 4);
}

void store_u64(uint8_t *p, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

uint64_t load_u64(const uint8_t *p)
{
	uint64_t v = 0;
	for (int i = 0; i < 8; i++)
		v |= (uint64_t)p[i] << 8 * i;
	return v;
}

void put_u64(struct writer *w, uint64_t v)
{
	uint8_t raw[8];
	store_u64(raw, v);
	put_bytes(w, raw, 8);
}

void put_str16(struct writer *w, const char *s)
{
	size_t n = s ? strlen(s) : 0;
	if (n > TENDRIL_MAX_NAME) {
		w->bad = true;
		return;
	}
	put_u16(w, (uint16_t)n);
	put_bytes(w, s, n);
}

void put_bytes32(struct writer *w, const void *p, size_t n)
{
	if (n > MAX_PAYLOAD) {
		w->bad = true;
		return;
	}
	put_u32(w, (uint32_t)n);
	put_bytes(w, p, n);
}

void put_key(struct writer *w, tendril_key key)
{
	static const tendril_id none;
	put_bytes(w, key.name ? &none : &key.id, sizeof none);
	put_str16(w, key.name);
}

void put_labels(struct writer *w, const tendril_label *labels, size_t count)
{
	const tendril_label *sorted[TENDRIL_MAX_LABELS];
	if (count > TENDRIL_MAX_LABELS) {
		w->bad = true;
		return;
	}
	for (size_t i = 0; i < count; i++) {
		size_t at = i;
		if (!labels[i].key) {
			w->bad = true;
			return;
		}
		for (; at > 0 && strcmp(sorted[at - 1]->key, labels[i].key) > 0; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = &labels[i];
	}
	put_u16(w, (uint16_t)count);
	for (size_t i = 0; i < count; i++) {
		put_str16(w, sorted[i]->key);
		put_str16(w, sorted[i]->value);
	}
}

uint32_t wire_wait(int64_t ms)
{
	return ms == TENDRIL_FOREVER ? UINT32_MAX : ms < 0 ? 0 : ms >= UINT32_MAX ? UINT32_MAX - 1 : (uint32_t)ms;
}

struct writer begin_frame(uint8_t *to, size_t cap, enum message kind)
{
	struct writer w = {.to = to, .cap = cap};
	put_u32(&w, 0); /* sending enters the length and the request number */
	put_u16(&w, (uint16_t)kind);
	put_u16(&w, 0);
	put_u64(&w, 0);
	return w;
}

const uint8_t *take(struct reader *r, size_t n)
{
	if (r->bad || n > (size_t)(r->end - r->at)) {
		r->bad = true;
		return NULL;
	}
	const uint8_t *p = r->at;
	r->at += n;
	return p;
}

uint8_t take_u8(struct reader *r)
{
	const uint8_t *p = take(r, 1);
	return p ? p[0] : 0;
}

uint16_t take_u16(struct reader *r)
{
	const uint8_t *p = take(r, 2);
	return p ? (uint16_t)(p[0] | p[1] << 8) : 0;
}

uint32_t take_u32(struct reader *r)
{
	const uint8_t *p = take(r, 4);
	return p ? (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24 : 0;
}

uint64_t take_u64(struct reader *r)
{
	const uint8_t *p = take(r, 8);
	return p ? load_u64(p) : 0;
}

bool took_all(const struct reader *r) { return !r->bad && r->at == r->end; }
