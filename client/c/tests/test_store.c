/* The library against a real daemon. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "check.h"

static const char *const at = daemon_socket;

static tendril *dial(void)
{
	tendril *t;
	OK(tendril_connect(at, &t));
	return t;
}

/* A daemon gives back what one-way messages let go a moment later. */
static void await_gone(tendril *t, tendril_key key)
{
	tendril_info *info;
	for (int i = 0; i < LOOKS; i++) {
		int status = tendril_stat(t, key, &info);
		if (status == TENDRIL_NOT_FOUND)
			return;
		OK(status);
		tendril_info_free(info);
		pause_ms(5);
	}
	CHECK(!"the object is gone");
}

static void put_and_get(void)
{
	static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 1 << 20, 20 << 20};
	tendril *writer = dial(), *reader = dial();
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		size_t n = sizes[i];
		char *data = malloc(n + 1), name[16];
		memset(data, (int)('a' + i), n);
		snprintf(name, sizeof name, "p%zu", n);
		OK(tendril_put(writer, data, n, &(tendril_options){.name = name, .meta = "{\"n\":1}", .meta_size = 7}, NULL));
		tendril_object o;
		OK(tendril_get(reader, tendril_named(name), 0, &o));
		CHECK(o.size == n && o.lifetime == TENDRIL_NAMED && o.meta_size == 7 && strcmp(o.meta, "{\"n\":1}") == 0);
		CHECK(n == 0 ? o.data == NULL : memcmp(o.data, data, n) == 0);
		tendril_object again;
		OK(tendril_get(reader, tendril_by_id(o.id), 0, &again));
		CHECK(again.data == o.data);
		tendril_release(&again);
		tendril_release(&o);
		tendril_release(&o);
		CHECK(o.data == NULL);
		OK(tendril_delete(writer, tendril_named(name)));
		IS(TENDRIL_NOT_FOUND, tendril_get(reader, tendril_named(name), 0, &o));
		CHECK(strstr(tendril_message(), name));
		free(data);
	}
	tendril_close(reader);
	tendril_close(writer);
}

/* Small objects of one size in a row, which are asked for ahead, beside everything else. */
static void many_small(void)
{
	tendril *t = dial(), *other = dial();
	tendril_id ids[64];
	tendril_object kept[64];
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 64; i++) {
			tendril_buffer b;
			OK(tendril_create(t, round == 1 && i % 7 == 0 ? 100 : 256, NULL, &b));
			memset(b.data, i, b.size);
			ids[i] = b.id;
			OK(tendril_seal(&b, &kept[i]));
			IS(TENDRIL_SEALED, tendril_seal(&b, NULL));
			tendril_abort(&b);
			for (int j = 0; j < i; j++)
				CHECK(memcmp(&ids[i], &ids[j], sizeof ids[i]) != 0);
		}
		for (int i = 0; i < 64; i++) {
			tendril_object o;
			OK(tendril_get(round == 2 ? t : other, tendril_by_id(ids[i]), 0, &o));
			CHECK(((const char *)o.data)[0] == i && ((const char *)o.data)[o.size - 1] == i);
			tendril_release(&o);
			tendril_release(&kept[i]);
		}
		await_gone(other, tendril_by_id(ids[63]));
	}
	tendril_info *infos;
	size_t n;
	OK(tendril_list(t, &(tendril_query){.all = 1}, &infos, &n));
	CHECK(n == 0);
	tendril_info_free(infos);
	tendril_close(other);
	tendril_close(t);
}

static void *put_later(void *name)
{
	tendril *t = dial();
	pause_ms(100);
	OK(tendril_put(t, "late", 4, &(tendril_options){.name = name}, NULL));
	tendril_close(t);
	return NULL;
}

static void waiting(void)
{
	tendril *t = dial();
	tendril_object o, many[3];
	pthread_t thread;
	IS(TENDRIL_TIMEOUT, tendril_get(t, tendril_named("nothing"), 30, &o));
	CHECK(pthread_create(&thread, NULL, put_later, "late") == 0);
	OK(tendril_get(t, tendril_named("late"), TENDRIL_FOREVER, &o));
	CHECK(memcmp(o.data, "late", 4) == 0);
	tendril_release(&o);
	pthread_join(thread, NULL);
	tendril_key keys[3] = {tendril_named("late"), tendril_named("later"), tendril_named("late")};
	IS(TENDRIL_TIMEOUT, tendril_get_many(t, keys, 3, 30, many));
	IS(TENDRIL_NOT_FOUND, tendril_get_many(t, keys, 3, 0, many));
	CHECK(many[0].data == NULL);
	CHECK(pthread_create(&thread, NULL, put_later, "later") == 0);
	OK(tendril_get_many(t, keys, 3, PATIENCE_MS, many));
	CHECK(many[0].data == many[2].data && many[1].size == 4);
	for (int i = 0; i < 3; i++)
		tendril_release(&many[i]);
	pthread_join(thread, NULL);
	OK(tendril_delete(t, keys[0]));
	OK(tendril_delete(t, keys[1]));
	tendril_close(t);
}

static void batches(void)
{
	enum { N = 100 };
	static tendril_key keys[N];
	static tendril_object o[N];
	tendril *t = dial();
	for (int i = 0; i < N; i++) {
		OK(tendril_put(t, &i, sizeof i, NULL, &o[i]));
		keys[i] = tendril_by_id(o[i].id);
	}
	static tendril_object got[N];
	OK(tendril_get_many(t, keys, N, PATIENCE_MS, got));
	for (int i = 0; i < N; i++) {
		CHECK(*(const int *)got[i].data == i);
		tendril_release(&got[i]);
		tendril_release(&o[i]);
	}
	OK(tendril_get_many(t, NULL, 0, 0, NULL));
	tendril_close(t);
}

/* Seven objects on pages of three come once each, in the order in which they were made. */
static void list_in_pages(tendril *t)
{
	char name[16], *cursor = NULL;
	unsigned seen = 0, pages = 0;
	tendril_object o[7];
	for (unsigned i = 0; i < 7; i++) {
		snprintf(name, sizeof name, "page%u", i);
		OK(tendril_put(t, "x", 1, &(tendril_options){.name = name}, &o[i]));
	}
	do {
		tendril_info *info;
		size_t n;
		OK(tendril_list_page(t, &(tendril_query){.prefix = "page"}, 3, &cursor, &info, &n));
		CHECK(n <= 3);
		for (size_t i = 0; i < n; i++) {
			snprintf(name, sizeof name, "page%u", seen++);
			CHECK(strcmp(info[i].name, name) == 0);
		}
		tendril_info_free(info);
		pages++;
	} while (cursor);
	CHECK(seen == 7 && pages >= 3);
	for (unsigned i = 0; i < 7; i++)
		tendril_release(&o[i]);
	cursor = strdup("nowhere");
	tendril_info *info;
	size_t n;
	IS(TENDRIL_INVALID, tendril_list_page(t, NULL, 0, &cursor, &info, &n));
	free(cursor);
}

/* A name that no object can have is said to be too long, by the daemon or before. */
static void long_names(void)
{
	static char name[2 * TENDRIL_MAX_NAME];
	tendril *t = dial();
	tendril_object o;
	tendril_info *info;
	static const size_t lengths[] = {256, 300, TENDRIL_MAX_NAME, TENDRIL_MAX_NAME + 1};
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		memset(name, 'n', lengths[i]);
		name[lengths[i]] = 0;
		IS(TENDRIL_INVALID, tendril_get(t, tendril_named(name), 0, &o));
		CHECK(strstr(tendril_message(), "255"));
		IS(TENDRIL_INVALID, tendril_stat(t, tendril_named(name), &info));
		CHECK(strstr(tendril_message(), "255"));
		IS(TENDRIL_INVALID, tendril_delete(t, tendril_named(name)));
		CHECK(strstr(tendril_message(), "255"));
	}
	tendril_close(t);
}

static void names_and_changes(void)
{
	tendril *t = dial();
	tendril_object o;
	tendril_info *info;
	size_t n;
	const tendril_label labels[] = {{"kind", "map"}, {"area", "n\"ö\n"}};
	tendril_options labelled = {.labels = labels, .label_count = 2, .ttl_ms = 600000, .lifetime = TENDRIL_TTL};
	OK(tendril_put(t, "abc", 3, &labelled, &o));
	OK(tendril_bind(t, &o.id, "first", 0));
	OK(tendril_rename(t, "first", "second", 0));
	IS(TENDRIL_NOT_FOUND, tendril_stat(t, tendril_named("first"), &info));
	OK(tendril_stat(t, tendril_named("second"), &info));
	CHECK(info->size == 3 && info->label_count == 2);
	CHECK(strcmp(info->labels[0].key, "area") == 0 && strcmp(info->labels[0].value, "n\"ö\n") == 0);
	CHECK(*info->expires && strcmp(info->state, "sealed") == 0 && (pid_t)info->creator_pid == getpid());
	tendril_info_free(info);
	OK(tendril_list(t, &(tendril_query){.prefix = "sec", .labels = labels, .label_count = 1}, &info, &n));
	CHECK(n == 1 && memcmp(&info->id, &o.id, sizeof o.id) == 0);
	tendril_info_free(info);
	OK(tendril_update(t, tendril_named("second"), TENDRIL_PIN | TENDRIL_SET_TTL | TENDRIL_SET_LABELS,
	                  &(tendril_options){.labels = labels, .label_count = 1}));
	OK(tendril_list(t, &(tendril_query){.labels = labels + 1, .label_count = 1}, &info, &n));
	CHECK(n == 0);
	tendril_info_free(info);
	list_in_pages(t);
	OK(tendril_update(t, tendril_named("second"), TENDRIL_UNPIN | TENDRIL_PERSIST, NULL));
	OK(tendril_stat(t, tendril_named("second"), &info));
	CHECK(!info->pinned && info->on_disk && strcmp(info->lifetime, "persisted") == 0 && !*info->expires);
	tendril_info_free(info);
	OK(tendril_share(t, tendril_by_id(o.id), "all"));
	OK(tendril_unshare(t, tendril_by_id(o.id), "all"));
	IS(TENDRIL_INVALID, tendril_share(t, tendril_by_id(o.id), "everybody"));
	IS(TENDRIL_EXISTS, tendril_put(t, "x", 1, &(tendril_options){.name = "second"}, NULL));
	OK(tendril_delete(t, tendril_named("second")));
	tendril_release(&o);
	tendril_close(t);
}

static void ranges(void)
{
	tendril *t = dial();
	tendril_object o;
	size_t n = 3 << 20;
	char *data = malloc(n), *back = malloc(n);
	for (size_t i = 0; i < n; i++)
		data[i] = (char)(i * 7);
	OK(tendril_put(t, data, n, NULL, &o));
	OK(tendril_read(t, tendril_by_id(o.id), 5, back, n - 5));
	CHECK(memcmp(back, data + 5, n - 5) == 0);
	OK(tendril_read(t, tendril_by_id(o.id), n, back, 0));
	IS(TENDRIL_INVALID, tendril_read(t, tendril_by_id(o.id), n - 1, back, 2));
	uint64_t one, two;
	OK(tendril_checksum(t, tendril_by_id(o.id), &one));
	tendril_object twin;
	OK(tendril_put(t, data, n, NULL, &twin));
	OK(tendril_checksum(t, tendril_by_id(twin.id), &two));
	CHECK(one == two && one != 0);
	tendril_populate(&twin);
	tendril_release(&twin);
	tendril_release(&o);
	free(data);
	free(back);
	tendril_close(t);
}

static void strict(void)
{
	tendril *t = dial();
	tendril_buffer b;
	tendril_object o;
	OK(tendril_create(t, 10000, &(tendril_options){.strict = 1, .checksum = 1}, &b));
	memset(b.data, 9, b.size);
	OK(tendril_seal(&b, &o));
	CHECK(((const char *)o.data)[9999] == 9);
	tendril_info *info;
	OK(tendril_stat(t, tendril_by_id(o.id), &info));
	CHECK(info->strict && info->checksum);
	tendril_info_free(info);
	tendril_release(&o);
	tendril_close(t);
}

/* What is held outlives the connection; what is filled does not. */
static void after_close(void)
{
	tendril *t = dial(), *other = dial();
	tendril_object o, unused;
	tendril_buffer b;
	OK(tendril_put(t, "kept", 4, NULL, &o));
	OK(tendril_create(t, 5 << 20, NULL, &b));
	tendril_id id = b.id;
	tendril_close(t);
	CHECK(memcmp(o.data, "kept", 4) == 0);
	IS(TENDRIL_DISCONNECTED, tendril_seal(&b, &unused));
	tendril_abort(&b);
	tendril_release(&o);
	await_gone(other, tendril_by_id(id));
	tendril_close(other);
}

static void watching(void)
{
	tendril *t = dial();
	tendril_watch *w;
	tendril_event e;
	OK(tendril_watch_open(&(tendril_connect_options){.socket = at}, "w", &w));
	IS(TENDRIL_TIMEOUT, tendril_watch_next(w, 0, &e));
	OK(tendril_put(t, "x", 1, &(tendril_options){.name = "other"}, NULL));
	OK(tendril_put(t, "x", 1, &(tendril_options){.name = "w1"}, NULL));
	struct pollfd p = {.fd = tendril_watch_fd(w), .events = POLLIN};
	CHECK(poll(&p, 1, PATIENCE_MS) == 1);
	OK(tendril_watch_next(w, PATIENCE_MS, &e));
	CHECK(strcmp(e.event, "sealed") == 0 && strcmp(e.name, "w1") == 0 && e.size == 1);
	OK(tendril_delete(t, tendril_named("w1")));
	do
		OK(tendril_watch_next(w, PATIENCE_MS, &e));
	while (strcmp(e.event, "gone") != 0);
	tendril_watch_close(w);
	OK(tendril_delete(t, tendril_named("other")));
	tendril_close(t);
}

static void nothing_here(int signal) { (void)signal; }

enum { THREADS = 6, ROUNDS = 150 };

static void *work(void *arg)
{
	tendril *t = arg;
	for (int i = 0; i < ROUNDS; i++) {
		tendril_object mine, got;
		size_t n = i % 3 ? 512 : 70000;
		char *data = malloc(n);
		memset(data, i, n);
		OK(tendril_put(t, data, n, NULL, &mine));
		OK(tendril_get(t, tendril_by_id(mine.id), 0, &got));
		CHECK(memcmp(got.data, data, n) == 0);
		IS(TENDRIL_TIMEOUT, tendril_get(t, tendril_named("never"), i % 10 ? 1 : 20, &(tendril_object){.size = 0}));
		tendril_release(&got);
		tendril_release(&mine);
		free(data);
	}
	return NULL;
}

/* One connection, many threads, and signals without SA_RESTART. */
static void threads(void)
{
	tendril *t = dial();
	pthread_t thread[THREADS];
	struct sigaction action = {.sa_handler = nothing_here};
	struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, work, t) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	tendril_close(t);
}

static void forked(void)
{
	tendril *t = dial();
	tendril_object o, got;
	tendril_buffer b;
	OK(tendril_put(t, "parent", 6, NULL, &o));
	OK(tendril_create(t, 100, NULL, &b));
	pid_t pid = fork();
	if (pid == 0) {
		tendril_id id = o.id;
		tendril_info *info;
		CHECK(memcmp(o.data, "parent", 6) == 0);
		IS(TENDRIL_FORKED, tendril_get(t, tendril_by_id(id), 0, &got));
		IS(TENDRIL_FORKED, tendril_seal(&b, &got));
		IS(TENDRIL_FORKED, tendril_stat(t, tendril_by_id(id), &info));
		IS(TENDRIL_FORKED, tendril_alive(t));
		tendril_abort(&b);
		tendril_release(&o);
		tendril_close(t);
		tendril *own = dial();
		OK(tendril_get(own, tendril_by_id(id), 0, &got));
		CHECK(memcmp(got.data, "parent", 6) == 0);
		tendril_release(&got);
		tendril_close(own);
		_exit(0);
	}
	wait_ok(pid);
	OK(tendril_alive(t));
	OK(tendril_seal(&b, NULL));
	OK(tendril_get(t, tendril_by_id(o.id), 0, &got)); /* the child's release did not reach the daemon */
	tendril_release(&got);
	tendril_release(&o);
	tendril_close(t);
}

/* More than the store holds, in all: what is let go comes back. */
static void over_and_over(void)
{
	tendril *t = dial(), *r = dial();
	size_t n = 90 << 20;
	char *data = calloc(1, n);
	for (int i = 0; i < 12; i++) {
		tendril_object o, got;
		data[0] = (char)i;
		OK(tendril_put(t, data, n - (size_t)i * 4096, NULL, &o));
		OK(tendril_get(r, tendril_by_id(o.id), 0, &got));
		CHECK(*(const char *)got.data == i);
		tendril_release(&got);
		tendril_release(&o);
	}
	free(data);
	tendril_close(r);
	tendril_close(t);
}

static int count_mappings(void)
{
	char line[512];
	int n = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		n += strstr(line, "memfd:") != NULL;
	fclose(maps);
	return n;
}

/* A program that asks for nothing gives memory back with a descriptor in its poll loop. */
static void poll_loop(void)
{
	tendril *writer = dial(), *t = dial();
	tendril_object o;
	char *data = calloc(1, 3 << 20);
	OK(tendril_put(writer, data, 3 << 20, &(tendril_options){.name = "polled", .own = 1}, NULL));
	int before = count_mappings(), fd = tendril_sweep_fd(t);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	CHECK(fd >= 0 && tendril_sweep_fd(t) == fd && poll(&p, 1, 0) == 0); /* nothing is idle */
	OK(tendril_get(t, tendril_named("polled"), 0, &o));
	CHECK(count_mappings() == before + 1);
	tendril_release(&o);
	CHECK(poll(&p, 1, PATIENCE_MS) == 1);
	OK(tendril_sweep(t));
	CHECK(count_mappings() == before + 1); /* the object is there, and may be wanted again */
	OK(tendril_delete(writer, tendril_named("polled")));
	OK(tendril_sweep(writer));
	while (count_mappings() >= before) { /* until neither has it */
		CHECK(poll(&p, 1, PATIENCE_MS) == 1);
		OK(tendril_sweep(t));
		OK(tendril_sweep(writer));
	}
	CHECK(poll(&p, 1, 0) == 0);
	free(data);
	tendril_close(t);
	tendril_close(writer);
}

static void bad_arguments(void)
{
	tendril *t = dial();
	tendril_object o;
	tendril_buffer b;
	tendril_id id;
	char longer[3000], meta[TENDRIL_MAX_META + 1] = {0};
	memset(longer, 'n', sizeof longer - 1);
	longer[sizeof longer - 1] = 0;
	IS(TENDRIL_INVALID, tendril_get(t, tendril_named(""), 0, &o));
	IS(TENDRIL_INVALID, tendril_get(t, tendril_named(longer), 0, &o));
	IS(TENDRIL_INVALID, tendril_create(t, 1, &(tendril_options){.meta = meta, .meta_size = sizeof meta}, &b));
	IS(TENDRIL_INVALID, tendril_create(t, 1, &(tendril_options){.lifetime = (enum tendril_lifetime)9}, &b));
	IS(TENDRIL_FULL, tendril_create(t, 1ull << 40, NULL, &b));
	IS(TENDRIL_INVALID, tendril_id_parse("12", &id));
	CHECK(tendril_id_parse("00112233445566778899aabbccddeeff", &id) == TENDRIL_OK);
	char text[33];
	CHECK(strcmp(tendril_id_text(&id, text), "00112233445566778899aabbccddeeff") == 0);
	tendril_close(t);
	IS(TENDRIL_DISCONNECTED, tendril_connect("/nowhere/s", &t));
	CHECK(t == NULL && strstr(tendril_message(), "tendril daemon"));
	CHECK(*tendril_strerror(64) && *tendril_strerror(12345));
}

static void about(void)
{
	tendril *t = dial();
	tendril_daemon d;
	char *json;
	tendril_about(t, &d);
	CHECK(*d.version && *d.tenant && d.pid == (uint32_t)daemon_pid && d.capacity_bytes == 512u << 20);
	OK(tendril_status_json(t, &json));
	CHECK(strstr(json, "\"store\""));
	free(json);
	OK(tendril_sweep(t));
	tendril_close(t);
}

/* The daemon dies while threads wait: all hear of it, and what they hold stays readable. */
static void daemon_dies(void)
{
	tendril *t;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = at, .no_reconnect = 1}, &t));
	tendril_object o, got;
	OK(tendril_put(t, "still here", 10, NULL, &o));
	pid_t killer = fork();
	if (killer == 0) {
		pause_ms(100);
		kill(daemon_pid, SIGKILL);
		_exit(0);
	}
	IS(TENDRIL_DISCONNECTED, tendril_get(t, tendril_named("never"), TENDRIL_FOREVER, &got));
	wait_ok(killer);
	IS(TENDRIL_DISCONNECTED, tendril_get(t, tendril_by_id(o.id), 0, &got));
	IS(TENDRIL_DISCONNECTED, tendril_alive(t));
	CHECK(memcmp(o.data, "still here", 10) == 0);
	tendril_release(&o);
	tendril_close(t);
	stop_daemon();
}

int main(void)
{
	static const struct test tests[] = {
		{"about", about}, {"put_and_get", put_and_get}, {"many_small", many_small}, {"waiting", waiting}, {"batches", batches},
		{"long_names", long_names}, {"names_and_changes", names_and_changes}, {"ranges", ranges}, {"strict", strict},
		{"after_close", after_close},
		{"watching", watching}, {"threads", threads}, {"forked", forked}, {"over_and_over", over_and_over}, {"poll_loop", poll_loop}, {"bad_arguments", bad_arguments},
	};
	return run_tests("test_store", tests, sizeof tests / sizeof *tests, daemon_dies);
}
