// store measures the C client against the daemon at $TENDRIL_SOCKET. It reads a
// test's name a line on standard input and prints one number a line: the median
// time of a call in ns, or operations or bytes per second.
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#include "tendril.h"

#define CHECK(e) do { if ((e) != TENDRIL_OK) { \
	fprintf(stderr, "store: %s: %s\n", #e, tendril_message()); exit(1); } } while (0)

enum { WARM = 300, CALLS = 3000, SMALL = 4096, MEDIUM = 1 << 20, CLIENTS = 4, TINY = 64 };
#define LARGE (1ul << 30)

static tendril *writer, *reader;

static int ascending(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

// median_of gives the median time of CALLS calls, after WARM ones.
static double median_of(void (*call)(void *), void *arg)
{
	static double took[CALLS];
	for (int i = -WARM; i < CALLS; i++) {
		double start = now();
		call(arg);
		if (i >= 0)
			took[i] = now() - start;
	}
	qsort(took, CALLS, sizeof *took, ascending);
	return took[CALLS / 2];
}

static void get_once(void *id)
{
	tendril_object o;
	CHECK(tendril_get(reader, tendril_by_id(*(tendril_id *)id), 0, &o));
	if (!o.data)
		exit(1);
	tendril_release(&o);
}

static double get_release(uint64_t size)
{
	tendril_buffer b;
	tendril_object o;
	CHECK(tendril_create(writer, size, NULL, &b));
	CHECK(tendril_seal(&b, &o));
	double ns = median_of(get_once, &o.id);
	tendril_release(&o);
	return ns;
}

static double get_tiny(void) { return get_release(TINY); }
static double get_shared(void) { return get_release(1 << 20); }
static double get_large(void) { return get_release(LARGE); }

static char content[SMALL];

static void create_once(void *unused)
{
	tendril_buffer b;
	(void)unused;
	CHECK(tendril_create(writer, SMALL, NULL, &b));
	memcpy(b.data, content, SMALL);
	CHECK(tendril_seal(&b, NULL));
}

static double create_seal(void) { return median_of(create_once, NULL); }

static char *warm;

// fill gives the rate of create + fill + seal of 1 GiB in memory that an earlier one left warm.
static double fill(void)
{
	if (!warm) {
		warm = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (warm == MAP_FAILED)
			exit(1);
		memset(warm, 1, LARGE);
	}
	double start = now();
	CHECK(tendril_put(writer, warm, LARGE, NULL, NULL));
	return LARGE / (now() - start) * 1e9;
}

static void fill_once(void *from)
{
	tendril_buffer b;
	CHECK(tendril_create(writer, MEDIUM, NULL, &b));
	memcpy(b.data, from, MEDIUM);
	CHECK(tendril_seal(&b, NULL));
}

// fill_in_place gives the time of create + fill + seal of 1 MiB that the program writes itself, and lets go of.
static double fill_in_place(void)
{
	static char *from;
	if (!from) {
		from = malloc(MEDIUM);
		if (!from)
			exit(1);
		memset(from, 1, MEDIUM);
	}
	return median_of(fill_once, from);
}

// first_read gives the rate at which a new process gets 1 GiB, enters all of its pages and looks at each. What the memcpy
// reference's process does in a fork, this one does in a fork, too, on a connection of its own.
static double first_read(void)
{
	int result[2];
	double rate = -1;
	tendril_buffer b;
	tendril_object o;
	if (pipe(result))
		exit(1);
	CHECK(tendril_create(writer, LARGE, NULL, &b));
	memset(b.data, 1, LARGE);
	CHECK(tendril_seal(&b, &o));
	if (fork() == 0) {
		tendril *t;
		tendril_object got;
		volatile char sum = 0;
		CHECK(tendril_connect(NULL, &t));
		double start = now();
		CHECK(tendril_get(t, tendril_by_id(o.id), 0, &got));
		tendril_populate(&got);
		for (size_t at = 0; at < LARGE; at += 4096)
			sum += ((const char *)got.data)[at];
		rate = LARGE / (now() - start) * 1e9;
		_exit(write(result[1], &rate, sizeof rate) != sizeof rate);
	}
	close(result[1]);
	if (read(result[0], &rate, sizeof rate) != sizeof rate)
		exit(1);
	close(result[0]);
	wait(NULL);
	tendril_release(&o);
	return rate;
}

// churn_client creates, seals and deletes objects of 64 bytes for a second, from the moment that go is closed.
static long churn_client(int go)
{
	tendril *t;
	char byte;
	long n = 0;
	CHECK(tendril_connect_with(&(tendril_connect_options){.defer = 1}, &t));
	if (read(go, &byte, 1) != 0)
		exit(1);
	for (double end = now() + 1e9; now() < end; n++) {
		tendril_buffer b;
		CHECK(tendril_create(t, TINY, NULL, &b));
		memcpy(b.data, content, TINY);
		tendril_id id = b.id;
		tendril_object o;
		CHECK(tendril_seal(&b, &o));
		CHECK(tendril_delete(t, tendril_by_id(id)));
		tendril_release(&o);
	}
	tendril_close(t);
	return n;
}

// churn gives how many objects 4 processes create, seal and delete in a second.
static double churn(void)
{
	int go[2], count[2];
	long total = 0, n;
	if (pipe(go) || pipe(count))
		exit(1);
	for (int i = 0; i < CLIENTS; i++)
		if (fork() == 0) {
			close(go[1]);
			n = churn_client(go[0]);
			_exit(write(count[1], &n, sizeof n) != sizeof n);
		}
	close(go[0]);
	close(go[1]);
	close(count[1]);
	while (read(count[0], &n, sizeof n) == sizeof n)
		total += n;
	close(count[0]);
	while (wait(NULL) > 0)
		;
	return total;
}

static const struct { const char *name; double (*run)(void); } tests[] = {
	{"get_release_64B", get_tiny}, {"get_release_1MiB", get_shared}, {"get_release_1GiB", get_large},
	{"create_seal_4KiB", create_seal}, {"fill_1GiB", fill}, {"churn_64B", churn},
	{"first_read_1GiB", first_read}, {"fill_1MiB", fill_in_place},
};

/* idle waits for the next test and gives back, once a second, what this process maps without use: other figures are of
 * memory that comes back. Nobody fills stdin ahead, so that stdio holds no line. */
static void idle(void)
{
	struct pollfd in = {.fd = 0, .events = POLLIN};
	while (poll(&in, 1, 1000) == 0) {
		tendril_sweep(writer);
		tendril_sweep(reader);
	}
}

int main(int argc, char **argv)
{
	char line[64];
	(void)argv;
	tendril_connect_options options = {.defer = argc > 1};
	CHECK(tendril_connect_with(&options, &writer));
	CHECK(tendril_connect_with(&options, &reader));
	printf("ready\n");
	fflush(stdout);
	while (idle(), fgets(line, sizeof line, stdin)) {
		double value = -1;
		line[strcspn(line, "\n")] = 0;
		for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
			if (strcmp(tests[i].name, line) == 0)
				value = tests[i].run();
		printf("%.1f\n", value);
		fflush(stdout);
	}
	tendril_close(reader);
	tendril_close(writer);
	return 0;
}
