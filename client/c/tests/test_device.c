/* Objects in the memory of GPUs, against a real daemon and a CUDA driver for tests, in which a descriptor of memory is
 * a memfd. Needs FAKE_CUDA, that driver's path. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

#include "check.h"

enum { GRANULE = 2 << 20 };

static tendril *dial(void)
{
	tendril *t;
	OK(tendril_connect(daemon_socket, &t));
	return t;
}

static tendril_device gpu(tendril *t, const char *text)
{
	tendril_device d;
	OK(tendril_find_gpu(t, text, &d));
	return d;
}

/* The memory behind a descriptor, as a driver would map it. */
static char *map(int fd, uint64_t bytes)
{
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

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

static void which(void)
{
	tendril *t = dial();
	tendril_gpu *list;
	size_t n;
	tendril_device d;
	OK(tendril_gpus(t, &list, &n));
	CHECK(n == 2 && list[1].index == 1 && list[1].shares == 1 && strcmp(list[1].name, "Fake GPU 1") == 0);
	CHECK(list[1].device.bytes[0] == 0xfa && list[1].device.bytes[15] == 1 && list[1].bytes > 0);
	d = gpu(t, "cuda:1");
	CHECK(memcmp(&d, &list[1].device, sizeof d) == 0);
	d = gpu(t, "GPU-fafafafa-fafa-fafa-fafa-fafafafafa01");
	CHECK(memcmp(&d, &list[1].device, sizeof d) == 0);
	free(list);
	IS(TENDRIL_NO_DEVICE, tendril_find_gpu(t, "cuda:2", &d));
	static const char *const wrong[] = {"", "cuda:", "cuda:-1", "cuda:1x", "cuda", "GPU-fafa",
	                                    "fafafafafafafafafafafafafafafa0g", "fafafafafafafafafafafafafafafa0101"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		IS(TENDRIL_INVALID, tendril_find_gpu(t, wrong[i], &d));
	tendril_close(t);
}

static void put_and_get(void)
{
	tendril *writer = dial(), *reader = dial();
	tendril_device d = gpu(writer, "cuda:1");
	tendril_device_buffer b;
	tendril_device_object made, o, again;
	const tendril_options named = {.name = "g", .meta = "{\"n\":1}", .meta_size = 7};
	OK(tendril_create_device(writer, &d, 5000, &named, &b));
	CHECK(b.size == 5000 && b.bytes == GRANULE && b.fd >= 0 && fcntl(b.fd, F_GETFD) == FD_CLOEXEC);
	char *p = map(b.fd, b.bytes);
	for (size_t i = 0; i < b.bytes; i++)
		CHECK(p[i] == 0);
	memset(p, 'x', 5000);
	IS(TENDRIL_NOT_SEALED, tendril_get_device(reader, tendril_by_id(b.id), 0, &o));
	OK(tendril_seal_device(&b, &made));
	CHECK(b.fd == -1 && made.fd >= 0 && made.meta_size == 7 && made.lifetime == TENDRIL_NAMED);
	IS(TENDRIL_SEALED, tendril_seal_device(&b, NULL));
	tendril_abort_device(&b);
	OK(tendril_get_device(reader, tendril_named("g"), 0, &o));
	CHECK(o.size == 5000 && o.bytes == GRANULE && memcmp(&o.device, &d, sizeof d) == 0);
	CHECK(o.meta_size == 7 && strcmp(o.meta, "{\"n\":1}") == 0 && memcmp(&o.id, &made.id, sizeof o.id) == 0);
	char *q = map(o.fd, o.bytes);
	CHECK(q[0] == 'x' && q[4999] == 'x' && q[5000] == 0);
	p[0] = 'y';
	CHECK(q[0] == 'y'); /* the same memory */
	OK(tendril_get_device(reader, tendril_by_id(o.id), 0, &again));
	close(again.fd);
	again.fd = -1; /* as who handed the descriptor on */
	tendril_release_device(&again);
	tendril_release_device(&o);
	tendril_release_device(&o);
	tendril_release_device(&made);
	munmap(p, GRANULE);
	munmap(q, GRANULE);
	OK(tendril_delete(writer, tendril_named("g")));
	IS(TENDRIL_NOT_FOUND, tendril_get_device(reader, tendril_named("g"), 0, &o));
	CHECK(o.fd == -1);
	tendril_close(reader);
	tendril_close(writer);
}

/* What each function refuses, and that it says why. */
static void refusals(void)
{
	tendril *t = dial();
	tendril_device d = gpu(t, "cuda:0"), none = {{1}};
	tendril_device_buffer b;
	tendril_device_object o;
	tendril_object host;
	IS(TENDRIL_INVALID, tendril_create_device(t, &d, 0, NULL, &b));
	IS(TENDRIL_UNSUPPORTED, tendril_create_device(t, &none, 1, NULL, &b));
	CHECK(strstr(tendril_message(), "0100000000"));
	IS(TENDRIL_FULL, tendril_create_device(t, &d, 1ull << 40, NULL, &b));
	IS(TENDRIL_UNSUPPORTED, tendril_create_device(t, &d, 1, &(tendril_options){.strict = 1}, &b));
	IS(TENDRIL_UNSUPPORTED,
		tendril_create_device(t, &d, 1, &(tendril_options){.name = "p", .lifetime = TENDRIL_PERSISTED}, &b));
	char name[TENDRIL_MAX_NAME + 2];
	memset(name, 'n', sizeof name - 1);
	name[sizeof name - 1] = 0;
	IS(TENDRIL_INVALID, tendril_create_device(t, &d, 1, &(tendril_options){.name = name}, &b));
	CHECK(b.fd == -1);
	OK(tendril_put(t, "host", 4, &(tendril_options){.name = "h"}, NULL));
	IS(TENDRIL_UNSUPPORTED, tendril_get_device(t, tendril_named("h"), 0, &o));
	OK(tendril_create_device(t, &d, 10, &(tendril_options){.name = "h"}, &b));
	IS(TENDRIL_EXISTS, tendril_seal_device(&b, &o));
	IS(TENDRIL_EXISTS, tendril_seal_device_with(&b, "m", 1, &o));
	IS(TENDRIL_INVALID, tendril_seal_device_with(&b, "m", TENDRIL_MAX_META + 1, &o));
	CHECK(b.fd >= 0);
	OK(tendril_delete(t, tendril_named("h")));
	OK(tendril_seal_device_with(&b, "{\"a\":1}", 7, &o)); /* the buffer stayed */
	CHECK(o.meta_size == 7 && memcmp(o.meta, "{\"a\":1}", 7) == 0);
	IS(TENDRIL_SEALED, tendril_seal_device_with(&b, "m", 1, NULL));
	IS(TENDRIL_UNSUPPORTED, tendril_get(t, tendril_named("h"), 0, &host));
	CHECK(strstr(tendril_message(), "memory of GPU"));
	tendril_release_device(&o);
	OK(tendril_get_device(t, tendril_named("h"), 0, &o));
	CHECK(o.meta_size == 7 && memcmp(o.meta, "{\"a\":1}", 7) == 0);
	tendril_release_device(&o);
	OK(tendril_delete(t, tendril_named("h")));
	IS(TENDRIL_NOT_FOUND, tendril_get_device(t, tendril_named("h"), 0, &o));
	IS(TENDRIL_TIMEOUT, tendril_get_device(t, tendril_named("h"), 30, &o));
	tendril_close(t);
}

static void *make_later(void *unused)
{
	tendril *t = dial();
	tendril_device d = gpu(t, "cuda:0");
	tendril_device_buffer b;
	OK(tendril_create_device(t, &d, 10, &(tendril_options){.name = "late"}, &b));
	pause_ms(50);
	OK(tendril_seal_device(&b, NULL));
	tendril_close(t);
	return unused;
}

static void waiting(void)
{
	tendril *t = dial();
	tendril_device_object o;
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, make_later, NULL) == 0);
	OK(tendril_get_device(t, tendril_named("late"), TENDRIL_FOREVER, &o));
	tendril_release_device(&o);
	pthread_join(thread, NULL);
	OK(tendril_delete(t, tendril_named("late")));
	tendril_close(t);
}

/* Host to GPU, GPU to GPU, and back, by the daemon's keeper. */
static void copies(void)
{
	tendril *t = dial();
	tendril_device d[2] = {gpu(t, "cuda:0"), gpu(t, "cuda:1")};
	tendril_object host, back;
	tendril_buffer into;
	tendril_device_buffer b;
	tendril_device_object o[2];
	char *data = malloc(3 << 20);
	for (size_t i = 0; i < 3 << 20; i++)
		data[i] = (char)(i * 7 >> 3);
	OK(tendril_put(t, data, 3 << 20, NULL, &host));
	for (int i = 0; i < 2; i++) {
		OK(tendril_create_device(t, &d[i], 3 << 20, NULL, &b));
		OK(tendril_copy(t, &b.id, 0, tendril_by_id(i ? o[0].id : host.id), 0, 3 << 20));
		OK(tendril_seal_device(&b, &o[i]));
	}
	IS(TENDRIL_SEALED, tendril_copy(t, &o[0].id, 0, tendril_by_id(o[1].id), 0, 1));
	OK(tendril_create(t, 1000, &(tendril_options){.own = 1}, &into));
	IS(TENDRIL_INVALID, tendril_copy(t, &into.id, 0, tendril_by_id(o[1].id), 3 << 20, 1));
	OK(tendril_copy(t, &into.id, 1, tendril_by_id(o[1].id), 12345, 999));
	((char *)into.data)[0] = 'z';
	OK(tendril_seal(&into, &back));
	CHECK(((const char *)back.data)[0] == 'z' && memcmp((const char *)back.data + 1, data + 12345, 999) == 0);
	tendril_release(&back);
	tendril_release(&host);
	tendril_release_device(&o[0]);
	tendril_release_device(&o[1]);
	free(data);
	tendril_close(t);
}

/* The memory behind a handle, as the driver for tests opens it: its maker's process and descriptor, and its bytes. */
static char *open_handle(const uint8_t *handle, uint64_t bytes)
{
	uint32_t of[2];
	uint64_t whole;
	char path[64];
	memcpy(of, handle, sizeof of);
	memcpy(&whole, handle + sizeof of, sizeof whole);
	CHECK(whole == bytes);
	snprintf(path, sizeof path, "/proc/%u/fd/%u", (unsigned)of[0], (unsigned)of[1]);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	char *p = map(fd, bytes);
	close(fd);
	return p;
}

/* A copy goes out by a CUDA handle. It is no part of the object. */
static void handles(void)
{
	tendril *t = dial();
	tendril_device d = gpu(t, "cuda:1");
	tendril_device_buffer b;
	tendril_device_object o;
	tendril_ipc_copy copy, again;
	OK(tendril_create_device(t, &d, 5000, &(tendril_options){.name = "i"}, &b));
	IS(TENDRIL_NOT_SEALED, tendril_ipc_handle(t, tendril_by_id(b.id), &copy));
	OK(tendril_release_ipc(&copy)); /* it is zeroed */
	char *object = map(b.fd, b.bytes);
	memset(object, 'x', b.bytes);
	OK(tendril_seal_device(&b, &o));
	OK(tendril_ipc_handle(t, tendril_named("i"), &copy));
	CHECK(copy.size == 5000 && copy.bytes == GRANULE && memcmp(&copy.device, &d, sizeof d) == 0);
	char *p = open_handle(copy.handle, copy.bytes);
	CHECK(p[0] == 'x' && p[4999] == 'x' && p[5000] == 0 && p[GRANULE - 1] == 0);
	memset(p, 'y', GRANULE);
	CHECK(object[0] == 'x');
	OK(tendril_ipc_handle(t, tendril_by_id(o.id), &again));
	CHECK(memcmp(copy.handle, again.handle, sizeof copy.handle) != 0);
	tendril_release_device(&o);
	OK(tendril_delete(t, tendril_named("i")));
	IS(TENDRIL_NOT_FOUND, tendril_ipc_handle(t, tendril_named("i"), &(tendril_ipc_copy){.size = 1}));
	munmap(open_handle(again.handle, again.bytes), GRANULE); /* it stays when the object goes */
	pid_t child = fork();
	if (child == 0) {
		IS(TENDRIL_FORKED, tendril_ipc_handle(t, tendril_named("i"), &copy));
		IS(TENDRIL_FORKED, tendril_release_ipc(&again));
		OK(tendril_release_ipc(&again));
		tendril_close(t);
		_exit(0);
	}
	wait_ok(child);
	munmap(p, GRANULE);
	munmap(object, GRANULE);
	OK(tendril_release_ipc(&copy));
	CHECK(copy.size == 0);
	OK(tendril_release_ipc(&copy));
	OK(tendril_put(t, "host", 4, &(tendril_options){.name = "h"}, NULL));
	IS(TENDRIL_UNSUPPORTED, tendril_ipc_handle(t, tendril_named("h"), &copy));
	CHECK(strstr(tendril_message(), "host memory"));
	OK(tendril_delete(t, tendril_named("h")));
	tendril_close(t);
	IS(TENDRIL_DISCONNECTED, tendril_release_ipc(&again)); /* it went with the connection */
}

/* A forked child may not use the parent's, but may close its own copies of the descriptors. */
static void forked(void)
{
	tendril *t = dial();
	tendril_device d = gpu(t, "cuda:0");
	tendril_device_buffer b;
	tendril_device_object o;
	OK(tendril_create_device(t, &d, 10, NULL, &b));
	OK(tendril_seal_device(&b, &o));
	OK(tendril_create_device(t, &d, 10, NULL, &b));
	pid_t child = fork();
	if (child == 0) {
		tendril_device_object other;
		IS(TENDRIL_FORKED, tendril_get_device(t, tendril_by_id(o.id), 0, &other));
		IS(TENDRIL_FORKED, tendril_seal_device(&b, NULL));
		tendril_abort_device(&b);
		tendril_release_device(&o);
		tendril_close(t);
		_exit(0);
	}
	wait_ok(child);
	CHECK(fcntl(o.fd, F_GETFD) >= 0);
	OK(tendril_seal_device(&b, NULL));
	tendril_key key = tendril_by_id(o.id);
	tendril_release_device(&o);
	await_gone(t, key);
	tendril_close(t);
}

static void over_and_over(void)
{
	tendril *t = dial();
	tendril_device d = gpu(t, "cuda:0");
	tendril_device_buffer b;
	tendril_device_object o, got;
	for (int i = 0; i < 200; i++) { /* 400 MiB in all: more than the GPU has */
		OK(tendril_create_device(t, &d, 100, NULL, &b));
		if (i % 3 == 0) {
			tendril_abort_device(&b);
			continue;
		}
		OK(tendril_seal_device(&b, &o));
		OK(tendril_get_device(t, tendril_by_id(o.id), 0, &got));
		tendril_release_device(&o);
		tendril_release_device(&got);
	}
	tendril_close(t);
}

/* A daemon that takes over has what this process holds. Buffers end with the connection. */
static void taken_over(void)
{
	tendril *t = dial();
	tendril_device d = gpu(t, "cuda:0");
	tendril_device_buffer b, lost;
	tendril_device_object o, again;
	tendril_ipc_copy copy;
	OK(tendril_create_device(t, &d, 10, NULL, &b));
	OK(tendril_seal_device(&b, &o));
	OK(tendril_create_device(t, &d, 10, NULL, &lost));
	OK(tendril_ipc_handle(t, tendril_by_id(o.id), &copy));
	hand_over();
	OK(tendril_get_device(t, tendril_by_id(o.id), 0, &again));
	IS(TENDRIL_DISCONNECTED, tendril_seal_device(&lost, NULL));
	IS(TENDRIL_DISCONNECTED, tendril_release_ipc(&copy));
	OK(tendril_ipc_handle(t, tendril_by_id(o.id), &copy));
	OK(tendril_release_ipc(&copy));
	tendril_abort_device(&lost);
	tendril_release_device(&again);
	tendril_key key = tendril_by_id(o.id);
	tendril_release_device(&o); /* it was claimed, so this ends it */
	await_gone(t, key);
	tendril_close(t);
}

static void daemon_dies(void)
{
	tendril *t;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = daemon_socket, .no_reconnect = 1}, &t));
	tendril_device d = gpu(t, "cuda:0");
	tendril_device_buffer b;
	tendril_device_object o, other;
	OK(tendril_create_device(t, &d, 10, NULL, &b));
	OK(tendril_seal_device(&b, &o));
	OK(tendril_create_device(t, &d, 10, NULL, &b));
	kill_daemon();
	IS(TENDRIL_DISCONNECTED, tendril_seal_device(&b, NULL));
	tendril_abort_device(&b);
	IS(TENDRIL_DISCONNECTED, tendril_get_device(t, tendril_by_id(o.id), 0, &other));
	char *p = map(o.fd, o.bytes); /* the memory outlives the daemon as long as a descriptor of it */
	munmap(p, o.bytes);
	tendril_release_device(&o);
	tendril_close(t);
}

int main(void)
{
	static const struct test tests[] = {
		{"which", which}, {"put_and_get", put_and_get}, {"refusals", refusals}, {"waiting", waiting},
		{"copies", copies}, {"handles", handles}, {"forked", forked}, {"over_and_over", over_and_over},
		{"taken_over", taken_over},
	};
	const char *driver = getenv("FAKE_CUDA");
	if (!driver) {
		fprintf(stderr, "skipped: FAKE_CUDA names no driver\n");
		return 0;
	}
	setenv("TENDRIL_CUDA_DRIVER", driver, 1);
	return run_tests("test_device", tests, sizeof tests / sizeof *tests, daemon_dies);
}
