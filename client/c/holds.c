/* What the program holds: one record for each reference, so that the next connection can claim them all. The records
 * are the library's, because the program may move or copy its tendril_object. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static struct hold *take_record(tendril *t)
{
	if (!t->free_holds) {
		struct hold_block *b = calloc(1, sizeof *b);
		if (!b)
			return NULL;
		b->next = t->hold_blocks;
		t->hold_blocks = b;
		for (int i = 0; i < HOLD_BLOCK; i++) {
			b->holds[i].next = t->free_holds;
			t->free_holds = &b->holds[i];
		}
	}
	struct hold *h = t->free_holds;
	t->free_holds = h->next;
	return h;
}

void hold_enter(tendril *t, struct hold *h, const tendril_id *id, struct view *v)
{
	h->id = *id;
	h->view = v;
	h->state = HOLD_GOOD;
	h->prev = NULL;
	h->next = t->held;
	if (t->held)
		t->held->prev = h;
	t->held = h;
}

int hold_new(tendril *t, uint64_t gen, const tendril_id *id, struct view *v, struct hold **out)
{
	if (t->closed || gen != t->gen)
		return tdl_fail(TENDRIL_DISCONNECTED, "the object was lost with its connection (%s)", t->socket);
	*out = take_record(t);
	if (!*out)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for an object's record");
	hold_enter(t, *out, id, v);
	return TENDRIL_OK;
}

bool hold_end(tendril *t, struct hold *h)
{
	struct view *v = h->view;
	if (h->prev)
		h->prev->next = h->next;
	else
		t->held = h->next;
	if (h->next)
		h->next->prev = h->prev;
	h->state = HOLD_NONE;
	h->view = NULL;
	if (h->rescued) {
		(*h->rescued)--;
	} else {
		h->next = t->free_holds;
		t->free_holds = h;
	}
	return v && view_unref(t, v);
}

void hold_release(tendril *t, struct hold *h, bool quiet)
{
	pthread_mutex_lock(&t->send_mu);
	pthread_mutex_lock(&t->mu);
	tendril_id id = h->id;
	struct view *v = h->view;
	bool say = !quiet && !t->closed && t->status == TENDRIL_OK && h->state == HOLD_GOOD, large = false;
	if (h->state == HOLD_CLAIMED)
		h->state = HOLD_DROPPED; /* the thread that claims it ends it */
	else
		large = hold_end(t, h);
	pthread_mutex_unlock(&t->mu);
	if (say)
		say_released(t, &id, v, large);
	pthread_mutex_unlock(&t->send_mu);
}

void holds_free(tendril *t)
{
	for (struct hold_block *b = t->hold_blocks, *next; b; b = next) {
		next = b->next;
		free(b);
	}
}
