/* The index in shared memory: against a real daemon, and against one whose index lies. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "check.h"

static const char *const at = daemon_socket;

static tendril *dial(void)
{
	tendril *t;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = at, .index = 1}, &t));
	OK(tendril_index_state(t));
	return t;
}

static tendril_id put_named(tendril *t, const char *name, const void *data, size_t n)
{
	tendril_object o;
	OK(tendril_put(t, data, n, &(tendril_options){.name = name, .meta = "{\"n\":1}", .meta_size = 7}, &o));
	tendril_id id = o.id;
	tendril_release(&o);
	return id;
}

/* Gets until the index answers: a level of it may be on its way. */
static void get_fast(tendril *t, tendril_key key, tendril_object *o)
{
	for (int i = 0; i < LOOKS; i++) {
		OK(tendril_get(t, key, 0, o));
		if (tendril_through_index(o))
			return;
		tendril_release(o);
		if (i > 10)
			pause_ms(5);
	}
	CHECK(!"the object comes through the index");
}

static void gets(void)
{
	static const size_t sizes[] = {0, 1, 64, 4096, 1 << 20, 100 << 20};
	tendril *writer = dial(), *reader = dial();
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		size_t n = sizes[i];
		char *data = malloc(n + 1);
		memset(data, (int)('a' + i), n);
		tendril_id id = put_named(writer, "sized", data, n);
		tendril_object o, again;
		get_fast(reader, tendril_named("sized"), &o);
		CHECK(o.size == n && o.lifetime == TENDRIL_NAMED && o.meta_size == 7 && strcmp(o.meta, "{\"n\":1}") == 0);
		CHECK(memcmp(&o.id, &id, sizeof id) == 0);
		CHECK(n == 0 ? o.data == NULL : memcmp(o.data, data, n) == 0);
		OK(tendril_get(reader, tendril_by_id(id), 0, &again));
		CHECK(tendril_through_index(&again) && again.data == o.data);
		tendril_release(&again);
		tendril_release(&again);
		OK(tendril_delete(writer, tendril_named("sized")));
		IS(TENDRIL_NOT_FOUND, tendril_get(reader, tendril_named("sized"), 0, &again));
		CHECK(n == 0 || memcmp(o.data, data, n) == 0); /* deleted, and still held */
		tendril_release(&o);
		CHECK(o.data == NULL);
		free(data);
	}
	tendril_close(writer);
	tendril_close(reader);
}

/* Released memory is freed, although the reader sends only the sweeps that the index asks for. */
static void memory_comes_back(void)
{
	enum { N = 90 << 20 };
	tendril *writer = dial(), *reader = dial();
	char *data = calloc(1, N);
	put_named(writer, "small", "x", 1);
	for (int i = 0; i < 20; i++) { /* together more than there is */
		tendril_object o;
		for (int try = 0; tendril_put(writer, data, N, &(tendril_options){.name = "large"}, NULL) != TENDRIL_OK; try++) {
			CHECK(try < 200);
			get_fast(reader, tendril_named("small"), &o);
			tendril_release(&o);
		}
		get_fast(reader, tendril_named("large"), &o);
		CHECK(o.size == N);
		OK(tendril_delete(writer, tendril_named("large")));
		tendril_release(&o);
		get_fast(reader, tendril_named("small"), &o);
		tendril_release(&o);
	}
	OK(tendril_delete(writer, tendril_named("small")));
	free(data);
	tendril_close(writer);
	tendril_close(reader);
}

/* More objects than the first levels have room for, and more held than there are slots. */
static void many(void)
{
	enum { N = 4000 };
	tendril *writer = dial(), *reader = dial();
	tendril_object *own = calloc(N, sizeof *own), *got = calloc(N, sizeof *got);
	tendril_key *keys = calloc(N, sizeof *keys);
	int fast = 0;
	for (int i = 0; i < N; i++) {
		OK(tendril_put(writer, &i, sizeof i, NULL, &own[i]));
		keys[i] = tendril_by_id(own[i].id);
	}
	for (int i = 0; i < N; i++) {
		get_fast(reader, keys[i], &got[0]);
		tendril_release(&got[0]);
	}
	OK(tendril_get_many(reader, keys, N, 0, got));
	for (int i = 0; i < N; i++) {
		CHECK(*(const int *)got[i].data == i);
		fast += tendril_through_index(&got[i]);
	}
	CHECK(fast > 500 && fast < 1000);
	for (int i = 0; i < N; i++)
		tendril_release(&got[i]);
	get_fast(reader, keys[N - 1], &got[0]);
	tendril_release(&got[0]);
	for (int i = 0; i < N; i++)
		tendril_release(&own[i]);
	free(own);
	free(got);
	free(keys);
	tendril_close(writer);
	tendril_close(reader);
}

static void after_close(void)
{
	tendril *t = dial();
	tendril_object o, other;
	put_named(t, "held", "still here", 10);
	get_fast(t, tendril_named("held"), &o);
	get_fast(t, tendril_named("held"), &other);
	OK(tendril_delete(t, tendril_named("held")));
	tendril_close(t);
	CHECK(memcmp(o.data, "still here", 10) == 0);
	tendril_release(&other);
	CHECK(memcmp(o.data, "still here", 10) == 0);
	tendril_release(&o);
}

static void forked(void)
{
	tendril *t = dial();
	tendril_object o, again;
	put_named(t, "held", "the parent's", 12);
	get_fast(t, tendril_named("held"), &o);
	pid_t child = fork();
	if (child == 0) {
		IS(TENDRIL_FORKED, tendril_get(t, tendril_named("held"), 0, &again));
		CHECK(memcmp(o.data, "the parent's", 12) == 0);
		tendril_release(&o); /* nothing: the slots are not this process's */
		tendril_close(t);
		_exit(0);
	}
	wait_ok(child);
	OK(tendril_delete(t, tendril_named("held")));
	tendril *other = dial();
	for (int i = 0; i < 50; i++) { /* in the memory of the object, if that were free */
		put_named(other, "filler", "other bytes!", 12);
		OK(tendril_delete(other, tendril_named("filler")));
	}
	CHECK(memcmp(o.data, "the parent's", 12) == 0);
	tendril_release(&o);
	tendril_close(other);
	tendril_close(t);
}

enum { THREADS = 4, NAMES = 6, ROUNDS = 3000 };

struct worker {
	tendril *t;
	unsigned seed;
	int fast;
};

/* Gets what others replace all the time, and looks whether it is one object's bytes. */
static void *work(void *arg)
{
	struct worker *w = arg;
	char name[16];
	for (int i = 0; i < ROUNDS; i++) {
		tendril_object o;
		snprintf(name, sizeof name, "w%d", (int)(rand_r(&w->seed) % NAMES));
		int status = tendril_get(w->t, tendril_named(name), 0, &o);
		if (status == TENDRIL_NOT_FOUND)
			continue;
		CHECK(status == TENDRIL_OK);
		w->fast += tendril_through_index(&o);
		const char *b = o.data;
		for (uint64_t at_byte = 0; at_byte < o.size; at_byte += 512)
			CHECK(memcmp(b + at_byte, &o.id, sizeof o.id) == 0);
		tendril_release(&o);
	}
	return NULL;
}

static void threads(void)
{
	tendril *writer = dial(), *reader = dial();
	struct worker workers[THREADS];
	pthread_t ids[THREADS];
	for (int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){reader, (unsigned)i + 1, 0};
		CHECK(pthread_create(&ids[i], NULL, work, &workers[i]) == 0);
	}
	char name[16];
	for (int i = 0; i < ROUNDS; i++) {
		tendril_buffer b;
		snprintf(name, sizeof name, "w%d", i % NAMES);
		OK(tendril_create(writer, 8192, &(tendril_options){.name = name}, &b));
		for (uint64_t at_byte = 0; at_byte < b.size; at_byte += 512)
			memcpy((char *)b.data + at_byte, &b.id, sizeof b.id);
		int status = tendril_delete(writer, tendril_named(name));
		CHECK(status == TENDRIL_OK || status == TENDRIL_NOT_FOUND);
		OK(tendril_seal(&b, NULL));
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(ids[i], NULL);
		CHECK(workers[i].fast > 0);
	}
	for (int i = 0; i < NAMES; i++) {
		snprintf(name, sizeof name, "w%d", i);
		OK(tendril_delete(writer, tendril_named(name)));
	}
	tendril_close(writer);
	tendril_close(reader);
}

/* An index that nobody tends any more is left within a second or so. */
static void daemon_dies(void)
{
	tendril *t;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = at, .index = 1, .no_reconnect = 1}, &t));
	tendril_object o, held;
	int status = TENDRIL_OK;
	put_named(t, "here", "still here", 10);
	get_fast(t, tendril_named("here"), &held);
	kill(daemon_pid, SIGKILL);
	for (int i = 0; i < LOOKS && status == TENDRIL_OK; i++) {
		status = tendril_get(t, tendril_named("here"), 0, &o);
		tendril_release(&o);
		pause_ms(5);
	}
	CHECK(status == TENDRIL_DISCONNECTED);
	CHECK(memcmp(held.data, "still here", 10) == 0);
	tendril_release(&held);
	tendril_close(t);
	stop_daemon();
}

static void not_asked_for(void)
{
	tendril *t;
	tendril_object o;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = at, .index = -1}, &t));
	IS(TENDRIL_UNSUPPORTED, tendril_index_state(t));
	put_named(t, "plain", "x", 1);
	for (int i = 0; i < 3; i++) {
		OK(tendril_get(t, tendril_named("plain"), 0, &o));
		CHECK(!tendril_through_index(&o));
		tendril_release(&o);
	}
	OK(tendril_delete(t, tendril_named("plain")));
	tendril_close(t);
}

/* ---- an index that lies ---- */

enum { LEVEL_BYTES = 8 * (512 + 256 * 8 + 512 * 24), SLOTS_BYTES = 8192, BUCKETS = 256, RECORDS = 512 };

static char dir[] = "/tmp/tendril-liar-XXXXXX", path[64];
static int listener, level_fd, slots_fd, level_said = LEVEL_BYTES, slots_said = SLOTS_BYTES, fds_sent = 2;
static uint64_t *level, *slots;

static void store(uint8_t *to, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		to[i] = (uint8_t)(v >> 8 * i);
}

static void reply(int fd, const uint8_t *request, uint16_t type, const uint8_t *payload, size_t n, int fds)
{
	uint8_t b[256] = {0};
	union { struct cmsghdr align; char bytes[CMSG_SPACE(2 * sizeof(int))]; } control = {.bytes = {0}};
	struct iovec part = {b, 16 + n};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
	store(b, n, 4);
	store(b + 4, type, 2);
	store(b + 6, (uint64_t)fds, 2);
	memcpy(b + 8, request + 8, 8);
	memcpy(b + 16, payload, n);
	if (fds) {
		int list[2] = {slots_fd, level_fd};
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE((size_t)fds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)fds * sizeof(int));
		memcpy(CMSG_DATA(c), list, (size_t)fds * sizeof(int));
	}
	(void)!sendmsg(fd, &m, MSG_NOSIGNAL);
}

/* Answers Hello, OpenIndex and Sweep; all else is not found. */
static void serve_one(int fd)
{
	uint8_t b[4096], payload[64];
	while (recv(fd, b, 16, MSG_WAITALL) == 16) {
		size_t n = b[0] | (size_t)b[1] << 8;
		int type = b[4] | b[5] << 8;
		if (n > sizeof b - 16 || (n && recv(fd, b + 16, n, MSG_WAITALL) != (ssize_t)n))
			return;
		memset(payload, 0, sizeof payload);
		if (type == 1) {
			store(payload, 1, 2);
			reply(fd, b, 1 | 0x8000, payload, 2 + 2 + 16 + 2 + 4 + 8, 0);
		} else if (type == 100) {
			store(payload, (uint64_t)slots_said, 8);
			store(payload + 8, (uint64_t)level_said, 8);
			reply(fd, b, 100 | 0x8000, payload, 16, fds_sent);
		} else if (type == 14) {
			reply(fd, b, 14 | 0x8000, payload, 4, 0); /* nothing to sweep */
		} else if (n > 0) {
			store(payload, 3, 2); /* not found */
			reply(fd, b, 0xFFFF, payload, 4, 0);
		}
	}
}

static void *serve(void *unused)
{
	for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
		serve_one(fd);
		close(fd);
	}
	return unused;
}

static int shared(size_t n, uint64_t **out)
{
	int fd = memfd_create("liar", MFD_CLOEXEC);
	CHECK(fd >= 0 && ftruncate(fd, (off_t)n) == 0);
	*out = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(*out != MAP_FAILED);
	return fd;
}

static uint64_t mix(uint64_t h)
{
	h = (h ^ h >> 33) * 0xff51afd7ed558ccdull;
	h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ull;
	return h ^ h >> 33;
}

static uint64_t *begin_level(void)
{
	memset(level, 0, LEVEL_BYTES);
	memset(slots, 0, SLOTS_BYTES);
	level[0] = 0x315844494C524454ull;
	level[2] = BUCKETS;
	level[3] = RECORDS;
	level[4] = 1;
	return level;
}

/* Enters record n for an id in its first bucket, whatever n is. */
static uint64_t *enter(tendril_id id, uint64_t n)
{
	uint64_t w[2];
	memcpy(w, &id, sizeof w);
	uint64_t hash = mix(w[0] ^ (w[1] << 32 | w[1] >> 32));
	for (int i = 1; i < 8; i++) /* all the same: each is looked at */
		level[512 + (hash & (BUCKETS - 1)) * 8 + (unsigned)i] = (hash >> 24 << 24) | 1 << 23 | n;
	uint64_t *r = level + 512 + BUCKETS * 8 + n % RECORDS * 24;
	r[0] = 1ull << 24 | n;
	memcpy(&r[1], w, sizeof w);
	return r;
}

static tendril *dial_liar(void)
{
	tendril *t;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = path, .index = 1}, &t));
	return t;
}

static void refused_indexes(void)
{
	static const struct { int slots, level, fds, word; uint64_t is; } lies[] = {
		{0, LEVEL_BYTES, 2, 0, 0x315844494C524454ull}, {SLOTS_BYTES * 2, LEVEL_BYTES, 2, 0, 0x315844494C524454ull},
		{SLOTS_BYTES, LEVEL_BYTES * 2, 2, 0, 0x315844494C524454ull}, {SLOTS_BYTES, 0, 2, 0, 0x315844494C524454ull},
		{SLOTS_BYTES, LEVEL_BYTES, 1, 0, 0x315844494C524454ull},
		{SLOTS_BYTES, LEVEL_BYTES, 0, 0, 0x315844494C524454ull},
		{SLOTS_BYTES, LEVEL_BYTES, 2, 0, 0}, {SLOTS_BYTES, LEVEL_BYTES, 2, 1, 1},
		{SLOTS_BYTES, LEVEL_BYTES, 2, 2, 1u << 20}, {SLOTS_BYTES, LEVEL_BYTES, 2, 3, 1u << 20},
	};
	tendril_object o;
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		begin_level()[lies[i].word] = lies[i].is;
		slots_said = lies[i].slots, level_said = lies[i].level, fds_sent = lies[i].fds;
		tendril *t = dial_liar();
		IS(TENDRIL_UNSUPPORTED, tendril_index_state(t));
		IS(TENDRIL_NOT_FOUND, tendril_get(t, tendril_named("x"), 0, &o));
		tendril_close(t);
	}
	slots_said = SLOTS_BYTES, level_said = LEVEL_BYTES, fds_sent = 2;
	begin_level();
	CHECK(ftruncate(level_fd, LEVEL_BYTES - 4096) == 0); /* smaller than it is said to be */
	tendril *t = dial_liar();
	IS(TENDRIL_UNSUPPORTED, tendril_index_state(t));
	tendril_close(t);
	CHECK(ftruncate(level_fd, LEVEL_BYTES) == 0);
}

static void lying_records(void)
{
	static const uint64_t numbers[] = {0, 5, RECORDS - 1, RECORDS, (1 << 21) - 1};
	static const struct { int word; uint64_t is; } lies[] = {
		{0, 0}, {0, ~0ull}, {0, 7ull << 21 | 1 << 24}, {3, 99}, {3, ~0ull}, {5, 1}, {4, ~0ull},
		{6, 0xffffffffffffffffull},
		{6, 129ull << 16}, {6, 129ull << 32}, {6, 100ull << 16 | 100ull << 32},
	};
	begin_level();
	tendril *t = dial_liar();
	tendril_object o;
	tendril_id id = {{1, 2, 3}};
	OK(tendril_index_state(t));
	for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
		for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
			begin_level();
			uint64_t *r = enter(id, numbers[n]);
			r[lies[i].word] = lies[i].is;
			int status = tendril_get(t, tendril_by_id(id), 0, &o);
			/* At most an empty object. */
			CHECK(status == TENDRIL_NOT_FOUND || (status == TENDRIL_OK && o.data == NULL));
			tendril_release(&o);
		}
	begin_level(); /* one that does not lie, and slots of which a stranger has written every word */
	enter(id, 3);
	memset(slots, 0xff, SLOTS_BYTES);
	IS(TENDRIL_NOT_FOUND, tendril_get(t, tendril_by_id(id), 0, &o)); /* "the connection has ended" */
	memset(slots, 0, SLOTS_BYTES);
	slots[0] = slots[1] = ~0ull;
	IS(TENDRIL_NOT_FOUND, tendril_get(t, tendril_by_id(id), 0, &o)); /* "there is something to sweep" */
	tendril_object held[3];
	for (int i = 0; i < 3; i++) {
		OK(tendril_get(t, tendril_by_id(id), 0, &held[i]));
		CHECK(tendril_through_index(&held[i]));
	}
	for (int i = 0; i < 3; i++)
		tendril_release(&held[i]);
	for (int i = 136; i < 1024; i++)
		CHECK(slots[i] == 0);
	tendril_close(t);
}

static void liar(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	pthread_t server;
	CHECK(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/s", dir);
	memcpy(a.sun_path, path, strlen(path) + 1);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(listener, 8) == 0);
	level_fd = shared(LEVEL_BYTES, &level);
	slots_fd = shared(SLOTS_BYTES, &slots);
	CHECK(pthread_create(&server, NULL, serve, NULL) == 0);
	refused_indexes();
	lying_records();
	shutdown(listener, SHUT_RDWR);
	pthread_join(server, NULL);
	close(listener);
	close(level_fd);
	close(slots_fd);
	munmap(level, LEVEL_BYTES);
	munmap(slots, SLOTS_BYTES);
	unlink(path);
	rmdir(dir);
}

/* What strace watches (tests/index.sh): so many gets and releases between two lines. */
static int loop(int rounds)
{
	tendril *t;
	tendril_object o;
	OK(tendril_connect(NULL, &t));
	tendril_id id = put_named(t, "looped", "x", 1);
	for (int i = 0; i < 2; i++) {
		OK(tendril_get(t, tendril_named("looped"), 0, &o));
		tendril_release(&o);
	}
	int through = 0;
	CHECK(write(1, "begin\n", 6) == 6);
	for (int i = 0; i < rounds; i++) {
		OK(tendril_get(t, i % 2 ? tendril_by_id(id) : tendril_named("looped"), 0, &o));
		through += tendril_through_index(&o) && *(const char *)o.data == 'x';
		tendril_release(&o);
	}
	CHECK(write(1, "end\n", 4) == 4);
	printf("%d\n", through);
	OK(tendril_delete(t, tendril_by_id(id)));
	tendril_close(t);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"not_asked_for", not_asked_for}, {"gets", gets}, {"memory_comes_back", memory_comes_back}, {"many", many}, {"after_close", after_close},
		{"forked", forked}, {"threads", threads}, {"liar", liar},
	};
	if (argc == 3 && strcmp(argv[1], "loop") == 0)
		return loop(atoi(argv[2]));
	return run_tests("test_index", tests, sizeof tests / sizeof *tests, daemon_dies);
}
