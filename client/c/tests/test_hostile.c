/* The library against a peer that lies: garbage, truncations, wrong numbers of descriptors, wrong lengths and places.
 * Whatever comes, a call ends with a status, nothing outside the library's memory is touched (the sanitizers watch),
 * and no descriptor stays open. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "check.h"

enum {
	MAX_REPLY = 4096, PAGE = 4096, ERROR_FRAME = 0xFFFF, REPLY = 0x8000,
	GET = 4, CREATE = 2, LIST = 145, STAT = 9, STATUS = 10, SWEEP = 14,
	OPEN = 80, POP = 82, FILL = 89, COMPOSE = 92, RECLAIM = 93, CREATE_DEVICE = 160, GET_DEVICE = 161, COPY = 162,
	GPUS = 163
};

/* What the peer sends instead of the right reply: to the first request after the greeting, or after prelude's. */
struct script {
	uint8_t bytes[MAX_REPLY];
	size_t n;
	int fds;          /* descriptors that travel with the first byte */
	size_t piece;     /* bytes a send; 0: all at once */
	bool greet_badly; /* bytes answer the Hello */
};

static char dir[] = "/tmp/tendril-hostile-XXXXXX", path[64];
static int listener, memory;
static struct script script;
/* The peer answers CREATE with a status, STATUS with a text, SWEEP with nothing to sweep. After some CREATEs it answers
 * with INVALID. */
static struct {
	int status, creates, enough;
	const char *text;
} store;
/* Connections, those that are over, and the requests of the last one. The latter two are accessed with __atomic. */
static int begun, served, requests;
/* The last request's payload, for who has its answer. */
static uint8_t last[4096];
static size_t last_n;

static int cuts; /* connections that end at their first request after the greeting, without an answer */

/* The reply to the request before that, once. n 0: there is none. hang_up: then the peer ends the connection, and the
 * script is for the next one. */
static struct {
	struct script is;
	bool hang_up, told;
} prelude;

static void put(uint8_t **p, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		*(*p)++ = (uint8_t)(v >> 8 * i);
}

static uint8_t *header(uint8_t *p, uint32_t length, uint16_t type, uint16_t flags, uint64_t request)
{
	put(&p, length, 4);
	put(&p, type, 2);
	put(&p, flags, 2);
	put(&p, request, 8);
	return p;
}

static bool read_all(int fd, uint8_t *p, size_t n)
{
	while (n > 0) {
		ssize_t got = recv(fd, p, n, 0);
		if (got <= 0)
			return false;
		p += got;
		n -= (size_t)got;
	}
	return true;
}

static void send_bytes(int fd, const uint8_t *p, size_t n, int fds)
{
	union { struct cmsghdr align; char bytes[CMSG_SPACE(16 * sizeof(int))]; } control = {.bytes = {0}};
	struct iovec part = {(void *)(uintptr_t)p, n};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
	if (fds) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE((size_t)fds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)fds * sizeof(int));
		for (int i = 0; i < fds; i++)
			memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &memory, sizeof memory);
	}
	(void)!sendmsg(fd, &m, MSG_NOSIGNAL); /* the client may have hung up: that is what it should do */
}

static void send_script(int fd, const struct script *s)
{
	size_t piece = s->piece ? s->piece : s->n;
	for (size_t at = 0; at < s->n; at += piece)
		send_bytes(fd, s->bytes + at, s->n - at < piece ? s->n - at : piece, at == 0 ? s->fds : 0);
}

static size_t greeting(uint8_t *to)
{
	uint8_t *p = header(to, 2 + 6 + 16 + 7 + 4 + 8, 1 | REPLY, 0, 1);
	put(&p, 1, 2);
	put(&p, 4, 2);
	memcpy(p, "fake", 4);
	p += 4 + 16;
	put(&p, 5, 2);
	memcpy(p, "uid:0", 5);
	p += 5;
	put(&p, 1, 4);
	put(&p, 1 << 30, 8);
	return (size_t)(p - to);
}

/* Answers a request of who needs memory. */
static void answer_full(int fd, const uint8_t *asked)
{
	static const uint8_t nothing[4];
	uint8_t out[16 + 256], error[] = {TENDRIL_INVALID, 0, 1, 0, 'x'};
	int kind = asked[4];
	const void *payload = kind == SWEEP ? (const void *)nothing : kind == STATUS ? (const void *)store.text : error;
	size_t n = kind == SWEEP ? sizeof nothing : kind == STATUS ? strlen(store.text) : sizeof error;
	if (kind == CREATE && ++store.creates <= store.enough)
		error[0] = (uint8_t)store.status;
	header(out, (uint32_t)n, kind == SWEEP || kind == STATUS ? (uint16_t)(kind | REPLY) : ERROR_FRAME, 0, 0);
	memcpy(out + 8, asked + 8, 8);
	memcpy(out + 16, payload, n);
	send_bytes(fd, out, 16 + n, 0);
}

/* Answers one connection: the greeting, the prelude, then the script, then nothing more until the client leaves. */
static void serve_one(int fd)
{
	uint8_t in[1 << 16], hello[256] = {0};
	bool greeted = false, answered = false;
	__atomic_store_n(&requests, 0, __ATOMIC_SEQ_CST);
	for (;;) {
		if (!read_all(fd, in, 16))
			return;
		uint32_t length = in[0] | in[1] << 8 | in[2] << 16;
		if (!read_all(fd, in + 16, length))
			return;
		last_n = length < sizeof last ? length : sizeof last;
		memcpy(last, in + 16, last_n);
		__atomic_add_fetch(&requests, 1, __ATOMIC_SEQ_CST);
		if (!greeted && !script.greet_badly) {
			send_bytes(fd, hello, greeting(hello), 0);
			greeted = true;
			continue;
		}
		if (cuts > 0) {
			cuts--;
			return;
		}
		if (store.status) {
			answer_full(fd, in);
			continue;
		}
		if (!answered && prelude.is.n && !prelude.told) {
			prelude.told = true;
			send_script(fd, &prelude.is);
			if (prelude.hang_up)
				return;
			continue;
		}
		if (!answered)
			send_script(fd, &script);
		answered = true;
		if (answered)
			shutdown(fd, SHUT_WR);
	}
}

static bool refuses; /* everybody: says so and hangs up */

static void refuse(int fd)
{
	static const uint8_t text[] = {12, 0, 8, 0, 't', 'o', 'o', ' ', 'm', 'a', 'n', 'y'};
	uint8_t bytes[16 + sizeof text];
	memcpy(header(bytes, sizeof text, ERROR_FRAME, 0, 0), text, sizeof text);
	send_bytes(fd, bytes, sizeof bytes, 0);
}

static int hang_ups; /* connections that end before the first answer, without a reason */

static void hang_up(int fd)
{
	uint8_t in[1 << 16];
	if (read_all(fd, in, 16))
		(void)read_all(fd, in + 16, in[0] | in[1] << 8);
	hang_ups--;
}

/* The library's connect. If the peer refuses everybody, it returns once the peer has hung up: then writing fails. */
int connect(int fd, __CONST_SOCKADDR_ARG to, socklen_t n)
{
	long status = syscall(SYS_connect, fd, to.__sockaddr__, n);
	struct pollfd end = {.fd = fd};
	begun += status == 0;
	while (status == 0 && refuses && !(end.revents & POLLHUP) && poll(&end, 1, -1) >= 0)
		;
	return (int)status;
}

static void *serve(void *unused)
{
	for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
		if (refuses)
			refuse(fd);
		else if (hang_ups > 0)
			hang_up(fd);
		else
			serve_one(fd);
		close(fd);
		__atomic_add_fetch(&served, 1, __ATOMIC_SEQ_CST);
	}
	return unused;
}

/* ---- what a right reply looks like; every lie is a variation of one ---- */

static size_t place(uint8_t *to, uint64_t segment, uint64_t bytes, uint64_t offset)
{
	uint8_t *p = to;
	memset(p, 7, 16);
	p += 16;
	put(&p, segment, 8);
	put(&p, bytes, 8);
	put(&p, offset, 8);
	return (size_t)(p - to);
}

static void right_get(uint64_t segment, uint64_t bytes, uint64_t offset, uint64_t size, uint32_t meta)
{
	uint8_t *start = script.bytes + 16, *p = start + place(start, segment, bytes, offset);
	script = (struct script){.fds = 1};
	place(start, segment, bytes, offset);
	put(&p, size, 8);
	put(&p, 2, 1);
	put(&p, meta, 4);
	memcpy(p, "{}", 2);
	p += 2;
	header(script.bytes, (uint32_t)(p - start), GET | REPLY, 1, 2);
	script.n = (size_t)(p - script.bytes);
}

static void right_bytes(int type, const void *payload, size_t n)
{
	script = (struct script){.n = 16 + n};
	header(script.bytes, (uint32_t)n, (uint16_t)(type | REPLY), 0, 2);
	if (n)
		memcpy(script.bytes + 16, payload, n);
}

static void right_open(void) { right_bytes(OPEN, (uint8_t[20]){5, [8] = 16}, 20); }

static void right_fill(void)
{
	right_get(1, PAGE, 64, 100, 2);
	script.bytes[4] = FILL;
}

/* A pop is the second request. */
static void right_pop(void)
{
	right_open();
	prelude.is = script;
	right_get(1, PAGE, 64, 100, 2);
	memmove(script.bytes + 24, script.bytes + 16, script.n - 16);
	memset(script.bytes + 16, 0, 8);
	script.bytes[16] = 9; /* the frame's number */
	script.n += 8;
	header(script.bytes, (uint32_t)(script.n - 16), POP | REPLY, 1, 3);
}

/* A claim comes on the second connection, for what the first one brought. */
static void right_reclaim(void)
{
	right_get(1, PAGE, 64, 100, 2);
	prelude.is = script;
	prelude.hang_up = true;
	right_bytes(RECLAIM, (uint8_t[]){1, 0, 2}, 3);
}

static void right_create(void)
{
	script = (struct script){.fds = 1};
	size_t n = place(script.bytes + 16, 1, PAGE, 0);
	header(script.bytes, (uint32_t)n, CREATE | REPLY, 1, 2);
	script.n = 16 + n;
}

static void right_text(int type, const char *text)
{
	script = (struct script){.n = 16 + strlen(text)};
	header(script.bytes, (uint32_t)strlen(text), (uint16_t)(type | REPLY), 0, 2);
	memcpy(script.bytes + 16, text, strlen(text));
}

static void right_device(uint64_t bytes, uint64_t size, uint32_t meta)
{
	uint8_t *start = script.bytes + 16, *p = start + 32;
	script = (struct script){.fds = 1};
	memset(start, 7, 32);
	put(&p, size, 8);
	put(&p, bytes, 8);
	put(&p, 2, 1);
	put(&p, meta, 4);
	memcpy(p, "{}", 2);
	p += 2;
	header(script.bytes, (uint32_t)(p - start), GET_DEVICE | REPLY, 1, 2);
	script.n = (size_t)(p - script.bytes);
}

static const char gpus[] =
	"[{\"index\":0,\"uuid\":\"000102030405060708090a0b0c0d0e0f\",\"name\":\"A \\\"GPU\\\"\",\"memory_bytes\":12,"
	"\"shares\":true,\"new\":[]},{\"index\":7,\"uuid\":\"100102030405060708090a0b0c0d0e0f\"}]";

static const char listing[] =
	"[{\"id\":\"000102030405060708090a0b0c0d0e0f\",\"name\":\"a\\u00e9\\ud83d\\ude00\",\"class\":\"named\",\"size_bytes\":12,"
	"\"labels\":{\"k\":\"v\\\"\"},\"meta\":{\"x\":[1,2,{\"y\":null}]},\"strict\":false,\"new\":[[],{}]}][{\"name\":null}]";

/* A page, the last one where next is "". */
static void right_page(const char *next, const char *text)
{
	uint8_t bytes[4096], *p = bytes;
	put(&p, strlen(next), 2);
	memcpy(p, next, strlen(next));
	p += strlen(next);
	put(&p, strlen(text), 4);
	memcpy(p, text, strlen(text));
	right_bytes(LIST, bytes, (size_t)(p - bytes) + strlen(text));
}

/* Gets an object, loses the connection, and comes back; what the claim was told shows in *gone. */
static int come_back(bool *gone)
{
	tendril *t;
	tendril_object o;
	tendril_info *info;
	prelude.told = false;
	int status = tendril_connect_with(&(tendril_connect_options){.socket = path, .patience_ms = 1}, &t);
	if (status != TENDRIL_OK)
		return status;
	OK(tendril_get(t, tendril_named("x"), 0, &o));
	status = tendril_stat(t, tendril_by_id(o.id), &info); /* nobody answers it */
	CHECK(status != TENDRIL_OK);
	*gone = tendril_gone(&o);
	for (uint64_t i = 0; i < o.size; i++)
		CHECK(((const char *)o.data)[i] == 5);
	tendril_release(&o);
	tendril_close(t);
	return status;
}

/* One call against the script; its status. What it brought is given back. */
static int call(int kind)
{
	tendril *t;
	tendril_object o;
	tendril_buffer b;
	tendril_info *info;
	tendril_stream *s;
	tendril_device_object in_gpu;
	tendril_device gpu;
	size_t n;
	bool gone;
	prelude.told = false;
	if (kind == RECLAIM)
		return come_back(&gone);
	int status = tendril_connect_with(&(tendril_connect_options){.socket = path, .no_reconnect = 1}, &t);
	if (status != TENDRIL_OK)
		return status;
	switch (kind) {
	case GET:
		status = tendril_get(t, tendril_named("x"), 0, &o);
		for (uint64_t i = 0; status == TENDRIL_OK && i < o.size; i++)
			CHECK(((const char *)o.data)[i] == 5);
		tendril_release(&o);
		break;
	case CREATE:
		status = tendril_create(t, 100, NULL, &b);
		if (status == TENDRIL_OK)
			memset(b.data, 5, b.size);
		tendril_abort(&b);
		break;
	case SWEEP:
		status = tendril_sweep(t);
		break;
	case OPEN:
	case POP:
		status = tendril_stream_read(t, "x", NULL, &s);
		if (status == TENDRIL_OK && kind == POP) {
			status = tendril_stream_pop(s, 0, &o, NULL);
			for (uint64_t i = 0; status == TENDRIL_OK && i < o.size; i++)
				CHECK(((const char *)o.data)[i] == 5);
			tendril_release(&o);
		}
		tendril_stream_close(s);
		break;
	case FILL:
		status = tendril_fill(t, tendril_named("x"), &b);
		if (status == TENDRIL_OK)
			memset(b.data, 5, b.size);
		tendril_abort(&b);
		break;
	case COMPOSE:
		status = tendril_compose(t, &(tendril_member){"m", {{1}}}, 1, NULL, &o);
		CHECK(o.data == NULL);
		tendril_release(&o);
		break;
	case GET_DEVICE:
		status = tendril_get_device(t, tendril_named("x"), 0, &in_gpu);
		CHECK((status == TENDRIL_OK) == (in_gpu.fd >= 0));
		CHECK(in_gpu.size <= in_gpu.bytes && in_gpu.meta_size <= TENDRIL_MAX_META);
		tendril_release_device(&in_gpu);
		break;
	case GPUS:
		status = tendril_find_gpu(t, "cuda:7", &gpu);
		break;
	case STAT:
		status = tendril_stat(t, tendril_named("x"), &info);
		tendril_info_free(info);
		break;
	default:
		status = tendril_list(t, NULL, &info, &n);
		for (size_t i = 0; status == TENDRIL_OK && i < n; i++)
			CHECK(strlen(info[i].name) + strlen(info[i].meta) + info[i].label_count < MAX_REPLY);
		tendril_info_free(info);
	}
	tendril_close(t);
	return status;
}

static void right_ones(void)
{
	tendril *t;
	tendril_info *info;
	size_t n;
	right_get(1, PAGE, 64, 100, 2);
	OK(call(GET));
	right_get(1, PAGE, 64, 100, 2);
	script.piece = 1;
	OK(call(GET));
	right_create();
	OK(call(CREATE));
	right_page("", listing);
	OK(tendril_connect(path, &t));
	OK(tendril_list(t, NULL, &info, &n));
	CHECK(n == 2 && strcmp(info[0].name, "aé😀") == 0 && info[0].size == 12 && info[0].labels[0].value[1] == '"');
	CHECK(strcmp(info[0].meta, "{\"x\":[1,2,{\"y\":null}]}") == 0 && *info[1].name == 0 && info[1].label_count == 0);
	tendril_info_free(info);
	tendril_close(t);
}

static void lying_places(void)
{
	static const struct { uint64_t segment, bytes, offset, size; uint32_t meta; } lies[] = {
		{1, PAGE, 0, PAGE + 1, 2}, {1, PAGE, 64, PAGE, 2}, {1, PAGE, UINT64_MAX, 1, 2},
		{1, PAGE, UINT64_MAX - 50, 100, 2}, {1, 1ull << 40, 0, 1, 2}, {1, 2 * PAGE, 0, 1, 2},
		{1, UINT64_MAX, 0, UINT64_MAX, 2}, {1, 0, 0, 1, 2}, {0, PAGE, 0, 1, 2},
		{1, PAGE, 0, 1, 3}, {1, PAGE, 0, 1, 1}, {1, PAGE, 0, 1, UINT32_MAX},
	};
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		right_get(lies[i].segment, lies[i].bytes, lies[i].offset, lies[i].size, lies[i].meta);
		IS(TENDRIL_PROTOCOL, call(GET));
	}
}

static void wrong_descriptors(void)
{
	for (int fds = 0; fds <= 12; fds++) {
		right_get(1, PAGE, 64, 100, 2);
		script.fds = fds;
		/* A few more may belong to the next frame. */
		IS(fds >= 1 && fds <= 4 ? TENDRIL_OK : TENDRIL_PROTOCOL, call(GET));
	}
	right_get(1, PAGE, 64, 100, 2);
	script.bytes[6] = 0; /* no descriptor is announced, so that the segment is unknown */
	IS(TENDRIL_PROTOCOL, call(GET));
	right_get(1, PAGE, 64, 100, 2);
	script.bytes[6] = 2;
	script.fds = 2;
	IS(TENDRIL_PROTOCOL, call(GET));
}

static void broken_frames(void)
{
	right_get(1, PAGE, 64, 100, 2);
	struct script right = script;
	for (size_t n = 0; n < right.n; n++) { /* every truncation */
		script = right;
		script.n = n;
		script.fds = n ? 1 : 0;
		IS(TENDRIL_DISCONNECTED, call(GET));
	}
	static const struct { int at; uint8_t value; } lies[] = {
		{3, 1}, {2, 0x20}, {5, 0}, {4, 9}, {6, 8}, {6, 3}, {7, 1}, {8, 3}};
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		script = right;
		script.bytes[lies[i].at] = lies[i].value;
		IS(TENDRIL_PROTOCOL, call(GET));
	}
	script = (struct script){.n = MAX_REPLY};
	memset(script.bytes, 0xA5, MAX_REPLY);
	IS(TENDRIL_PROTOCOL, call(GET));
	script.greet_badly = true;
	IS(TENDRIL_PROTOCOL, call(GET));
	script = (struct script){.greet_badly = true};
	IS(TENDRIL_DISCONNECTED, call(GET));
}

static void right(int kind)
{
	memset(&prelude, 0, sizeof prelude);
	switch (kind) {
	case GET: right_get(1, PAGE, 64, 100, 2); break;
	case CREATE: right_create(); break;
	case OPEN: right_open(); break;
	case POP: right_pop(); break;
	case FILL: right_fill(); break;
	case COMPOSE: right_bytes(COMPOSE, "\7\7\7\7\7\7\7\7\7\7\7\7\7\7\7\7", 16); break;
	case RECLAIM: right_reclaim(); break;
	case SWEEP: right_bytes(SWEEP, "\2\0\0\0""12345678""abcdefgh", 20); break;
	case LIST: right_page("", listing); break;
	case GET_DEVICE: right_device(2 << 20, 100, 2); break;
	case GPUS: right_text(GPUS, gpus); break;
	default: right_text(kind, "{\"id\":\"000102030405060708090a0b0c0d0e0f\",\"meta\":{},\"labels\":{\"a\":\"b\"}}");
	}
}

/* Replies about streams, fills and composites: right, cut at every byte, too long, with too few and too many
 * descriptors. */
static void newer_replies(void)
{
	static const int kinds[] = {OPEN, POP, FILL, COMPOSE, GET_DEVICE};
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		int kind = kinds[k];
		right(kind);
		OK(call(kind));
		script.piece = 1;
		OK(call(kind));
		size_t n = script.n;
		for (size_t cut = 0; cut < n; cut++) {
			right(kind);
			script.n = cut;
			script.fds = cut ? script.fds : 0;
			IS(TENDRIL_DISCONNECTED, call(kind));
		}
		/* The header and the size agree, but the payload is another one. */
		for (int longer = -1; longer <= 1; longer += 2) {
			right(kind);
			script.n += (size_t)longer;
			script.bytes[0] = (uint8_t)(script.n - 16);
			IS(TENDRIL_PROTOCOL, call(kind));
		}
		for (int fds = 0; fds <= 12 && (kind == POP || kind == FILL); fds++) {
			right(kind);
			script.fds = fds;
			IS(fds >= 1 && fds <= 4 ? TENDRIL_OK : TENDRIL_PROTOCOL, call(kind));
		}
		right(kind); /* more of it is announced */
		script.bytes[6] |= 4;
		int status = call(kind);
		CHECK(status == TENDRIL_PROTOCOL || status == TENDRIL_DISCONNECTED);
		right(kind);
		script.bytes[4] ^= 1; /* a reply to something else */
		IS(TENDRIL_PROTOCOL, call(kind));
	}
	static const struct { uint64_t segment, bytes, offset, size; } lies[] = {
		{1, PAGE, 0, PAGE + 1}, {1, PAGE, 64, PAGE}, {1, PAGE, UINT64_MAX, 1}, {1, PAGE, UINT64_MAX - 50, 100},
		{1, 1ull << 40, 0, 1},
		{1, 2 * PAGE, 0, 1}, {1, UINT64_MAX, 0, UINT64_MAX}, {1, 0, 0, 1}, {0, PAGE, 0, 1},
	};
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
		for (int kind = POP; kind <= FILL; kind += FILL - POP) {
			right(kind);
			uint8_t *p = script.bytes + 16 + (kind == POP ? 8 : 0);
			size_t at = place(p, lies[i].segment, lies[i].bytes, lies[i].offset);
			p += at;
			put(&p, lies[i].size, 8);
			IS(TENDRIL_PROTOCOL, call(kind));
		}
	memset(&prelude, 0, sizeof prelude);
}

/* Claims that are answered with lies: what is held stays readable, and is not said to be gone. */
static void lying_verdicts(void)
{
	bool gone = true;
	for (int verdict = 0; verdict <= 2; verdict++) {
		right(RECLAIM);
		script.bytes[18] = (uint8_t)verdict;
		/* It came back. What it asks then finds nobody, or, where nothing is left to claim, a claim's answer. */
		IS(verdict == 0 ? TENDRIL_PROTOCOL : TENDRIL_DISCONNECTED, come_back(&gone));
		CHECK(gone == (verdict == 0));
	}
	static const struct { uint8_t count, high, verdict, n; } lies[] = {
		{1, 0, 3, 3}, {1, 0, 255, 3}, {0, 0, 0, 3}, {2, 0, 0, 3}, {255, 255, 0, 3}, {1, 0, 0, 2}, {1, 0, 0, 1},
		{1, 0, 0, 0}, {1, 0, 0, 4}, {2, 0, 0, 4},
		{0, 0, 0, 2},
	};
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		right(RECLAIM);
		memcpy(script.bytes + 16, (uint8_t[]){lies[i].count, lies[i].high, lies[i].verdict, 0}, 4);
		script.bytes[0] = lies[i].n;
		script.n = 16u + lies[i].n;
		CHECK(come_back(&gone) != TENDRIL_OK && !gone);
	}
	right(RECLAIM);
	for (size_t cut = 0, n = script.n; cut < n; cut++) {
		right(RECLAIM);
		script.n = cut;
		IS(TENDRIL_DISCONNECTED, come_back(&gone));
		CHECK(!gone);
	}
	for (int fds = 1; fds <= 12; fds++) { /* descriptors that nobody announced */
		right(RECLAIM);
		script.fds = fds;
		IS(TENDRIL_DISCONNECTED, come_back(&gone));
	}
	memset(&prelude, 0, sizeof prelude);
}

static void errors(void)
{
	static const uint8_t text[] = {3, 0, 4, 0, 'g', 'o', '\n', 'e'};
	script = (struct script){.n = 24};
	header(script.bytes, 8, ERROR_FRAME, 0, 2);
	memcpy(script.bytes + 16, text, sizeof text);
	struct script right = script;
	IS(TENDRIL_NOT_FOUND, call(GET));
	CHECK(strcmp(tendril_message(), "go e") == 0);
	script.bytes[8] = 0; /* to no request: the end */
	IS(TENDRIL_DISCONNECTED, call(GET));
	CHECK(strstr(tendril_message(), "go e"));
	script = right;
	script.bytes[16] = 0; /* code 0 */
	IS(TENDRIL_PROTOCOL, call(GET));
	script = right;
	script.bytes[18] = 5; /* a longer text than there is */
	IS(TENDRIL_PROTOCOL, call(GET));
	script = right;
	script.bytes[16] = 77; /* a newer daemon's */
	IS(77, call(GET));
}

/* What the tenant may have no more of is no memory that others are about to unmap: it is not asked for again. */
static void limit(void)
{
	static const uint8_t text[] = {16, 0, 4, 0, 'm', 'a', 'n', 'y'};
	script = (struct script){.n = 24};
	header(script.bytes, 8, ERROR_FRAME, 0, 2);
	memcpy(script.bytes + 16, text, sizeof text);
	IS(TENDRIL_LIMIT, call(CREATE));
	while (__atomic_load_n(&served, __ATOMIC_SEQ_CST) < begun)
		pause_ms(1);
	CHECK(__atomic_load_n(&requests, __ATOMIC_SEQ_CST) == 2); /* Hello, Create */
}

/* A client that was refused memory asks again while memory is being freed that helps: for a quota, the tenant's own. */
static void leaving(void)
{
	static const struct {
		int status;
		const char *text;
		bool goes_on;
	} cases[] = {
		{TENDRIL_QUOTA, "{\"store\":{\"leaving_bytes\":5,\"tenant_leaving_bytes\":0}}", false},
		{TENDRIL_QUOTA, "{\"store\":{\"leaving_bytes\":5,\"tenant_leaving_bytes\":5}}", true},
		{TENDRIL_QUOTA, "{\"store\":{\"leaving_bytes\":5}}", true}, /* an older daemon */
		{TENDRIL_FULL, "{\"store\":{\"leaving_bytes\":5,\"tenant_leaving_bytes\":0}}", true},
		{TENDRIL_FULL, "{\"store\":{\"leaving_bytes\":0,\"tenant_leaving_bytes\":0}}", false},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		store.status = cases[i].status;
		store.text = cases[i].text;
		store.creates = 0;
		store.enough = 7; /* more than are made without asking what leaves */
		IS(cases[i].goes_on ? TENDRIL_INVALID : cases[i].status, call(CREATE));
	}
	store.status = 0;
}

static void refused(void)
{
	tendril *t;
	refuses = true;
	IS(TENDRIL_BUSY, tendril_connect(path, &t));
	refuses = false;
	CHECK(strstr(tendril_message(), "too many"));
}

static void bad_json(void)
{
	static const char *const lists[] = {
		"", "{", "[", "[{]", "[{}", "[{\"id\":1}]", "[{\"id\":\"zz\"}]", "[{\"name\":\"\\u12\"}]", "[{\"name\":\"\\", "[{\"size_bytes\":-1}]",
		"[{\"size_bytes\":99999999999999999999}]", "[{\"labels\":[]}]", "[{\"labels\":{\"a\"}}]", "[{\"meta\":}]", "[{\"x\":[[[[}]", "[]x", "null", "[{\"strict\":1}]",
		"[{\"meta\":{\"a\":\"\\\"}}]",
	};
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		right_page("", lists[i]);
		IS(TENDRIL_PROTOCOL, call(LIST));
	}
	char deep[3000];
	memset(deep, '[', sizeof deep - 1);
	deep[sizeof deep - 1] = 0;
	memcpy(deep, "[{\"x\":", 6);
	right_page("", deep);
	IS(TENDRIL_PROTOCOL, call(LIST));
	right_text(STAT, "{\"name\":\"\\ud800\\u0000\"}");
	OK(call(STAT));
}

/* Random changes to right replies. The seed is fixed, so that a failure can be repeated. */
static void mutations(void)
{
	enum { KINDS = 12 };
	static const int kinds[KINDS] = {GET, CREATE, LIST, STAT, SWEEP, OPEN, POP, FILL, COMPOSE, RECLAIM, GET_DEVICE,
	                                 GPUS};
	unsigned seed = 20261121;
	int statuses = 0;
	for (int round = 0; round < 4000; round++) {
		int kind = kinds[round % KINDS];
		right(kind);
		for (int changes = rand_r(&seed) % 4; changes > 0; changes--)
			script.bytes[(unsigned)rand_r(&seed) % script.n] = (uint8_t)rand_r(&seed);
		if (rand_r(&seed) % 8 == 0)
			script.n = (unsigned)rand_r(&seed) % script.n;
		if (rand_r(&seed) % 8 == 0)
			script.fds = script.n ? rand_r(&seed) % 6 : 0;
		if (script.n == 0)
			script.fds = 0;
		int status = call(kind);
		CHECK(status >= TENDRIL_OK && status <= 0xFFFF);
		statuses |= 1 << (status == TENDRIL_OK ? 0 : status == TENDRIL_PROTOCOL ? 1 :
		                  status == TENDRIL_DISCONNECTED ? 2 : 3);
	}
	memset(&prelude, 0, sizeof prelude);
	CHECK((statuses & 7) == 7); /* the changes reach all three */
}

/* The bytes of a file in ipc/wire/testdata. Returns how many. */
static size_t golden(const char *name, uint8_t *to, size_t cap)
{
	char file[128];
	unsigned byte;
	size_t n = 0;
	snprintf(file, sizeof file, "../../ipc/wire/testdata/%s.hex", name);
	FILE *f = fopen(file, "r");
	CHECK(f);
	while (fscanf(f, "%2x", &byte) == 1 && n < cap)
		to[n++] = (uint8_t)byte;
	fclose(f);
	CHECK(n > 0 && n < cap);
	return n;
}

static void asked_golden(const char *name)
{
	uint8_t want[512];
	size_t n = golden(name, want, sizeof want);
	CHECK(last_n == n && memcmp(last, want, n) == 0);
}

/* The messages about memory of GPUs are the bytes that the daemon's own side has as its golden ones. */
static void golden_devices(void)
{
	uint8_t reply[512];
	size_t n = golden("DeviceReply", reply, sizeof reply);
	const tendril_device device = {{1, [15] = 2}};
	const tendril_id id = {{1, 2, [15] = 16}};
	const tendril_label label = {"a", "b"};
	const tendril_options o = {.name = "n", .lifetime = TENDRIL_TTL, .ttl_ms = 90, .meta = "m", .meta_size = 1,
	                           .labels = &label, .label_count = 1};
	tendril *t;
	tendril_device_buffer b;
	memset(&prelude, 0, sizeof prelude);
	right_bytes(CREATE_DEVICE, reply, n);
	script.bytes[6] = script.fds = 1;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = path, .no_reconnect = 1}, &t));
	OK(tendril_create_device(t, &device, 5, &o, &b));
	asked_golden("CreateDeviceRequest");
	CHECK(memcmp(&b.id, &id, sizeof id) == 0 && memcmp(&b.device, &device, sizeof device) == 0);
	CHECK(b.size == 99 && b.bytes == 2 << 20 && b.fd >= 0);
	tendril_abort_device(&b);
	CHECK(b.fd == -1);
	tendril_close(t);
	right_bytes(COPY, NULL, 0);
	OK(tendril_connect_with(&(tendril_connect_options){.socket = path, .no_reconnect = 1}, &t));
	OK(tendril_copy(t, &id, 1ull << 33, tendril_named("n"), 7, 1ull << 34));
	asked_golden("CopyRequest");
	tendril_close(t);
}

/* What a reply about memory of a GPU must not say. */
static void lying_devices(void)
{
	static const struct { uint64_t bytes, size; uint32_t meta; } lies[] = {
		{100, 101, 2}, {100, 0, 2}, {0, 0, 2}, {UINT64_MAX, 0, 2}, {100, 100, 3}, {100, 100, 1},
		{100, 100, UINT32_MAX}};
	right(GET_DEVICE);
	OK(call(GET_DEVICE));
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		right_device(lies[i].bytes, lies[i].size, lies[i].meta);
		IS(TENDRIL_PROTOCOL, call(GET_DEVICE));
	}
	right(GET_DEVICE);
	script.bytes[6] = script.fds = 0;
	IS(TENDRIL_PROTOCOL, call(GET_DEVICE));
	right(GET_DEVICE);
	script.bytes[6] = 3;
	script.fds = 2;
	IS(TENDRIL_PROTOCOL, call(GET_DEVICE));
	right(GPUS);
	OK(call(GPUS));
	static const char *const lists[] = {"", "null", "{}", "[", "[1]", "[{\"uuid\":\"zz\"}]", "[{\"index\":-1}]",
	                                    "[{}]x"};
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		right_text(GPUS, lists[i]);
		IS(TENDRIL_PROTOCOL, call(GPUS));
	}
	right_text(GPUS, "[{\"index\":3}]");
	IS(TENDRIL_NO_DEVICE, call(GPUS));
}

/* A daemon that ends a connection before its first answer is asked a second time, and no third. */
static void once_more(void)
{
	for (int n = 0; n <= 2; n++) {
		tendril *t = NULL;
		int before = begun;
		hang_ups = n;
		IS(n < 2 ? TENDRIL_OK : TENDRIL_DISCONNECTED, tendril_connect(path, &t));
		IS(n == 0 ? 1 : 2, begun - before);
		tendril_close(t);
	}
}

/* A call that alters nothing is repeated while the connections that it is repeated on break, four times at most. One
 * that may have taken place is not. */
static void cut_off(void)
{
	for (int n = 0; n <= 5; n++) {
		tendril *t;
		tendril_info *info;
		right(STAT);
		tendril_connect_options o = {.socket = path, .index = -1, .patience_ms = PATIENCE_MS};
		OK(tendril_connect_with(&o, &t));
		int before = begun;
		cuts = n;
		IS(n < 5 ? TENDRIL_OK : TENDRIL_DISCONNECTED, tendril_stat(t, tendril_named("x"), &info));
		tendril_info_free(info);
		IS(n < 5 ? n : 4, begun - before);
		cuts = 1;
		IS(TENDRIL_DISCONNECTED, tendril_delete(t, tendril_named("x")));
		tendril_close(t);
		cuts = 0;
	}
}

int main(void)
{
	pthread_t server;
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	CHECK(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/s", dir);
	strcpy(at.sun_path, path);
	memory = memfd_create("hostile", MFD_CLOEXEC);
	CHECK(memory >= 0 && ftruncate(memory, PAGE) == 0);
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	CHECK(page != MAP_FAILED);
	memset(page, 5, PAGE);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 16) == 0);
	CHECK(pthread_create(&server, NULL, serve, NULL) == 0);
	int before = count_fds();
	right_ones();
	lying_places();
	wrong_descriptors();
	broken_frames();
	newer_replies();
	lying_verdicts();
	errors();
	limit();
	leaving();
	refused();
	once_more();
	cut_off();
	bad_json();
	golden_devices();
	lying_devices();
	mutations();
	shutdown(listener, SHUT_RDWR);
	pthread_join(server, NULL);
	CHECK(count_fds() == before);
	unlink(path);
	rmdir(dir);
	munmap(page, PAGE);
	printf("test_hostile: passed\n");
	return 0;
}
