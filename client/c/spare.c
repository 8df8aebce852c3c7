/* The spare: an object that a seal asked for, in the expectation that the program creates one like it. */
#include "internal.h"

enum { SPARE_ROW = 2, SPARE_ROW_MOST = 4096 };

bool take_spare(tendril *t, uint64_t size, struct call *out)
{
	pthread_mutex_lock(&t->mu);
	bool fits = t->spare_state == SPARE_THERE && t->spare.size == size;
	if (fits)
		t->spare_state = SPARE_TAKEN;
	pthread_mutex_unlock(&t->mu);
	if (!fits)
		return false;
	int status = await_call(t, &t->spare.call);
	if (status == TENDRIL_OK) {
		*out = t->spare.call;
		pthread_cond_init(&out->cond, NULL);
		pthread_cond_destroy(&t->spare.call.cond);
	}
	pthread_mutex_lock(&t->mu);
	t->spare_state = SPARE_NONE;
	t->spare.needed = SPARE_ROW;
	pthread_mutex_unlock(&t->mu);
	return status == TENDRIL_OK; /* otherwise the caller asks again, and reports that error */
}

void give_up_spare(tendril *t)
{
	struct call c;
	if (atomic_load_explicit(&t->spare_state, memory_order_relaxed) != SPARE_THERE || !is_mine(t))
		return;
	pthread_mutex_lock(&t->mu);
	uint64_t size = t->spare.size;
	unsigned needed = t->spare.needed;
	pthread_mutex_unlock(&t->mu);
	if (!take_spare(t, size, &c))
		return;
	pthread_mutex_lock(&t->mu);
	t->spare.row = 0; /* each spare that was not used doubles the row that makes the next one likely */
	t->spare.needed = needed < SPARE_ROW_MOST ? 2 * needed : needed;
	pthread_mutex_unlock(&t->mu);
	give_back(t, c.gen, &c.id, c.view, false);
	drop_call(&c);
}

bool spare_is_likely(tendril *t, uint64_t size)
{
	pthread_mutex_lock(&t->mu);
	if (t->spare.last_size != size) {
		t->spare.last_size = size;
		t->spare.row = 0;
	}
	if (t->spare.needed < SPARE_ROW)
		t->spare.needed = SPARE_ROW;
	bool likely = ++t->spare.row >= t->spare.needed && t->ahead;
	pthread_mutex_unlock(&t->mu);
	return likely;
}

bool reserve_spare(tendril *t, uint64_t size)
{
	pthread_mutex_lock(&t->mu);
	bool free = t->spare_state == SPARE_NONE && t->status == TENDRIL_OK;
	if (free) {
		t->spare_state = SPARE_TAKEN; /* no thread can take it before it is sent */
		t->spare.size = size;
		init_call(&t->spare.call, M_CREATE);
	}
	pthread_mutex_unlock(&t->mu);
	return free;
}

void set_spare(tendril *t, enum spare_state state)
{
	pthread_mutex_lock(&t->mu);
	t->spare_state = state;
	pthread_mutex_unlock(&t->mu);
}
