/* What a program sees when its daemon ends: one that takes over, one that is started after a crash, none. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "check.h"

static const char *const at = daemon_socket;

static tendril *dial(int index)
{
	tendril *t;
	/* While a daemon starts; after that time in vain calls would fail at once for a while. */
	OK(tendril_connect_with(&(tendril_connect_options){.socket = at, .index = index, .patience_ms = PATIENCE_MS}, &t));
	return t;
}

static tendril_id put_named(tendril *t, const char *name, const void *data, size_t n, tendril_object *out)
{
	tendril_object o;
	OK(tendril_put(t, data, n, &(tendril_options){.name = name}, &o));
	tendril_id id = o.id;
	if (out)
		*out = o;
	else
		tendril_release(&o);
	return id;
}

static void through_the_index(tendril *t, const char *name, tendril_object *o)
{
	for (int i = 0; i < LOOKS; i++) {
		OK(tendril_get(t, tendril_named(name), 0, o));
		if (tendril_through_index(o))
			return;
		tendril_release(o);
		pause_ms(5);
	}
	CHECK(!"the object comes through the index");
}

static uint64_t refs(tendril *t, tendril_id id)
{
	tendril_info *info;
	OK(tendril_stat(t, tendril_by_id(id), &info));
	uint64_t n = info->refs;
	tendril_info_free(info);
	return n;
}

/* A daemon gives back what one-way messages let go a moment later. */
static void await_not_found(tendril *t, tendril_id id)
{
	tendril_info *info;
	for (int i = 0; i < LOOKS; i++) {
		int status = tendril_stat(t, tendril_by_id(id), &info);
		if (status == TENDRIL_NOT_FOUND)
			return;
		OK(status);
		tendril_info_free(info);
		pause_ms(5);
	}
	CHECK(!"the object goes");
}

/* Objects without a name: they are there for as long as this process holds them. */
static void handed_over(int index)
{
	enum { HELD = 200 };
	static tendril_object held[HELD];
	tendril *t = dial(index), *other = dial(-1);
	tendril_object again, early, empty, large;
	tendril_daemon before, after;
	tendril_buffer b;
	char *data = malloc(70 << 20);
	memset(data, 'L', 70 << 20);
	tendril_about(t, &before);
	for (int i = 0; i < HELD; i++)
		OK(tendril_put(t, &i, sizeof i, NULL, &held[i]));
	OK(tendril_put(t, "early", 5, NULL, &early));
	OK(tendril_put(t, NULL, 0, NULL, &empty));
	OK(tendril_put(other, data, 70 << 20, &(tendril_options){.name = "large"}, NULL));
	OK(tendril_get(t, tendril_named("large"), 0, &large));
	OK(tendril_create(t, 4096, NULL, &b));
	memset(b.data, 1, b.size);
	hand_over();
	IS(TENDRIL_DISCONNECTED, tendril_alive(t));
	tendril_release(&early); /* the daemon of now has not heard of this process yet, and keeps it for a while */
	for (int i = 0; i < HELD; i++) {
		OK(tendril_get(t, tendril_by_id(held[i].id), 0, &again));
		CHECK(again.data == held[i].data && *(const int *)again.data == i && !tendril_gone(&held[i]));
		tendril_release(&again);
	}
	OK(tendril_alive(t));
	CHECK(refs(other, held[7].id) == 1 && !tendril_gone(&empty) && refs(other, empty.id) == 1);
	CHECK(!tendril_gone(&large) && ((const char *)large.data)[large.size - 1] == 'L');
	OK(tendril_get(t, tendril_named("large"), 0, &again));
	CHECK(again.data == large.data);
	tendril_release(&again);
	tendril_about(t, &after);
	CHECK(after.pid == (uint32_t)daemon_pid && before.pid != after.pid);
	CHECK(memcmp(before.incarnation, after.incarnation, 16) == 0);
	IS(TENDRIL_DISCONNECTED, tendril_seal(&b, NULL)); /* what was being filled has ended */
	tendril_abort(&b);
	tendril_id first = held[0].id;
	for (int i = 0; i < HELD; i++)
		tendril_release(&held[i]);
	await_not_found(other, first);
	tendril_release(&empty);
	tendril_release(&large);
	OK(tendril_delete(t, tendril_named("large")));
	free(data);
	tendril_close(other);
	tendril_close(t);
}

static void over_the_socket(void) { handed_over(-1); }
static void with_the_index(void) { handed_over(1); }

/* References that stand in slots alone, which the daemon that goes reads one last time. */
static void held_in_slots(void)
{
	enum { HELD = 20 };
	tendril *t = dial(1), *other = dial(-1);
	tendril_object held[HELD], again;
	for (int round = 0; round < 3; round++) {
		put_named(t, "slot", "in a slot", 9, NULL);
		for (int i = 0; i < HELD; i++)
			through_the_index(t, "slot", &held[i]);
		tendril_id id = held[0].id;
		if (round == 2)
			OK(tendril_delete(other, tendril_named("slot"))); /* the slots alone keep it, and no name finds it */
		hand_over();
		if (round < 2) {
			OK(tendril_get(t, tendril_named("slot"), 0, &again));
			CHECK(again.data == held[0].data);
			tendril_release(&again);
			CHECK(refs(t, id) == HELD);
			through_the_index(t, "slot", &again); /* the new daemon's index */
			tendril_release(&again);
			OK(tendril_delete(other, tendril_named("slot")));
		} else {
			IS(TENDRIL_DISCONNECTED, tendril_sweep(t)); /* makes no connection */
			IS(TENDRIL_NOT_FOUND, tendril_get(t, tendril_named("slot"), 0, &again));
		}
		for (int i = 0; i < 50; i++) { /* in the memory of the object, if that were free */
			put_named(other, "filler", "otherwise", 9, NULL);
			OK(tendril_delete(other, tendril_named("filler")));
		}
		for (int i = 0; i < HELD; i++) {
			CHECK(memcmp(held[i].data, "in a slot", 9) == 0 && tendril_gone(&held[i]) == (round == 2));
			tendril_release(&held[i]);
		}
		await_not_found(other, id);
	}
	tendril_close(other);
	tendril_close(t);
}

enum { THREADS = 4 };

struct load {
	tendril *t;
	atomic_bool stop;
	atomic_int rounds, lost;
};

/* Calls that alter nothing twice: none may fail. A put may be told that it is not known whether it took place. */
static void *work(void *arg)
{
	struct load *l = arg;
	unsigned n = 0;
	while (!atomic_load(&l->stop)) {
		tendril_object a, b, many[2];
		tendril_info *info;
		tendril_key keys[2] = {tendril_named("kept"), tendril_named("kept")};
		OK(tendril_get(l->t, keys[0], PATIENCE_MS, &a));
		OK(tendril_get_many(l->t, keys, 2, PATIENCE_MS, many));
		CHECK(memcmp(a.data, "kept", 4) == 0 && many[0].data == a.data);
		OK(tendril_stat(l->t, keys[0], &info));
		tendril_info_free(info);
		char bytes[4];
		OK(tendril_read(l->t, keys[0], 0, bytes, 4));
		int status = tendril_put(l->t, &n, sizeof n, NULL, &b);
		CHECK(status == TENDRIL_OK || status == TENDRIL_DISCONNECTED);
		CHECK(status != TENDRIL_OK || *(const unsigned *)b.data == n);
		atomic_fetch_add(&l->lost, status != TENDRIL_OK);
		tendril_release(&b);
		tendril_release(&many[1]);
		tendril_release(&many[0]);
		tendril_release(&a);
		atomic_fetch_add(&l->rounds, 1);
		n++;
	}
	return NULL;
}

/* Handovers while several threads are at work on one connection. */
static void under_load(int index)
{
	tendril *t = dial(index);
	struct load l = {.t = t};
	pthread_t thread[THREADS];
	tendril_object kept;
	put_named(t, "kept", "kept", 4, &kept);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, work, &l) == 0);
	for (int i = 0; i < 3; i++) {
		int before = atomic_load(&l.rounds);
		hand_over();
		while (atomic_load(&l.rounds) < before + 100)
			pause_ms(1);
	}
	atomic_store(&l.stop, true);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	CHECK(atomic_load(&l.lost) <= 10 * THREADS && memcmp(kept.data, "kept", 4) == 0 && refs(t, kept.id) >= 1);
	tendril_release(&kept);
	OK(tendril_delete(t, tendril_named("kept")));
	tendril_close(t);
}

static void load_over_the_socket(void) { under_load(-1); }
static void load_with_the_index(void) { under_load(1); }

/* kill -9: what is mapped stays readable; what is on disk is held again. */
static void crash(int index)
{
	tendril *t = dial(index), *sharp;
	tendril_object held, slotted, kept, again;
	tendril_buffer b;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = at, .no_reconnect = 1}, &sharp));
	OK(tendril_put(t, "held", 4, NULL, &held));
	OK(tendril_put(t, "kept", 4, &(tendril_options){.name = "k", .lifetime = TENDRIL_PERSISTED}, &kept));
	OK(tendril_create(t, 100, NULL, &b));
	OK(tendril_get(t, tendril_by_id(held.id), 0, &slotted));
	kill_daemon();
	CHECK(memcmp(held.data, "held", 4) == 0 && !tendril_gone(&held));
	spawn_daemon(NULL);
	CHECK(refs(t, kept.id) == 1); /* waits for the new daemon, and claims */
	CHECK(tendril_gone(&held) && tendril_gone(&slotted) && !tendril_gone(&kept));
	CHECK(memcmp(held.data, "held", 4) == 0 && memcmp(slotted.data, "held", 4) == 0);
	CHECK(memcmp(kept.data, "kept", 4) == 0);
	IS(TENDRIL_NOT_FOUND, tendril_get(t, tendril_by_id(held.id), 0, &again));
	OK(tendril_get(t, tendril_named("k"), 0, &again));
	CHECK(memcmp(again.data, "kept", 4) == 0);
	tendril_release(&again);
	IS(TENDRIL_DISCONNECTED, tendril_seal(&b, NULL));
	tendril_abort(&b);
	tendril_release(&held);
	tendril_release(&slotted);
	CHECK(refs(t, kept.id) == 1);
	tendril_id id = kept.id;
	tendril_release(&kept);
	for (int i = 0; i < LOOKS && refs(t, id) > 0; i++)
		pause_ms(5);
	CHECK(refs(t, id) == 0);
	IS(TENDRIL_DISCONNECTED, tendril_delete(sharp, tendril_named("k")));
	IS(TENDRIL_DISCONNECTED, tendril_delete(sharp, tendril_named("k")));
	tendril_close(sharp);
	OK(tendril_delete(t, tendril_named("k")));
	tendril_close(t);
}

static void crash_over_the_socket(void) { crash(-1); }
static void crash_with_the_index(void) { crash(1); }

struct waiter {
	tendril *t;
	tendril_stream *s;
	int get, pop;
	tendril_object got;
};

static void *wait_get(void *arg)
{
	struct waiter *w = arg;
	w->get = tendril_get(w->t, tendril_named("awaited"), PATIENCE_MS, &w->got);
	return NULL;
}

static void *wait_pop(void *arg)
{
	struct waiter *w = arg;
	tendril_object o;
	w->pop = tendril_stream_pop(w->s, TENDRIL_FOREVER, &o, NULL);
	return NULL;
}

/* Calls that wait when the daemon is killed, a stream and a watch. */
static void waiting(void)
{
	tendril *t = dial(-1);
	struct waiter w = {.t = t};
	tendril_stream *out;
	tendril_buffer b;
	tendril_object o;
	tendril_watch *watch;
	tendril_event e;
	pthread_t get, pop;
	OK(tendril_stream_write(t, "frames", NULL, &out));
	OK(tendril_stream_read(t, "frames", NULL, &w.s));
	OK(tendril_create(t, 100, NULL, &b));
	OK(tendril_watch_open(&(tendril_connect_options){.socket = at}, "", &watch));
	CHECK(pthread_create(&get, NULL, wait_get, &w) == 0 && pthread_create(&pop, NULL, wait_pop, &w) == 0);
	pause_ms(100);
	kill_daemon();
	IS(TENDRIL_DISCONNECTED, tendril_watch_next(watch, TENDRIL_FOREVER, &e));
	tendril_watch_close(watch);
	pthread_join(pop, NULL);
	CHECK(w.pop == TENDRIL_DISCONNECTED);
	spawn_daemon(NULL);
	put_named(t, "awaited", "at last", 7, NULL);
	pthread_join(get, NULL); /* asked again, of the new daemon */
	OK(w.get);
	CHECK(memcmp(w.got.data, "at last", 7) == 0);
	tendril_release(&w.got);
	IS(TENDRIL_DISCONNECTED, tendril_stream_pop(w.s, 0, &o, NULL));
	CHECK(strstr(tendril_message(), "begin again"));
	IS(TENDRIL_DISCONNECTED, tendril_stream_push(out, &b, 0));
	IS(TENDRIL_DISCONNECTED, tendril_stream_end(out, 0));
	tendril_abort(&b);
	tendril_stream_close(out);
	tendril_stream_close(w.s);
	OK(tendril_stream_write(t, "frames", NULL, &out));
	OK(tendril_stream_read(t, "frames", NULL, &w.s));
	OK(tendril_create(t, 100, NULL, &b));
	OK(tendril_stream_push(out, &b, 0));
	OK(tendril_stream_pop(w.s, 0, &o, NULL));
	tendril_release(&o);
	tendril_stream_close(out);
	tendril_stream_close(w.s);
	OK(tendril_delete(t, tendril_named("awaited")));
	tendril_close(t);
}

/* The daemon goes for good. */
static void daemon_dies(void)
{
	tendril *t;
	tendril_object held, o;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = at, .patience_ms = 50}, &t));
	OK(tendril_put(t, "held", 4, NULL, &held));
	kill_daemon();
	for (int i = 0; i < 5; i++)
		IS(TENDRIL_DISCONNECTED, tendril_get(t, tendril_by_id(held.id), 0, &o));
	CHECK(o.data == NULL && memcmp(held.data, "held", 4) == 0 && !tendril_gone(&held));
	tendril_release(&held);
	tendril_close(t);
	stop_daemon();
}

int main(void)
{
	static const struct test tests[] = {
		{"over_the_socket", over_the_socket}, {"with_the_index", with_the_index}, {"held_in_slots", held_in_slots},
		{"load_over_the_socket", load_over_the_socket}, {"load_with_the_index", load_with_the_index},
		{"crash_over_the_socket", crash_over_the_socket}, {"crash_with_the_index", crash_with_the_index}, {"waiting", waiting},
	};
	return run_tests("test_reconnect", tests, sizeof tests / sizeof *tests, daemon_dies);
}
