/* peer times a copy between two GPUs call by call: as the keeper makes it, and in other ways.
 *
 *   peer [FIRST SECOND [libcuda.so.1]]
 *
 * For each way and size a line: us of the first copy, the median of the others and its rate, the rate of the copying
 * alone, and the medians of each call. A way that fails says so, and the next one is tried. The ways are tried as they
 * are, and with peer access enabled. Each kind runs in a child: PEER_KINDS chooses some. The exit status is how many
 * failed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;

typedef struct {
	int type, handle_types, place, id;
	void *win32;
	unsigned char flags[8];
} allocation; /* CUmemAllocationProp */

typedef struct {
	int place, id, flags;
} access_to; /* CUmemAccessDesc */

#define FUNCTIONS(F) \
	F(init, "cuInit", (unsigned)) \
	F(error_name, "cuGetErrorName", (int, const char **)) \
	F(count, "cuDeviceGetCount", (int *)) \
	F(name, "cuDeviceGetName", (char *, int, int)) \
	F(driver, "cuDriverGetVersion", (int *)) \
	F(can_access, "cuDeviceCanAccessPeer", (int *, int, int)) \
	F(p2p, "cuDeviceGetP2PAttribute", (int *, int, int, int)) \
	F(retain, "cuDevicePrimaryCtxRetain", (void **, int)) \
	F(current, "cuCtxSetCurrent", (void *)) \
	F(synchronize, "cuCtxSynchronize", (void)) \
	F(enable, "cuCtxEnablePeerAccess", (void *, unsigned)) \
	F(create, "cuMemCreate", (u64 *, size_t, const allocation *, u64)) \
	F(export, "cuMemExportToShareableHandle", (void *, u64, int, u64)) \
	F(import, "cuMemImportFromShareableHandle", (u64 *, void *, int)) \
	F(release, "cuMemRelease", (u64)) \
	F(reserve, "cuMemAddressReserve", (u64 *, size_t, size_t, u64, u64)) \
	F(free_address, "cuMemAddressFree", (u64, size_t)) \
	F(map, "cuMemMap", (u64, size_t, size_t, u64, u64)) \
	F(set_access, "cuMemSetAccess", (u64, size_t, const access_to *, size_t)) \
	F(unmap, "cuMemUnmap", (u64, size_t)) \
	F(alloc, "cuMemAlloc_v2", (u64 *, size_t)) \
	F(free, "cuMemFree_v2", (u64)) \
	F(read, "cuMemcpyDtoH_v2", (void *, u64, size_t)) \
	F(copy, "cuMemcpyDtoD_v2", (u64, u64, size_t)) \
	F(copy_later, "cuMemcpyDtoDAsync_v2", (u64, u64, size_t, void *)) \
	F(peer, "cuMemcpyPeer", (u64, void *, u64, void *, size_t)) \
	F(stream, "cuStreamCreate", (void **, unsigned)) \
	F(wait, "cuStreamSynchronize", (void *)) \
	F(event, "cuEventCreate", (void **, unsigned)) \
	F(record, "cuEventRecord", (void *, void *)) \
	F(await, "cuStreamWaitEvent", (void *, void *, unsigned)) \
	F(fill, "cuMemsetD8_v2", (u64, unsigned char, size_t))

static struct {
#define F(field, symbol, arguments) int (*field) arguments;
	FUNCTIONS(F)
#undef F
} cu;

enum { REPEATS = 6, MOST_STREAMS = 4, MIB = 1 << 20, STEP = 256 * MIB };
/* who has the memory mapped: its own GPU, then the other one by a second call; both by one call; who copies alone; its
 * own GPU alone */
enum access { TWICE, BOTH, ALONE, OWN };
enum how { COPY, COPY_LATER, PEER };

typedef struct {
	const char *name;
	enum access access;
	int source; /* who copies: 0 the destination's context, 1 the source's */
	enum how how;
	int streams;
	size_t step;
	int kept; /* 1: mapped once for all copies; 2: addresses are reserved once */
} way;

static void *contexts[2];
static int gpus[2] = {0, 1}, children;
static void *streams[2][MOST_STREAMS];

static const char *failed; /* the call that did, of this way */
static int code;

/* missing stands for a function that the driver has not. */
static int missing(void) { return 500; }

/* times of this copy, by call */
enum { IMPORT, RESERVE, MAP, ACCESS, RELEASE, BEGIN, SYNC, UNMAP, FREE, CALLS };
static const char *calls[CALLS] = {"import", "reserve", "map", "access", "release", "copy", "sync", "unmap", "free"};
static double took[CALLS][REPEATS];
static int turn;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

#define TRY(what, call) do { \
	double began_ = now(); \
	code = cu.call; \
	if ((what) >= 0) took[(what) < 0 ? 0 : (what)][turn] += now() - began_; \
	if (code) { failed = #call; return -1; } \
} while (0)

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* later is the median of all but the first. */
static double later(const double *all)
{
	double some[REPEATS - 1];
	memcpy(some, all + 1, sizeof some);
	qsort(some, REPEATS - 1, sizeof *some, less);
	return some[(REPEATS - 1) / 2];
}

static int made(int gpu, size_t size, int *fd)
{
	allocation a = {1, 1, 1, gpus[gpu], NULL, {0}};
	u64 memory;
	TRY(-1, current(contexts[gpu]));
	TRY(-1, create(&memory, size, &a, 0));
	TRY(-1, export(fd, memory, 1, 0));
	TRY(-1, release(memory));
	return 0;
}

typedef struct {
	u64 at;
	int reserved, mapped;
} mapping;

static int mapped(const way *w, mapping *m, int gpu, int fd, size_t size)
{
	access_to own = {1, gpus[gpu], 3}, other = {1, gpus[!gpu], 3}, both[2] = {own, other};
	u64 memory;
	int driver = w->source ? 1 : 0; /* 0: destination, 1: source, as gpu is */
	TRY(-1, current(contexts[gpu]));
	TRY(IMPORT, import(&memory, (void *)(intptr_t)fd, 1));
	if (!m->reserved)
		TRY(RESERVE, reserve(&m->at, size, 0, 0, 0));
	m->reserved = 1;
	TRY(MAP, map(m->at, size, 0, memory, 0));
	m->mapped = 1;
	switch (w->access) {
	case TWICE:
		TRY(ACCESS, set_access(m->at, size, &own, 1));
		if (gpu != driver)
			TRY(ACCESS, set_access(m->at, size, &other, 1));
		break;
	case BOTH:
		TRY(ACCESS, set_access(m->at, size, both, gpu != driver ? 2 : 1));
		break;
	case ALONE:
		TRY(ACCESS, set_access(m->at, size, gpu == driver ? &own : &other, 1));
		break;
	case OWN:
		TRY(ACCESS, set_access(m->at, size, &own, 1));
		break;
	}
	TRY(RELEASE, release(memory));
	return 0;
}

static int unmapped(mapping *m, size_t size, int keep)
{
	if (m->mapped)
		TRY(UNMAP, unmap(m->at, size));
	m->mapped = 0;
	if (m->reserved && !keep) {
		TRY(FREE, free_address(m->at, size));
		m->reserved = 0;
	}
	return 0;
}

static int copied(const way *w, u64 to, u64 from, size_t size)
{
	int driver = w->source ? 1 : 0, n = w->streams ? w->streams : 1, next = 0;
	TRY(-1, current(contexts[driver]));
	for (size_t at = 0, step; at < size; at += step) {
		void *s = streams[driver][next++ % n];
		step = w->step && w->step < size - at ? w->step : size - at;
		if (!w->step && n > 1)
			step = size / n;
		switch (w->how) {
		case COPY: TRY(BEGIN, copy(to + at, from + at, step)); break;
		case PEER: TRY(BEGIN, peer(to + at, contexts[0], from + at, contexts[1], step)); break;
		case COPY_LATER: TRY(BEGIN, copy_later(to + at, from + at, step, s)); break;
		}
		if (w->how != COPY_LATER)
			TRY(SYNC, synchronize());
	}
	for (int i = 0; w->how == COPY_LATER && i < n; i++)
		TRY(SYNC, wait(streams[driver][i]));
	return 0;
}

/* looked fills (value != 0) memory, or looks whether all that is looked at has it. */
static int looked(int gpu, int fd, size_t size, unsigned char value, int fill)
{
	static const way own = {"", OWN, 0, COPY, 0, 0, 0};
	mapping m = {0};
	unsigned word = 0;
	turn = 0;
	if (mapped(&own, &m, gpu, fd, size))
		return -1;
	TRY(-1, current(contexts[gpu]));
	if (fill) {
		TRY(-1, fill(m.at, value, size));
		TRY(-1, synchronize());
	}
	for (size_t at = 0; !fill && at < size; at += size / 8 - 4) {
		TRY(-1, read(&word, m.at + (at & ~3ull), 4));
		if (word != value * 0x01010101u) {
			failed = "the bytes are not those of the source";
			return -1;
		}
	}
	return unmapped(&m, size, 0);
}

static void row(const way *w, size_t size, const double *whole)
{
	double copies[REPEATS];
	for (int i = 0; i < REPEATS; i++)
		copies[i] = took[BEGIN][i] + took[SYNC][i];
	printf("%-54s %5zu %9.0f %8.0f %6.1f %6.1f ", w->name, size / MIB, whole[0], later(whole), size / later(whole) / 1e3,
		size / later(copies) / 1e3);
	for (int c = 0; c < CALLS; c++)
		printf(" %7.0f", later(took[c]));
	printf("   first:");
	for (int c = 0; c < CALLS; c++)
		printf(" %.0f", took[c][0]);
	printf("\n");
	fflush(stdout);
}

/* tried runs a way; fds are the destination's and the source's. */
static int tried(const way *w, const int *fds, size_t size)
{
	mapping to = {0}, from = {0};
	double whole[REPEATS];
	static unsigned char value;
	failed = NULL;
	value++;
	if (looked(0, fds[0], size, ~value, 1) || looked(1, fds[1], size, value, 1))
		goto bad;
	memset(took, 0, sizeof took);
	for (turn = 0; turn < REPEATS; turn++) {
		double began = now();
		if (!to.mapped && (mapped(w, &to, 0, fds[0], size) || mapped(w, &from, 1, fds[1], size)))
			goto bad;
		if (copied(w, to.at, from.at, size))
			goto bad;
		if (w->kept != 1 && (unmapped(&from, size, w->kept) || unmapped(&to, size, w->kept)))
			goto bad;
		whole[turn] = now() - began;
	}
	row(w, size, whole);
	turn = 0;
	if (unmapped(&from, size, 0) || unmapped(&to, size, 0) || looked(0, fds[0], size, value, 0))
		goto bad;
	return 0;
bad:;
	const char *name = "?";
	cu.error_name(code, &name);
	printf("%-54s %5zu FAILED: %s: %d %s\n", w->name, size / MIB, failed, code, code ? name : "");
	turn = 0;
	unmapped(&from, size, 0);
	unmapped(&to, size, 0);
	fflush(stdout);
	return 1;
}

/* plain is the driver's oldest kind of memory with peer access switched on: what PyTorch has. */
static int plain(size_t size, int source)
{
	u64 at[2];
	double whole[REPEATS];
	char name[64];
	way w = {name, OWN, source, COPY_LATER, 0, 0, 1};
	snprintf(name, sizeof name, "cuMemAlloc, peer access on, from the %s", source ? "source" : "destination");
	for (int i = 0; i < 2; i++) {
		TRY(-1, current(contexts[i]));
		TRY(-1, alloc(&at[i], size));
		cu.enable(contexts[!i], 0);
	}
	memset(took, 0, sizeof took);
	for (turn = 0; turn < REPEATS; turn++) {
		double began = now();
		if (copied(&w, at[0], at[1], size))
			return -1;
		whole[turn] = now() - began;
	}
	row(&w, size, whole);
	turn = 0;
	for (int i = 0; i < 2; i++) {
		TRY(-1, current(contexts[i]));
		TRY(-1, free(at[i]));
	}
	return 0;
}

/* many copies behind each other with everything mapped, waited for once: what the link gives. */
static int many(const int *fds, size_t size, int source)
{
	way w = {"", ALONE, source, COPY_LATER, 0, 0, 1};
	mapping to = {0}, from = {0};
	enum { MANY = 20 };
	double began;
	turn = 0;
	if (mapped(&w, &to, 0, fds[0], size) || mapped(&w, &from, 1, fds[1], size))
		return -1;
	TRY(-1, current(contexts[source]));
	began = now();
	for (int i = 0; i < MANY; i++)
		TRY(-1, copy_later(to.at, from.at, size, streams[source][0]));
	TRY(-1, wait(streams[source][0]));
	printf("%d copies of %zu MiB, mapped, one wait, from the %s: %.1f GB/s\n", MANY, size / MIB,
		source ? "source" : "destination", MANY * (double)size / (now() - began) / 1e3);
	if (unmapped(&from, size, 0) || unmapped(&to, size, 0))
		return -1;
	return 0;
}

/* windows are memory of the destination's GPU that both have mapped: the source copies a part there, and the
 * destination copies it on, while the next part is on its way to the other window; as the keeper does it. */
enum { WINDOWS = 2, WINDOW = 32 * MIB };

static int through(u64 to, u64 from, size_t size, u64 at, void *full[], void *empty[])
{
	int n = 0;
	for (size_t done = 0, step; done < size; done += step, n++) {
		int i = n % WINDOWS;
		step = size - done < WINDOW ? size - done : WINDOW;
		TRY(-1, current(contexts[1]));
		if (n >= WINDOWS)
			TRY(BEGIN, await(streams[1][0], empty[i], 0));
		TRY(BEGIN, copy_later(at + (u64)i * WINDOW, from + done, step, streams[1][0]));
		TRY(BEGIN, record(full[i], streams[1][0]));
		TRY(-1, current(contexts[0]));
		TRY(BEGIN, await(streams[0][0], full[i], 0));
		TRY(BEGIN, copy_later(to + done, at + (u64)i * WINDOW, step, streams[0][0]));
		TRY(BEGIN, record(empty[i], streams[0][0]));
	}
	TRY(SYNC, wait(streams[0][0]));
	return 0;
}

static int windowed(const int *fds, size_t size)
{
	static const way own = {"own access, by way of windows", OWN, 0, COPY, 0, 0, 0};
	access_to other = {1, gpus[1], 3};
	mapping window = {0};
	void *full[WINDOWS], *empty[WINDOWS];
	double whole[REPEATS];
	int fd;
	turn = 0;
	if (looked(0, fds[0], size, 1, 1) || looked(1, fds[1], size, 2, 1) || made(0, WINDOWS * WINDOW, &fd) ||
	    mapped(&own, &window, 0, fd, WINDOWS * WINDOW))
		return -1;
	TRY(-1, set_access(window.at, WINDOWS * WINDOW, &other, 1));
	for (int i = 0; i < 2 * WINDOWS; i++) {
		TRY(-1, current(contexts[i % 2]));
		TRY(-1, event(i % 2 ? &full[i / 2] : &empty[i / 2], 2));
	}
	memset(took, 0, sizeof took);
	for (turn = 0; turn < REPEATS; turn++) {
		mapping to = {0}, from = {0};
		double began = now();
		if (mapped(&own, &to, 0, fds[0], size) || mapped(&own, &from, 1, fds[1], size) ||
		    through(to.at, from.at, size, window.at, full, empty) || unmapped(&from, size, 0) || unmapped(&to, size, 0))
			return -1;
		whole[turn] = now() - began;
	}
	row(&own, size, whole);
	turn = 0;
	close(fd);
	if (unmapped(&window, WINDOWS * WINDOW, 0) || looked(0, fds[0], size, 2, 0))
		return -1;
	return 0;
}

static const way ways[] = {
	{"access for both, one after the other, steps", TWICE, 0, COPY, 0, STEP, 0},
	{"the same again", TWICE, 0, COPY, 0, STEP, 0},
	{"access for both by one call", BOTH, 0, COPY, 0, 0, 0},
	{"access for who copies", ALONE, 0, COPY, 0, 0, 0},
	{"access for who copies, addresses kept", ALONE, 0, COPY, 0, 0, 2},
	{"source: access for who copies", ALONE, 1, COPY, 0, 0, 0},
	{"own access, cuMemcpyPeer", OWN, 0, PEER, 0, 0, 0},
	{"kept, steps", ALONE, 0, COPY, 0, STEP, 1},
	{"kept", ALONE, 0, COPY, 0, 0, 1},
	{"kept, async", ALONE, 0, COPY_LATER, 0, 0, 1},
	{"kept, async, 4 streams", ALONE, 0, COPY_LATER, 4, 0, 1},
	{"kept, cuMemcpyPeer", BOTH, 0, PEER, 0, 0, 1},
	{"kept, source", ALONE, 1, COPY, 0, 0, 1},
	{"kept, source, async", ALONE, 1, COPY_LATER, 0, 0, 1},
};

static int opened(void)
{
	int n, version = 0;
	TRY(-1, init(0));
	TRY(-1, count(&n));
	cu.driver(&version);
	if (n <= gpus[0] || n <= gpus[1]) {
		printf("%d GPUs: copies between %d and %d are not possible\n", n, gpus[0], gpus[1]);
		exit(0);
	}
	for (int i = 0; i < 2; i++) {
		char name[128] = "";
		int can = 0, rank = -1;
		double began = now();
		cu.name(name, sizeof name, gpus[i]);
		cu.can_access(&can, gpus[i], gpus[!i]);
		cu.p2p(&rank, 1, gpus[i], gpus[!i]);
		TRY(-1, retain(&contexts[i], gpus[i]));
		TRY(-1, current(contexts[i]));
		for (int s = 0; s < MOST_STREAMS; s++)
			TRY(-1, stream(&streams[i][s], 1));
		if (!children)
			printf("%s GPU %d %s, driver's CUDA %d, reaches the other: %d, rank %d; context %.0f us\n",
				i ? "source" : "destination", gpus[i], name, version, can, rank, now() - began);
	}
	return 0;
}

static int all(void)
{
	static const size_t sizes[] = {(size_t)1024 * MIB, 64 * MIB};
	static const int n = sizeof ways / sizeof *ways;
	int bad = 0;
	for (int s = 0; s < 2; s++) {
		int fds[2];
		if (made(0, sizes[s], &fds[0]) || made(1, sizes[s], &fds[1])) {
			printf("%zu MiB were not made: %s: %d\n", sizes[s] / MIB, failed, code);
			return bad + 1;
		}
		for (int i = 0; i < n; i++)
			bad += tried(&ways[i], fds, sizes[s]);
		failed = NULL;
		if (windowed(fds, sizes[s])) {
			printf("by way of windows FAILED: %s: %d\n", failed, code);
			bad++;
		}
		for (int source = 0; !children && source < 2; source++) {
			failed = NULL;
			if (many(fds, sizes[s], source) || plain(sizes[s], source)) {
				printf("FAILED: %s: %d\n", failed, code);
				bad++;
			}
		}
		close(fds[0]);
		close(fds[1]);
	}
	return bad;
}

int main(int argc, char **argv)
{
	static const char *kinds[] = {"ways", "enabled"};
	const char *wanted = getenv("PEER_KINDS");
	const char *library = argc > 3 ? argv[3] : "libcuda.so.1", *kind = getenv("PEER_KIND");
	void *h;
	if (argc > 2) {
		gpus[0] = atoi(argv[1]);
		gpus[1] = atoi(argv[2]);
	}
	if (!kind) { /* each in a process of its own */
		int bad = 0, headed = 0;
		for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
			int status = 0;
			pid_t child;
			if (wanted && !strstr(wanted, kinds[k]))
				continue;
			printf("\n== %s\n", kinds[k]);
			if (!headed++) {
				printf("%-54s %5s %9s %8s %6s %6s ", "way (us)", "MiB", "first", "median", "GB/s", "alone");
				for (int c = 0; c < CALLS; c++)
					printf(" %7s", calls[c]);
				printf("\n");
			}
			fflush(stdout);
			setenv("PEER_KIND", kinds[k], 1);
			if ((child = fork()) == 0) {
				alarm(20);
				execv("/proc/self/exe", argv);
				_exit(127);
			}
			waitpid(child, &status, 0);
			if (status) {
				printf("%s ended with status %#x\n", kinds[k], status);
				bad++;
			}
		}
		return bad;
	}
	if (!(h = dlopen(library, RTLD_NOW))) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
#define F(field, symbol, arguments) \
	if (!(*(void **)&cu.field = dlsym(h, symbol))) \
		*(void **)&cu.field = (void *)missing;
	FUNCTIONS(F)
#undef F
	children = strcmp(kind, "ways") != 0;
	if (opened()) {
		printf("FAILED: %s: %d\n", failed, code);
		return 1;
	}
	for (int i = 0; strcmp(kind, "enabled") == 0 && i < 2; i++) {
		cu.current(contexts[i]);
		printf("cuCtxEnablePeerAccess of the %s: %d\n", i ? "source" : "destination", cu.enable(contexts[!i], 0));
	}
	return all();
}
