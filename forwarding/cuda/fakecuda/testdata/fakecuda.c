/* A CUDA driver for tests: the entry points that package cuda calls, over the host's memory. An allocation is a memfd,
 * which passes between processes as a real driver's descriptor does; a device's address is the process's own.
 *
 *   CUDA_FAKE_DEVICES=N    how many devices there are (default 2)
 *   CUDA_VISIBLE_DEVICES   which of them, and in which order: numbers, or GPU-UUID
 *   CUDA_FAKE_BYTES=N      what one device has for this process's allocations (default 64 MiB); they take it until nobody
 *                          has them any more, in any process, or without inotify until they are released
 *   CUDA_FAKE_WATCH=0      without inotify: of its instances a user has few (128), and each copy of this takes one
 *   CUDA_FAKE_FAIL=I:CODE  the I-th call of this process, counted from 1, answers CODE
 *   CUDA_FAKE_DIE=I        the I-th call ends the process by SIGKILL; CUDA_FAKE_HANG=I: it never returns
 *   CUDA_FAKE_ONCE=PATH    FAIL, DIE and HANG hold for the process that makes this file, and for none after it
 *   CUDA_FAKE_PIN=N        how much host memory may be pinned (default all); CUDA_FAKE_PEERS=0: no device reaches another
 *   CUDA_FAKE_MODE=N       the compute mode of all devices (default 0; 2: prohibited, 3: exclusive process)
 *   CUDA_FAKE_ALLOW=CODE   what cuMemSetAccess answers for another device than the memory's (default 0)
 *   CUDA_FAKE_EAGER=BITS   devices, a bit each, that do at once what is queued, where nothing before it in its queue
 *                          waits (default 0: not before it is waited for)
 *   CUDA_FAKE_NAMES=PATH   PATH.PID has the name of every call, a line each
 *   CUDA_FAKE_LOG=PATH     PATH.PID always has "calls N left N", left being what was not given back
 *
 * Work of a stream does not happen by itself: fakecuda_later queues some, and who synchronises lets it happen.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TROUBLE "CUDA_FAKE_"
#include "../../../fakedriver/trouble.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
	ILLEGAL_ADDRESS = 700, NOT_PERMITTED = 800 };
enum { HOST_ALREADY = 712, HOST_NOT = 713, STREAMS = 256, EVENTS = 256, QUEUED = 64 };
enum { DEVICES = 16, HANDLES = 4096, GRANULE = 2 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long calls, left;
static int initialised, contexts[DEVICES];
static size_t used[DEVICES];
/* the kernel says when the last descriptor and mapping of an allocation is gone */
static int watch = -1;
static struct { int wd, device; size_t bytes; } taken[HANDLES]; /* bytes 0: none */
static struct { int fd, device; size_t bytes; int own; } handles[HANDLES];
static struct { char *at; size_t bytes; int mapped, device, accessible, plain; unsigned reach; } ranges[HANDLES];
static struct { char *at; size_t bytes; int read_only; } pins[HANDLES];
static size_t pinned;
/* what is queued in a stream, in this order: a copy, or (to NULL) to wait until another stream has done so much */
typedef struct { void *to; const void *from; size_t bytes; int stream; long done; } work;
static struct { int device; long queued, done; work some[QUEUED]; } streams[STREAMS];
static struct { int device, stream; long done; } events[EVENTS]; /* what an event stands for; done 0: nothing yet */
static __thread int current = -1;
static struct { void *stream; uint64_t at; unsigned char value; } later[64]; /* at 0: none */

static int devices(void)
{
	long n = number("CUDA_FAKE_DEVICES", 2);
	return n < DEVICES ? (int)n : DEVICES;
}

/* shown gives the device at a place of what CUDA_VISIBLE_DEVICES shows, -1 beyond its end. */
static int shown(int place)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	int all = devices();
	if (!list)
		return place < all ? place : -1;
	for (; *list; list += *list == ',') {
		size_t n = strcspn(list, ",");
		int d = strncmp(list, "GPU-", 4) ? atoi(list) : n == 40 ? (int)strtol(list + 38, NULL, 16) : -1;
		if (d < 0 || d >= all)
			return -1;
		if (place-- == 0)
			return d;
		list += n;
	}
	return -1;
}

static int count(void)
{
	int n = 0;
	while (shown(n) >= 0)
		n++;
	return n;
}

/* end counts for the log and lets others call. */
static int end(int answer)
{
	static int log = -1;
	const char *path = getenv("CUDA_FAKE_LOG");
	char line[64];
	int n = snprintf(line, sizeof line, "calls %10ld left %10ld\n", calls, left);
	if (path && log < 0) {
		char name[4096];
		snprintf(name, sizeof name, "%s.%d", path, getpid());
		log = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	}
	if (path && pwrite(log, line, n, 0) != n)
		abort();
	pthread_mutex_unlock(&lock);
	return answer;
}

/* named notes a call. */
static void named(const char *name)
{
	static int names = -1;
	const char *path = getenv("CUDA_FAKE_NAMES");
	char line[128];
	int n = snprintf(line, sizeof line, "%s\n", name);
	if (!path)
		return;
	if (names < 0) {
		snprintf(line, sizeof line, "%s.%d", path, getpid());
		names = open(line, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
		snprintf(line, sizeof line, "%s\n", name);
	}
	if (write(names, line, n) != n)
		abort();
}

#define CALL \
	int answer; \
	pthread_mutex_lock(&lock); \
	named(__func__); \
	answer = trouble(++calls); \
	if (answer) \
		return end(answer)
#define END(code) return end(code)

int cuInit(unsigned flags)
{
	CALL;
	initialised = 1;
	END(flags ? INVALID_VALUE : SUCCESS);
}

int cuGetErrorName(int code, const char **text)
{
	*text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" :
		code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
	return *text ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetCount(int *n)
{
	CALL;
	*n = count();
	END(initialised ? SUCCESS : NOT_INITIALIZED);
}

int cuDeviceGet(int *device, int ordinal)
{
	CALL;
	*device = ordinal;
	END(ordinal >= 0 && ordinal < count() ? SUCCESS : INVALID_DEVICE);
}

int cuDeviceGetName(char *name, int size, int device)
{
	CALL;
	snprintf(name, size, "Fake GPU %d", shown(device));
	END(SUCCESS);
}

int cuDeviceGetUuid(unsigned char *uuid, int device)
{
	CALL;
	memset(uuid, 0xfa, 16);
	uuid[15] = (unsigned char)shown(device);
	END(SUCCESS);
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	CALL;
	*bytes = number("CUDA_FAKE_BYTES", 64 << 20);
	END(device < devices() ? SUCCESS : INVALID_DEVICE);
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	CALL;
	*value = attribute == 20 ? number("CUDA_FAKE_MODE", 0) : attribute == 102 || attribute == 103;
	END(device < devices() ? SUCCESS : INVALID_DEVICE);
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	CALL;
	if (device < 0 || device >= devices())
		END(INVALID_DEVICE);
	contexts[device]++;
	left++;
	*context = &contexts[device];
	END(SUCCESS);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	CALL;
	if (device < 0 || device >= devices() || !contexts[device])
		END(INVALID_CONTEXT);
	contexts[device]--;
	left--;
	END(SUCCESS);
}

int cuCtxSetCurrent(void *context)
{
	CALL;
	if (!context) {
		current = -1;
		END(SUCCESS);
	}
	current = (int)((int *)context - contexts);
	END(current >= 0 && current < devices() && contexts[current] ? SUCCESS : INVALID_CONTEXT);
}

int cuCtxGetCurrent(void **context)
{
	CALL;
	*context = current < 0 ? NULL : &contexts[current];
	END(SUCCESS);
}

static int within(uint64_t at, size_t bytes);

/* happen does what was queued in a stream, or in all of them. */
static int happen(void *stream, int all)
{
	for (size_t i = 0; i < sizeof later / sizeof *later; i++)
		if (later[i].at && (all || later[i].stream == stream)) {
			if (!within(later[i].at, 1))
				return ILLEGAL_ADDRESS;
			*(unsigned char *)(uintptr_t)later[i].at = later[i].value;
			later[i].at = 0;
		}
	return SUCCESS;
}

/* For tests: queues in a stream that the byte at an address becomes value. */
int fakecuda_later(void *stream, uint64_t at, unsigned char value)
{
	CALL;
	for (size_t i = 0; i < sizeof later / sizeof *later; i++)
		if (!later[i].at) {
			later[i].stream = stream;
			later[i].at = at;
			later[i].value = value;
			END(SUCCESS);
		}
	END(OUT_OF_MEMORY);
}

int cuCtxSynchronize(void)
{
	CALL;
	END(current >= 0 ? happen(NULL, 1) : INVALID_CONTEXT);
}

static int streamed(void *stream);
static void drain(int s, long until);

int cuStreamSynchronize(void *stream)
{
	CALL;
	if (streamed(stream) >= 0)
		drain(streamed(stream), streams[streamed(stream)].queued);
	END(current >= 0 ? happen(stream, 0) : INVALID_CONTEXT);
}

/* take counts an allocation as long as anybody has it; 0: the kernel has no inotify left for it. */
static int take(int fd, int device, size_t bytes)
{
	char path[64];
	int wd;
	if (!number("CUDA_FAKE_WATCH", 1) || (watch < 0 && (watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) < 0))
		return 0;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if ((wd = inotify_add_watch(watch, path, IN_DELETE_SELF)) < 0)
		return 0;
	for (int i = 0; i < HANDLES; i++)
		if (!taken[i].bytes) {
			taken[i].wd = wd;
			taken[i].device = device;
			taken[i].bytes = bytes;
			used[device] += bytes;
			return 1;
		}
	return 0;
}

/* refresh takes off what is gone. */
static void refresh(void)
{
	char events[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
	ssize_t n;
	while (watch >= 0 && (n = read(watch, events, sizeof events)) > 0)
		for (char *at = events; at < events + n;) {
			struct inotify_event *e = (struct inotify_event *)at;
			for (int i = 0; e->mask & IN_IGNORED && i < HANDLES; i++)
				if (taken[i].bytes && taken[i].wd == e->wd) {
					used[taken[i].device] -= taken[i].bytes;
					taken[i].bytes = 0;
				}
			at += sizeof *e + e->len;
		}
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *bytes)
{
	CALL;
	if (current < 0)
		END(INVALID_CONTEXT);
	refresh();
	*bytes = number("CUDA_FAKE_BYTES", 64 << 20);
	*free_bytes = *bytes - used[current];
	END(SUCCESS);
}

int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option)
{
	CALL;
	(void)properties;
	*bytes = GRANULE;
	END(option ? INVALID_VALUE : SUCCESS);
}

static size_t add(int fd, int device, size_t bytes, int own)
{
	for (size_t i = 1; i < HANDLES; i++)
		if (!handles[i].bytes) {
			handles[i].fd = fd;
			handles[i].device = device;
			handles[i].bytes = bytes;
			handles[i].own = own;
			left++;
			return i;
		}
	return 0;
}

static int known(uint64_t h) { return h > 0 && h < HANDLES && handles[h].bytes; }

int cuMemCreate(uint64_t *memory, size_t bytes, const int *properties, unsigned long long flags)
{
	int fd, device = properties[3];
	CALL;
	/* pinned, exported as a descriptor, on a device */
	if (flags || properties[0] != 1 || properties[1] != 1 || properties[2] != 1 || bytes == 0 || bytes % GRANULE)
		END(INVALID_VALUE);
	if (device < 0 || device >= devices())
		END(INVALID_DEVICE);
	refresh();
	if (used[device] + bytes > (size_t)number("CUDA_FAKE_BYTES", 64 << 20))
		END(OUT_OF_MEMORY);
	if ((fd = memfd_create("fakecuda", MFD_CLOEXEC)) < 0)
		END(OUT_OF_MEMORY);
	if (ftruncate(fd, bytes) || pwrite(fd, "not zero", 8, 0) != 8 || pwrite(fd, "not zero", 8, bytes - 8) != 8 ||
	    !(*memory = add(fd, device, bytes, !take(fd, device, bytes)))) {
		close(fd);
		END(OUT_OF_MEMORY);
	}
	if (handles[*memory].own)
		used[device] += bytes;
	END(SUCCESS);
}

int cuMemExportToShareableHandle(int *fd, uint64_t memory, int type, unsigned long long flags)
{
	CALL;
	if (type != 1 || flags || !known(memory))
		END(INVALID_VALUE);
	*fd = fcntl(handles[memory].fd, F_DUPFD_CLOEXEC, 0);
	END(*fd < 0 ? OUT_OF_MEMORY : SUCCESS);
}

int cuMemImportFromShareableHandle(uint64_t *memory, void *handle, int type)
{
	int fd = (int)(intptr_t)handle;
	char link[64], target[64] = "";
	struct stat st;
	CALL;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	if (type != 1 || readlink(link, target, sizeof target - 1) < 0 || strncmp(target, "/memfd:fakecuda", 15) ||
	    fstat(fd, &st) || (fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
		END(INVALID_VALUE);
	if (!(*memory = add(fd, 0, st.st_size, 0))) {
		close(fd);
		END(OUT_OF_MEMORY);
	}
	END(SUCCESS);
}

int cuMemRelease(uint64_t memory)
{
	CALL;
	if (!known(memory))
		END(INVALID_VALUE);
	close(handles[memory].fd);
	if (handles[memory].own)
		used[handles[memory].device] -= handles[memory].bytes;
	memset(&handles[memory], 0, sizeof handles[memory]);
	left--;
	END(SUCCESS);
}

static int range(uint64_t at);

/* plain maps memory that has no handle, and takes over its descriptor. */
static int plain(int fd, size_t bytes, uint64_t *at)
{
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return 0;
	for (int i = 0; i < HANDLES; i++)
		if (!ranges[i].at) {
			memset(&ranges[i], 0, sizeof ranges[i]);
			ranges[i].at = p;
			ranges[i].bytes = bytes;
			ranges[i].accessible = 1;
			ranges[i].device = current;
			ranges[i].reach = 1u << current;
			ranges[i].plain = 1 + fd;
			left++;
			*at = (uint64_t)(uintptr_t)p;
			return 1;
		}
	munmap(p, bytes);
	return 0;
}

int cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
	int fd;
	CALL;
	if (current < 0 || bytes == 0)
		END(INVALID_VALUE);
	refresh();
	if (used[current] + bytes > (size_t)number("CUDA_FAKE_BYTES", 64 << 20))
		END(OUT_OF_MEMORY);
	if ((fd = memfd_create("fakecuda plain", MFD_CLOEXEC)) < 0)
		END(OUT_OF_MEMORY);
	if (ftruncate(fd, bytes) || !plain(fd, bytes, at)) {
		close(fd);
		END(OUT_OF_MEMORY);
	}
	take(fd, current, bytes); /* without inotify it takes none */
	END(SUCCESS);
}

typedef struct {
	int pid, fd;
	uint64_t bytes;
	char rest[48];
} ipc_handle;

int cuIpcGetMemHandle(ipc_handle *handle, uint64_t at)
{
	int i;
	CALL;
	i = range(at);
	if (i < 0 || !ranges[i].plain)
		END(INVALID_VALUE);
	*handle = (ipc_handle){getpid(), ranges[i].plain - 1, ranges[i].bytes, "fake"};
	END(SUCCESS);
}

int cuIpcOpenMemHandle_v2(uint64_t *at, ipc_handle handle, unsigned flags)
{
	char path[64];
	int fd;
	CALL;
	if (flags != 1 || strcmp(handle.rest, "fake"))
		END(INVALID_VALUE);
	if (current < 0 || handle.pid == getpid())
		END(INVALID_CONTEXT);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
	if ((fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
		END(INVALID_VALUE);
	if (!plain(fd, handle.bytes, at)) {
		close(fd);
		END(OUT_OF_MEMORY);
	}
	END(SUCCESS);
}

int cuMemFree_v2(uint64_t at)
{
	int i;
	CALL;
	i = range(at);
	if (i < 0 || !ranges[i].plain || (uint64_t)(uintptr_t)ranges[i].at != at)
		END(INVALID_VALUE);
	munmap(ranges[i].at, ranges[i].bytes);
	close(ranges[i].plain - 1);
	ranges[i].at = NULL;
	left--;
	END(SUCCESS);
}

int cuIpcCloseMemHandle(uint64_t at) { return cuMemFree_v2(at); }

static int range(uint64_t at)
{
	for (int i = 0; i < HANDLES; i++)
		if (ranges[i].at && (uint64_t)(uintptr_t)ranges[i].at <= at &&
		    at < (uint64_t)(uintptr_t)ranges[i].at + ranges[i].bytes)
			return i;
	return -1;
}

int cuMemAddressReserve(uint64_t *at, size_t bytes, size_t align, uint64_t near, unsigned long long flags)
{
	char *p;
	CALL;
	if (align || near || flags || bytes == 0 || bytes % GRANULE)
		END(INVALID_VALUE);
	if ((p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) == MAP_FAILED)
		END(OUT_OF_MEMORY);
	for (int i = 0; i < HANDLES; i++)
		if (!ranges[i].at) {
			memset(&ranges[i], 0, sizeof ranges[i]);
			ranges[i].at = p;
			ranges[i].bytes = bytes;
			left++;
			*at = (uint64_t)(uintptr_t)p;
			END(SUCCESS);
		}
	munmap(p, bytes);
	END(OUT_OF_MEMORY);
}

int cuMemAddressFree(uint64_t at, size_t bytes)
{
	int i;
	CALL;
	i = range(at);
	if (i < 0 || ranges[i].mapped || bytes != ranges[i].bytes)
		END(INVALID_VALUE);
	munmap(ranges[i].at, bytes);
	ranges[i].at = NULL;
	left--;
	END(SUCCESS);
}

int cuMemMap(uint64_t at, size_t bytes, size_t offset, uint64_t memory, unsigned long long flags)
{
	int i;
	CALL;
	i = range(at);
	if (i < 0 || ranges[i].mapped || offset || flags || !known(memory) || bytes != ranges[i].bytes ||
	    bytes != handles[memory].bytes)
		END(INVALID_VALUE);
	if (mmap(ranges[i].at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, handles[memory].fd, 0) == MAP_FAILED)
		END(OUT_OF_MEMORY);
	ranges[i].mapped = 1;
	left++;
	END(SUCCESS);
}

int cuMemSetAccess(uint64_t at, size_t bytes, const int *access, size_t n)
{
	int i;
	CALL;
	i = range(at);
	if (i < 0 || !ranges[i].mapped || n != 1 || access[0] != 1 || access[2] != 3 || bytes != ranges[i].bytes ||
	    mprotect(ranges[i].at, bytes, PROT_READ | PROT_WRITE))
		END(INVALID_VALUE);
	if (ranges[i].accessible && access[1] != ranges[i].device && number("CUDA_FAKE_ALLOW", 0))
		END((int)number("CUDA_FAKE_ALLOW", 0));
	if (!ranges[i].accessible)
		ranges[i].device = access[1];
	ranges[i].accessible = 1;
	ranges[i].reach |= 1u << access[1];
	END(SUCCESS);
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t at)
{
	int i;
	CALL;
	i = range(at);
	if (attribute != 9 || i < 0 || !ranges[i].accessible)
		END(INVALID_VALUE);
	*(int *)value = ranges[i].device;
	END(SUCCESS);
}

int cuMemUnmap(uint64_t at, size_t bytes)
{
	int i;
	CALL;
	i = range(at);
	if (i < 0 || !ranges[i].mapped || bytes != ranges[i].bytes ||
	    mmap(ranges[i].at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		END(INVALID_VALUE);
	ranges[i].mapped = ranges[i].accessible = ranges[i].reach = 0;
	left--;
	END(SUCCESS);
}

/* within says whether the current device may touch bytes from at on. */
static int within(uint64_t at, size_t bytes)
{
	int i = range(at);
	return i >= 0 && current >= 0 && ranges[i].accessible && ranges[i].reach & 1u << current && at + bytes <= (uint64_t)(uintptr_t)ranges[i].at + ranges[i].bytes;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
	CALL;
	if (current < 0 || !within(to, bytes))
		END(ILLEGAL_ADDRESS);
	memcpy((void *)(uintptr_t)to, from, bytes);
	END(SUCCESS);
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
	CALL;
	if (current < 0 || !within(from, bytes))
		END(ILLEGAL_ADDRESS);
	memcpy(to, (void *)(uintptr_t)from, bytes);
	END(SUCCESS);
}

int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes)
{
	CALL;
	if (current < 0 || !within(from, bytes) || !within(to, bytes))
		END(ILLEGAL_ADDRESS);
	memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
	END(SUCCESS);
}

int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes)
{
	CALL;
	if (current < 0 || !within(at, bytes))
		END(ILLEGAL_ADDRESS);
	memset((void *)(uintptr_t)at, value, bytes);
	END(SUCCESS);
}

int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
	CALL;
	if (device < 0 || device >= devices() || peer < 0 || peer >= devices())
		END(INVALID_DEVICE);
	*can = device != peer && number("CUDA_FAKE_PEERS", 1);
	END(SUCCESS);
}

static int pin(const void *at)
{
	for (int i = 0; i < HANDLES; i++)
		if (pins[i].at && pins[i].at <= (const char *)at && (const char *)at < pins[i].at + pins[i].bytes)
			return i;
	return -1;
}

int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
	CALL;
	/* portable, perhaps read only; whole pages as a driver pins them */
	if ((flags & ~8u) != 1 || bytes == 0 || (uintptr_t)at % 4096 || current < 0)
		END(INVALID_VALUE);
	if (pin(at) >= 0)
		END(HOST_ALREADY);
	if (number("CUDA_FAKE_PIN", -1) >= 0 && pinned + bytes > (size_t)number("CUDA_FAKE_PIN", -1))
		END(OUT_OF_MEMORY);
	for (int i = 0; i < HANDLES; i++)
		if (!pins[i].at) {
			pins[i].at = at;
			pins[i].bytes = bytes;
			pins[i].read_only = !!(flags & 8);
			pinned += bytes;
			left++;
			END(SUCCESS);
		}
	END(OUT_OF_MEMORY);
}

int cuMemHostUnregister(void *at)
{
	int i;
	CALL;
	i = pin(at);
	if (i < 0 || pins[i].at != at)
		END(HOST_NOT);
	pinned -= pins[i].bytes;
	pins[i].at = NULL;
	left--;
	END(SUCCESS);
}

int cuStreamCreate(void **stream, unsigned flags)
{
	CALL;
	if (flags != 1 || current < 0)
		END(INVALID_VALUE);
	for (int i = 0; i < STREAMS; i++)
		if (!streams[i].device) {
			streams[i].device = 1 + current;
			left++;
			*stream = &streams[i];
			END(SUCCESS);
		}
	END(OUT_OF_MEMORY);
}

static int streamed(void *stream)
{
	size_t i = ((char *)stream - (char *)streams) / sizeof streams[0];
	return stream && i < STREAMS && streams[i].device == 1 + current ? (int)i : -1;
}

/* drain does what a stream has queued, up to a number of works since it was made. */
static void drain(int s, long until)
{
	while (streams[s].done < until) {
		work *w = &streams[s].some[streams[s].done % QUEUED];
		if (w->to)
			memmove(w->to, w->from, w->bytes);
		else
			drain(w->stream, w->done);
		streams[s].done++;
	}
}

static void queue(int s, work w)
{
	int waits = !w.to;
	if (streams[s].queued - streams[s].done == QUEUED)
		drain(s, streams[s].queued);
	for (long i = streams[s].done; i < streams[s].queued; i++)
		waits |= !streams[s].some[i % QUEUED].to;
	streams[s].some[streams[s].queued++ % QUEUED] = w;
	if (!waits && number("CUDA_FAKE_EAGER", 0) & 1 << current)
		drain(s, streams[s].queued);
}

int cuStreamDestroy_v2(void *stream)
{
	int s;
	CALL;
	if ((s = streamed(stream)) < 0)
		END(INVALID_VALUE);
	memset(&streams[s], 0, sizeof streams[s]);
	left--;
	END(SUCCESS);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
	int s;
	CALL;
	if ((s = streamed(stream)) < 0 || pin(from) < 0)
		END(INVALID_VALUE);
	if (!within(to, bytes))
		END(ILLEGAL_ADDRESS);
	queue(s, (work){.to = (void *)(uintptr_t)to, .from = from, .bytes = bytes});
	END(SUCCESS);
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
	int s;
	CALL;
	if ((s = streamed(stream)) < 0 || pin(to) < 0 || pins[pin(to)].read_only)
		END(INVALID_VALUE);
	if (!within(from, bytes))
		END(ILLEGAL_ADDRESS);
	queue(s, (work){.to = to, .from = (void *)(uintptr_t)from, .bytes = bytes});
	END(SUCCESS);
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
	int s;
	CALL;
	if ((s = streamed(stream)) < 0)
		END(INVALID_VALUE);
	if (!within(to, bytes) || !within(from, bytes))
		END(ILLEGAL_ADDRESS);
	queue(s, (work){.to = (void *)(uintptr_t)to, .from = (void *)(uintptr_t)from, .bytes = bytes});
	END(SUCCESS);
}

static int event_of(void *event)
{
	size_t i = ((char *)event - (char *)events) / sizeof events[0];
	return event && i < EVENTS && events[i].device ? (int)i : -1;
}

int cuEventCreate(void **event, unsigned flags)
{
	CALL;
	if (flags != 2 || current < 0)
		END(INVALID_VALUE);
	for (int i = 0; i < EVENTS; i++)
		if (!events[i].device) {
			events[i].device = 1 + current;
			left++;
			*event = &events[i];
			END(SUCCESS);
		}
	END(OUT_OF_MEMORY);
}

int cuEventDestroy_v2(void *event)
{
	CALL;
	if (event_of(event) < 0)
		END(INVALID_VALUE);
	memset(&events[event_of(event)], 0, sizeof events[0]);
	left--;
	END(SUCCESS);
}

int cuEventRecord(void *event, void *stream)
{
	int e, s;
	CALL;
	if ((e = event_of(event)) < 0 || (s = streamed(stream)) < 0 || events[e].device != streams[s].device)
		END(INVALID_VALUE);
	events[e].stream = s;
	events[e].done = streams[s].queued;
	END(SUCCESS);
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	int e, s;
	CALL;
	if ((e = event_of(event)) < 0 || (s = streamed(stream)) < 0 || flags)
		END(INVALID_VALUE);
	if (events[e].done)
		queue(s, (work){.stream = events[e].stream, .done = events[e].done});
	END(SUCCESS);
}
