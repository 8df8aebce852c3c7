/* Streams, filling together and composites, against a real daemon. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "check.h"

static const char *const at = daemon_socket;

static tendril *dial(void)
{
	tendril *t;
	OK(tendril_connect(at, &t));
	return t;
}

enum { FRAMES = 300 };

/* Small frames of one size, which are asked for ahead, larger ones, objects and empty ones. */
static void *produce(void *unused)
{
	tendril *t = dial();
	tendril_stream *s;
	(void)unused;
	OK(tendril_stream_write(t, "order", &(tendril_stream_options){.frames = 3}, &s));
	for (int i = 0; i < FRAMES; i++) {
		tendril_buffer b;
		tendril_object o;
		char meta[32];
		int n = snprintf(meta, sizeof meta, "{\"i\":%d}", i);
		if (i % 50 == 49) {
			OK(tendril_put(t, &i, sizeof i, NULL, &o));
			OK(tendril_stream_push_object(s, &o, TENDRIL_FOREVER));
			CHECK(o.data == NULL);
			IS(TENDRIL_INVALID, tendril_stream_push_object(s, &o, 0));
			continue;
		}
		tendril_options with = {.meta = meta, .meta_size = (size_t)n};
		OK(tendril_create(t, i % 10 == 9 ? 1 << 20 : 256, i % 20 == 0 ? &with : NULL, &b));
		memset(b.data, i, b.size);
		memcpy(b.data, &i, sizeof i);
		OK(tendril_stream_push(s, &b, TENDRIL_FOREVER));
		CHECK(b.data == NULL);
		IS(TENDRIL_INVALID, tendril_stream_push(s, &b, 0));
		tendril_abort(&b);
	}
	OK(tendril_stream_end(s, 0));
	tendril_stream_close(s);
	tendril_close(t);
	return NULL;
}

static void order(void)
{
	tendril *t = dial();
	tendril_stream *s;
	tendril_object o;
	pthread_t thread;
	uint64_t number;
	OK(tendril_stream_read(t, "order", NULL, &s));
	CHECK(pthread_create(&thread, NULL, produce, NULL) == 0);
	for (int i = 0; i < FRAMES; i++) {
		OK(tendril_stream_pop(s, TENDRIL_FOREVER, &o, &number));
		CHECK(number == (uint64_t)i + 1 && memcmp(o.data, &i, sizeof i) == 0);
		CHECK((o.meta_size != 0) == (i % 20 == 0 && i % 50 != 49));
		if (i % 50 != 49)
			CHECK(((const unsigned char *)o.data)[o.size - 1] == (unsigned char)i);
		tendril_release(&o);
	}
	IS(TENDRIL_ENDED, tendril_stream_pop(s, TENDRIL_FOREVER, &o, &number));
	CHECK(number == 0 && o.data == NULL);
	pthread_join(thread, NULL);
	IS(TENDRIL_INVALID, tendril_stream_push_object(s, &o, 0));
	tendril_stream_close(s);
	tendril_stream_close(NULL);
	tendril_close(t);
}

/* An object that the index gave, whose reference the daemon does not know: pushed, it does. */
static void from_the_index(void)
{
	tendril *t;
	tendril_stream *w, *r;
	tendril_object kept, o;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = at, .index = 1}, &t));
	OK(tendril_stream_write(t, "index", NULL, &w));
	OK(tendril_stream_read(t, "index", NULL, &r));
	OK(tendril_put(t, "indexed", 7, NULL, &kept));
	for (int i = 0; i < 3; i++) {
		OK(tendril_get(t, tendril_by_id(kept.id), 0, &o));
		OK(tendril_stream_push_object(w, &o, 0));
		OK(tendril_stream_pop(r, PATIENCE_MS, &o, NULL));
		CHECK(o.size == 7 && memcmp(o.data, "indexed", 7) == 0);
		tendril_release(&o);
	}
	tendril_release(&kept);
	tendril_stream_close(w);
	tendril_stream_close(r);
	tendril_close(t);
}

static void push_text(tendril_stream *s, tendril *t, const char *text, int want)
{
	tendril_buffer b;
	OK(tendril_create(t, strlen(text), NULL, &b));
	memcpy(b.data, text, strlen(text));
	IS(want, tendril_stream_push(s, &b, 0));
	tendril_abort(&b);
}

static void pop_text(tendril_stream *s, const char *text, uint64_t want)
{
	tendril_object o;
	uint64_t number;
	OK(tendril_stream_pop(s, PATIENCE_MS, &o, &number));
	CHECK(number == want && o.size == strlen(text) && memcmp(o.data, text, o.size) == 0);
	tendril_release(&o);
}

static void bounds(void)
{
	tendril *t = dial(), *dying = dial();
	tendril_stream *w, *r, *no;
	tendril_object o;
	uint64_t number;
	char *json;
	OK(tendril_stream_write(t, "bounds", &(tendril_stream_options){.frames = 1, .flags = TENDRIL_STREAM_NEW}, &w));
	IS(TENDRIL_EXISTS, tendril_stream_write(t, "bounds", &(tendril_stream_options){.flags = TENDRIL_STREAM_NEW}, &no));
	CHECK(no == NULL);
	tendril_stream_options existing = {.flags = TENDRIL_STREAM_EXISTING};
	IS(TENDRIL_NOT_FOUND, tendril_stream_read(t, "none", &existing, &no));
	IS(TENDRIL_INVALID, tendril_stream_read(t, "none", &(tendril_stream_options){.flags = 1 << 10}, &no));
	IS(TENDRIL_INVALID, tendril_stream_read(t, "", NULL, &no));
	OK(tendril_stream_read(t, "bounds", NULL, &r));
	IS(TENDRIL_INVALID, tendril_stream_pop(w, 0, &o, NULL));
	IS(TENDRIL_TIMEOUT, tendril_stream_pop(r, 0, &o, NULL));
	IS(TENDRIL_TIMEOUT, tendril_stream_pop(r, 20, &o, NULL));
	push_text(w, t, "one", TENDRIL_OK);
	push_text(w, t, "two", TENDRIL_TIMEOUT);
	OK(tendril_stream_pop(r, 0, &o, &number));
	push_text(w, t, "three", TENDRIL_OK);
	OK(tendril_stream_unpop(r, &o, number));
	pop_text(r, "one", 1);
	pop_text(r, "three", 2);
	OK(tendril_streams_json(t, "boun", &json));
	CHECK(strstr(json, "\"bounds\""));
	free(json);
	push_text(w, t, "four", TENDRIL_OK);
	OK(tendril_stream_remove(t, "bounds"));
	IS(TENDRIL_ABORTED, tendril_stream_pop(r, PATIENCE_MS, &o, NULL));
	push_text(w, t, "five", TENDRIL_ABORTED);
	tendril_stream_close(w);
	tendril_stream_close(r);
	tendril_stream_options dropping = {.frames = 2, .flags = TENDRIL_STREAM_DROP_OLDEST};
	OK(tendril_stream_write(dying, "drop", &dropping, &w));
	OK(tendril_stream_read(t, "drop", NULL, &r));
	for (int i = 0; i < 5; i++)
		push_text(w, dying, (char[]){(char)('a' + i), 0}, TENDRIL_OK);
	pop_text(r, "d", 4);
	tendril_close(dying);
	tendril_stream_close(w); /* too late */
	pop_text(r, "e", 5);
	IS(TENDRIL_ABORTED, tendril_stream_pop(r, PATIENCE_MS, &o, NULL));
	tendril_stream_close(r);
	tendril_close(t);
}

static void objects_are_gone(void)
{
	tendril *t = dial();
	for (int i = 0; i < LOOKS; i++) {
		tendril_info *infos;
		size_t n;
		OK(tendril_list(t, &(tendril_query){.all = 1}, &infos, &n));
		tendril_info_free(infos);
		if (n == 0) {
			tendril_close(t);
			return;
		}
		pause_ms(5);
	}
	CHECK(!"all objects are gone");
}

/* Pops in a child that ends as said. Returns the number of the frame that it got. */
static uint64_t pop_in_child(const char *name, const char *end)
{
	int got[2];
	uint64_t number = 0;
	CHECK(pipe(got) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		tendril *t = dial();
		tendril_stream *r;
		tendril_object o, other;
		OK(tendril_stream_read(t, name, NULL, &r));
		if (strcmp(end, "released and had") == 0) { /* another reference stays */
			OK(tendril_stream_pop(r, 0, &o, &number));
			OK(tendril_get(t, tendril_by_id(o.id), 0, &other));
			OK(tendril_stream_unpop(r, &o, number));
		}
		if (strcmp(end, "mapping fails") == 0) {
			struct rlimit none = {0, 0}, was;
			CHECK(getrlimit(RLIMIT_AS, &was) == 0);
			none.rlim_max = was.rlim_max;
			CHECK(setrlimit(RLIMIT_AS, &none) == 0);
			int status = tendril_stream_pop(r, 0, &o, &number);
			CHECK(setrlimit(RLIMIT_AS, &was) == 0);
			CHECK(status != TENDRIL_OK && number == 0);
		} else {
			OK(tendril_stream_pop(r, 0, &o, &number));
		}
		if (strncmp(end, "released", 8) == 0)
			tendril_release(&o);
		if (strcmp(end, "another request") == 0)
			IS(TENDRIL_NOT_FOUND, tendril_delete(t, tendril_named("there is none")));
		if (strcmp(end, "put back") == 0) {
			OK(tendril_stream_unpop(r, &o, number));
			number = 0;
		}
		if (strcmp(end, "closed") == 0 || strcmp(end, "mapping fails") == 0)
			tendril_close(t);
		if (strcmp(end, "at once") == 0)
			number = 0; /* without a word */
		CHECK(write(got[1], &number, sizeof number) == sizeof number);
		_exit(0);
	}
	close(got[1]);
	CHECK(read(got[0], &number, sizeof number) == sizeof number);
	close(got[0]);
	wait_ok(pid);
	return number;
}

/* A frame is its reader's once the daemon has heard so. Otherwise it goes back when the reader ends. */
static void ends_of_readers(void)
{
	static const char *const ends[] = {"released", "released and had", "another request", "put back", "closed",
		"mapping fails", "at once"};
	tendril *t = dial();
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		tendril_stream *w, *r;
		char *json;
		OK(tendril_stream_write(t, ends[i], NULL, &w));
		push_text(w, t, "first", TENDRIL_OK);
		push_text(w, t, "second", TENDRIL_OK);
		uint64_t got = pop_in_child(ends[i], ends[i]);
		for (int users = 2; users > 1; pause_ms(1)) { /* until the child's end was met */
			OK(tendril_streams_json(t, ends[i], &json));
			users = 0;
			for (const char *p = json; (p = strstr(p, "\"pid\"")); p++)
				users++;
			free(json);
		}
		OK(tendril_stream_read(t, ends[i], NULL, &r));
		if (got == 0)
			pop_text(r, "first", 1);
		pop_text(r, "second", 2);
		tendril_stream_close(w);
		tendril_stream_close(r);
	}
	tendril_close(t);
}

/* Two frames of one object: the release of one is no word about the other. */
static void one_object_twice(void)
{
	tendril *t = dial(), *u = dial();
	tendril_stream *w, *r, *next;
	tendril_object o[2], got[2];
	OK(tendril_put(t, "object", 6, NULL, &o[0]));
	OK(tendril_get(t, tendril_by_id(o[0].id), 0, &o[1]));
	OK(tendril_stream_write(t, "twice", NULL, &w));
	OK(tendril_stream_read(u, "twice", NULL, &r));
	for (int i = 0; i < 2; i++)
		OK(tendril_stream_push_object(w, &o[i], 0));
	for (int i = 0; i < 2; i++)
		OK(tendril_stream_pop(r, 0, &got[i], NULL));
	tendril_release(&got[0]);
	IS(TENDRIL_NOT_FOUND, tendril_delete(u, tendril_named("there is none"))); /* what waits goes before it */
	CHECK(memcmp(got[1].data, "object", 6) == 0);
	tendril_close(u);
	tendril_stream_close(r);
	tendril_release(&got[1]);
	OK(tendril_stream_read(t, "twice", NULL, &next));
	IS(TENDRIL_TIMEOUT, tendril_stream_pop(next, 100, &o[0], NULL));
	tendril_stream_close(w);
	tendril_stream_close(next);
	tendril_close(t);
}

static void forked(void)
{
	tendril *t = dial();
	tendril_stream *w, *r;
	tendril_object o;
	OK(tendril_stream_write(t, "fork", NULL, &w));
	OK(tendril_stream_read(t, "fork", NULL, &r));
	pid_t pid = fork();
	if (pid == 0) {
		IS(TENDRIL_FORKED, tendril_stream_pop(r, 0, &o, NULL));
		IS(TENDRIL_FORKED, tendril_stream_end(w, 0));
		tendril_stream_close(w);
		tendril_stream_close(r);
		tendril_close(t);
		_exit(0);
	}
	wait_ok(pid);
	push_text(w, t, "still", TENDRIL_OK);
	pop_text(r, "still", 1);
	tendril_stream_close(w);
	tendril_stream_close(r);
	tendril_close(t);
}

static void filling(void)
{
	tendril *creator = dial(), *helper = dial();
	tendril_buffer b, part;
	tendril_object o, got;
	tendril_options shared = {.name = "filled", .shared = 1, .meta = "{}", .meta_size = 2};
	OK(tendril_create(creator, 2 << 20, &shared, &b));
	memset(b.data, 'a', 1 << 20);
	OK(tendril_fill(helper, tendril_named("filled"), &part));
	CHECK(part.size == b.size && memcmp(&part.id, &b.id, sizeof b.id) == 0 && *(char *)part.data == 'a');
	memset((char *)part.data + (1 << 20), 'b', 1 << 20);
	IS(TENDRIL_BUSY, tendril_seal(&b, NULL));
	IS(TENDRIL_TIMEOUT, tendril_seal_filled(&b, 20, 0, NULL));
	IS(TENDRIL_INVALID, tendril_seal(&part, NULL));
	IS(TENDRIL_INVALID, tendril_filled(&b));
	OK(tendril_filled(&part));
	CHECK(part.data == NULL);
	IS(TENDRIL_INVALID, tendril_filled(&part));
	OK(tendril_seal_filled(&b, TENDRIL_FOREVER, 0, &o));
	OK(tendril_get(helper, tendril_named("filled"), 0, &got));
	CHECK(*(const char *)got.data == 'a' && ((const char *)got.data)[got.size - 1] == 'b' && got.meta_size == 2);
	tendril_release(&got);
	tendril_release(&o);
	OK(tendril_delete(creator, tendril_named("filled")));
	/* Somebody ends in the middle. */
	OK(tendril_create(creator, 100, &shared, &b));
	OK(tendril_fill(helper, tendril_by_id(b.id), &part));
	tendril_abort(&part);
	tendril_close(helper);
	IS(TENDRIL_ABORTED, tendril_seal_filled(&b, PATIENCE_MS, 0, NULL));
	OK(tendril_seal_filled(&b, PATIENCE_MS, 1, &o));
	tendril_release(&o);
	OK(tendril_delete(creator, tendril_named("filled")));
	IS(TENDRIL_NOT_FOUND, tendril_fill(creator, tendril_named("filled"), &part));
	tendril_close(creator);
}

static void composites(void)
{
	tendril *t = dial();
	tendril_object parts[2], whole, got;
	tendril_info *info;
	OK(tendril_put(t, "left", 4, NULL, &parts[0]));
	OK(tendril_put(t, "right", 5, NULL, &parts[1]));
	tendril_member members[] = {{"left", parts[0].id}, {"right", parts[1].id}};
	OK(tendril_compose(t, members, 2, &(tendril_options){.name = "pair", .meta = "{\"k\":1}", .meta_size = 7}, &whole));
	CHECK(whole.size == 0 && whole.data == NULL && whole.meta_size == 7 && whole.lifetime == TENDRIL_NAMED);
	for (int i = 0; i < 2; i++)
		tendril_release(&parts[i]);
	tendril_release(&whole);
	OK(tendril_stat(t, tendril_named("pair"), &info));
	CHECK(info->member_count == 2 && strcmp(info->members[0].name, "left") == 0);
	CHECK(strcmp(info->members[1].name, "right") == 0);
	OK(tendril_get(t, tendril_by_id(info->members[1].id), 0, &got));
	CHECK(memcmp(got.data, "right", 5) == 0);
	tendril_release(&got);
	tendril_info_free(info);
	IS(TENDRIL_INVALID, tendril_compose(t, members, 0, NULL, NULL));
	IS(TENDRIL_EXISTS, tendril_compose(t, members, 1, &(tendril_options){.name = "pair"}, &whole));
	OK(tendril_compose(t, members, 1, NULL, NULL)); /* not wanted */
	OK(tendril_delete(t, tendril_named("pair")));
	tendril_close(t);
}

static char later[128];

static void *appear_later(void *unused)
{
	pause_ms(100);
	CHECK(symlink(at, later) == 0);
	return unused;
}

/* A client with patience waits for its daemon. */
static void patience(void)
{
	tendril *t;
	pthread_t thread;
	snprintf(later, sizeof later, "%s-later", at);
	IS(TENDRIL_DISCONNECTED, tendril_connect_with(&(tendril_connect_options){.socket = later, .patience_ms = 30}, &t));
	CHECK(t == NULL);
	CHECK(pthread_create(&thread, NULL, appear_later, NULL) == 0);
	OK(tendril_connect_with(&(tendril_connect_options){.socket = later, .patience_ms = PATIENCE_MS}, &t));
	tendril_close(t);
	pthread_join(thread, NULL);
}

/* The daemon dies while a reader waits. */
static void daemon_dies(void)
{
	tendril *t = dial();
	tendril_stream *s;
	tendril_object o;
	OK(tendril_stream_read(t, "gone", NULL, &s));
	pid_t killer = fork();
	if (killer == 0) {
		pause_ms(100);
		kill(daemon_pid, SIGKILL);
		_exit(0);
	}
	IS(TENDRIL_DISCONNECTED, tendril_stream_pop(s, TENDRIL_FOREVER, &o, NULL));
	wait_ok(killer);
	tendril_stream_close(s);
	tendril_close(t);
	stop_daemon();
}

int main(void)
{
	static const struct test tests[] = {
		{"order", order}, {"from_the_index", from_the_index}, {"bounds", bounds}, {"ends_of_readers", ends_of_readers},
		{"one_object_twice", one_object_twice},
		{"forked", forked}, {"filling", filling}, {"composites", composites}, {"patience", patience},
		{"objects_are_gone", objects_are_gone},
	};
	return run_tests("test_streams", tests, sizeof tests / sizeof *tests, daemon_dies);
}
