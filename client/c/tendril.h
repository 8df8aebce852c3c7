/* tendril.h: Tendril's shared-memory object store, from C.
 *
 *     tendril *store;
 *     if (tendril_connect(NULL, &store) != TENDRIL_OK)
 *         errx(1, "%s", tendril_message());
 *     tendril_put(store, bytes, size, &(tendril_options){.name = "grid"}, NULL);
 *
 *     tendril_object grid;
 *     if (tendril_get(store, tendril_named("grid"), 5000, &grid) == TENDRIL_OK) {
 *         use(grid.data, grid.size);
 *         tendril_release(&grid);
 *     }
 *     tendril_close(store);
 *
 * Objects are shared memory: a get maps what another process wrote and copies nothing. Sizes and offsets are bytes,
 * waits are milliseconds; strings are UTF-8 and end with NUL.
 *
 * Sealed objects do not change. From the seal on, the kernel gives nobody a new writable mapping, not even root. A
 * write to the memory of a tendril_object faults, also in the process that made the object. The seal zeroes the
 * buffer, and an old pointer into it faults if the object has 64 KiB or more, or a segment of its own (own). Only the
 * process that made the object can still write it: through an old pointer to a smaller object, because small objects
 * share pages; by making pages writable again (mprotect); or through a child that was forked before the seal. The
 * option strict excludes all three: no writable mapping is left, and none can be made.
 *
 * A write to sealed memory raises SIGSEGV, because the page is mapped read-only. With tendril_explain_faults() the
 * process first says so.
 *
 * Errors. Functions return TENDRIL_OK (0) or one of enum tendril_status. tendril_message() then says what went wrong,
 * and what to do. A failed call zeroes its results. Any call that asks the daemon may return TENDRIL_DISCONNECTED,
 * TENDRIL_FORKED, TENDRIL_NO_MEMORY, TENDRIL_INVALID, TENDRIL_PROTOCOL, and TENDRIL_INTERNAL. Calls with a key may
 * return TENDRIL_NOT_FOUND, TENDRIL_NOT_SEALED, and TENDRIL_PERMISSION (another tenant's object). Further errors stand
 * at the call.
 *
 * Threads. Any number of threads may use a tendril at once. A tendril_object, tendril_buffer, tendril_stream or
 * tendril_watch is for one thread at a time, but any number may read an object's memory.
 *
 * Reconnecting. The next call replaces a connection that broke. It waits up to 5 s (patience_ms) for a daemon, with
 * growing, random pauses. If that fails, calls fail at once, and one of them tries again every 1 to 30 s. A daemon that
 * took over (tendril daemon --takeover) has all objects that are held. One that was started after a crash has those on
 * disk. tendril_gone reports the others. Mapped memory stays readable until tendril_release.
 *
 * A call that was in progress is repeated, up to four times, if that is harmless: calls that only ask, tendril_get,
 * tendril_create, and any whose request had not left. Others return TENDRIL_DISCONNECTED: it is not known whether they
 * took place. So do calls with what ended with the connection: unsealed buffers (tendril_abort them), parts of
 * tendril_fill, streams (close and reopen them), watches. The option no_reconnect turns all of this off.
 *
 * Fork. A child may read what its parent holds, as long as the parent holds it. Other calls on the parent's connection
 * return TENDRIL_FORKED: the child opens its own. tendril_close in the child closes the inherited descriptors. The
 * parent notices nothing.
 *
 * Signals. No call raises SIGPIPE or ends early for a signal (EINTR). Only tendril_explain_faults installs a
 * handler. The library starts no thread. Every descriptor is close-on-exec.
 *
 * Trust. The library trusts what the daemon says, but checks every length. It connects to no socket under /tmp that
 * is neither this user's nor root's.
 */
#ifndef TENDRIL_H
#define TENDRIL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TENDRIL_API __attribute__((visibility("default")))

/* The library's interface; tendril_about has the daemon's version. */
#define TENDRIL_C_MAJOR 0
#define TENDRIL_C_MINOR 1

#define TENDRIL_MAX_META 4096      /* bytes of an object's metadata */
#define TENDRIL_MAX_LABELS 16      /* of one object */
#define TENDRIL_MAX_NAME 1024      /* bytes of a name, with TENANT/ before it */
#define TENDRIL_MAX_MEMBERS 1024   /* of a composite */
#define TENDRIL_FOREVER (-1)       /* wait without limit */

/* Codes 1 to 64 are the daemon's (ipc/PROTOCOL.md), from 1000 on the library's own. */
enum tendril_status {
	TENDRIL_OK = 0,
	TENDRIL_PROTOCOL = 1,      /* a message broke a rule; this ended the connection */
	TENDRIL_INVALID = 2,       /* an argument is out of range */
	TENDRIL_NOT_FOUND = 3,
	TENDRIL_EXISTS = 4,        /* the name is taken */
	TENDRIL_NOT_SEALED = 5,    /* the object is still being filled */
	TENDRIL_SEALED = 6,        /* the object can no longer change */
	TENDRIL_FULL = 7,          /* the store has no room */
	TENDRIL_QUOTA = 8,         /* the tenant's quota is used up */
	TENDRIL_PERMISSION = 9,
	TENDRIL_UNSUPPORTED = 10,
	TENDRIL_TIMEOUT = 11,      /* a wait ran out of time */
	TENDRIL_BUSY = 12,
	TENDRIL_VERSION = 13,      /* no protocol version in common */
	TENDRIL_INTERNAL = 14,     /* the daemon failed; its log says more */
	TENDRIL_NO_DEVICE = 15,
	TENDRIL_LIMIT = 16,        /* no more objects, segments or streams, for now or for this tenant */
	TENDRIL_STORAGE = 64,      /* the object's copy on disk cannot be used, or its bytes are damaged */
	TENDRIL_ENDED = 80,        /* the stream has ended: there are no more frames */
	TENDRIL_ABORTED = 81,      /* the stream was removed or lost its last writer; an object was filled only in part */
	TENDRIL_DISCONNECTED = 1000, /* no daemon, or the connection broke; held objects stay readable ("Reconnecting") */
	TENDRIL_FORKED = 1001,     /* the connection is the parent process's */
	TENDRIL_NO_MEMORY = 1002   /* malloc or mmap failed in this process */
};

/* The meaning of a status in a few fixed words. Never NULL. */
TENDRIL_API const char *tendril_strerror(int status);

/* The error text of this thread's last failed call; the daemon's own text if the daemon refused. Valid until the
 * thread's next failed call. Never NULL. */
TENDRIL_API const char *tendril_message(void);

/* Installs a handler for SIGSEGV that writes a sentence to standard error before a write to a sealed object ends the
 * process. Then it calls the previous handler, or lets the signal take its course. It acts only on faults in the
 * library's own mappings, and is async-signal-safe. For programs under development. A second call does nothing. Any
 * thread may call it. With $TENDRIL_EXPLAIN_FAULTS=1 tendril_connect calls it. TENDRIL_UNSUPPORTED: the system refuses
 * the handler. */
TENDRIL_API int tendril_explain_faults(void);

/* ---- Connections ---------------------------------------------------------------------------------------------- */

typedef struct tendril tendril;

typedef struct tendril_connect_options {
	/* The socket's path. NULL: $TENDRIL_SOCKET, else the user's own daemon, else the system's. */
	const char *socket;
	/* What the daemon shows as the program. NULL: the program's name. */
	const char *program;
	/* Bytes. Segments of other writers up to this size stay mapped while nothing in them is held, until the daemon
	 * wants them unmapped (tendril_create and tendril_get ask once a second). Larger ones are unmapped with their last
	 * release. 0: 64 MiB. */
	uint64_t keep_bytes;
	/* 1: a seal does not ask for the next small object (see tendril_seal). */
	int no_ahead;
	/* 1: releases travel with the next request or tendril_flush, without a system call of their own. For busy loops.
	 * Call tendril_flush before a pause. */
	int defer;
	/* How long to try if there is no daemon, with growing, random pauses. 0: one try to connect, 5 s to reconnect. */
	int64_t patience_ms;
	/* 1: find, hold and release objects through shared memory if possible, without a system call. Then segments of any
	 * size stay mapped until the daemon wants them unmapped. -1: only over the socket. 0: what $TENDRIL_INDEX says (on
	 * or off), else -1. */
	int index;
	/* 1: after the connection broke, all calls return TENDRIL_DISCONNECTED. */
	int no_reconnect;
} tendril_connect_options;

/* Connect to a daemon. NULL: the default socket, and default options. Close *out with tendril_close.
 * TENDRIL_DISCONNECTED: no daemon answers. TENDRIL_PERMISSION: the socket under /tmp belongs to somebody else.
 * TENDRIL_VERSION: no protocol version in common. */
TENDRIL_API int tendril_connect(const char *socket, tendril **out);
TENDRIL_API int tendril_connect_with(const tendril_connect_options *options, tendril **out);

/* Ends the connection, and with it unsealed objects and references. No other thread may be in a call on it. Held
 * objects stay readable until tendril_release; buffers must not be used any more. NULL does nothing. */
TENDRIL_API void tendril_close(tendril *);

typedef struct tendril_daemon {
	const char *version, *tenant; /* valid until tendril_close. tenant: whom the daemon charges for this process */
	uint8_t incarnation[16];      /* new each time the daemon starts, except with --takeover */
	uint32_t pid;
	uint64_t capacity_bytes;
} tendril_daemon;

/* The daemon of the current connection. */
TENDRIL_API void tendril_about(tendril *, tendril_daemon *out);

/* Sends deferred releases (the option defer). */
TENDRIL_API void tendril_flush(tendril *);

/* The state of the connection: TENDRIL_OK, TENDRIL_DISCONNECTED (the next call reconnects) or TENDRIL_FORKED. Sends
 * nothing. */
TENDRIL_API int tendril_alive(tendril *);

/* ---- Objects -------------------------------------------------------------------------------------------------- */

typedef struct tendril_id {
	uint8_t bytes[16];
} tendril_id;

/* Writes an id as 32 hexadecimal digits and NUL. Returns text. */
TENDRIL_API char *tendril_id_text(const tendril_id *, char text[33]);
/* Reads an id. TENDRIL_INVALID: text is not 32 hexadecimal digits. */
TENDRIL_API int tendril_id_parse(const char *text, tendril_id *out);

/* Identifies an object: by its name, or by its id if name is NULL. */
typedef struct tendril_key {
	tendril_id id;
	const char *name;
} tendril_key;

static inline tendril_key tendril_named(const char *name)
{
	tendril_key key = {{{0}}, NULL};
	key.name = name;
	return key;
}

static inline tendril_key tendril_by_id(tendril_id id)
{
	tendril_key key = {{{0}}, NULL};
	key.id = id;
	return key;
}

/* Lifetime classes. */
enum tendril_lifetime {
	TENDRIL_EPHEMERAL = 0, /* gone with its last reference */
	TENDRIL_TTL = 1,       /* gone when its time is over */
	TENDRIL_NAMED = 2,     /* kept by its name until tendril_delete */
	TENDRIL_PERSISTED = 3  /* on disk once sealed, there after a restart */
};

typedef struct tendril_label {
	const char *key, *value; /* at most 128 bytes each */
} tendril_label;

/* Options of a new object. NULL, or zeroes: ephemeral, without a name. A name alone makes it TENDRIL_NAMED. */
typedef struct tendril_options {
	const char *name;            /* bound by the seal; NULL: none */
	enum tendril_lifetime lifetime;
	uint64_t ttl_ms;             /* TENDRIL_TTL: how long it lives from the seal on */
	/* Opaque bytes. Of tensors: {"dtype":"<f4","shape":[2,3],"strides":[3,1]}, with strides in elements. */
	const void *meta;
	size_t meta_size;            /* ≤ TENDRIL_MAX_META */
	const tendril_label *labels;
	size_t label_count;          /* ≤ TENDRIL_MAX_LABELS */
	int own;                     /* 1: a segment of its own, freed as a whole: for single objects that live long */
	int strict;                  /* 1: sealed strictly: no code of this process can write it either; implies own */
	int ephemeral_name;          /* 1: with TENDRIL_EPHEMERAL: the name finds the object but does not keep it */
	int shared;                  /* 1: other processes of the tenant may help to fill it (tendril_fill); implies own */
	int checksum;                /* 1: the daemon computes checksums at the seal (slower), and checks them later */
} tendril_options;

/* An unsealed object that this process fills. It may be moved, but not copied. */
typedef struct tendril_buffer {
	tendril_id id;
	void *data;    /* size bytes, aligned to 64, contents undefined; NULL where size is 0 */
	uint64_t size;
	void *internal[8];
} tendril_buffer;

/* A sealed object that this process holds a reference to. It may be moved, but not copied. */
typedef struct tendril_object {
	tendril_id id;
	const void *data; /* size bytes, aligned to 64, in memory that faults when written; NULL where size is 0 */
	uint64_t size;
	const void *meta; /* meta_size bytes and a NUL behind them; NULL where there are none */
	size_t meta_size;
	enum tendril_lifetime lifetime;
	void *internal[4];
} tendril_object;

/* Makes an object of size bytes to fill. Give it to tendril_seal or tendril_abort; otherwise it ends with the
 * connection. While the store is full, the call waits some seconds at most for memory that is being freed. Then it
 * returns TENDRIL_FULL or TENDRIL_QUOTA. TENDRIL_LIMIT comes at once. */
TENDRIL_API int tendril_create(tendril *, uint64_t size, const tendril_options *, tendril_buffer *out);

/* Makes the object immutable and visible, and binds its name. Release *out (NULL: not wanted, the reference is
 * released). The buffer is zeroed, and its memory must not be written any more: "Sealed objects" above says where
 * that faults. On an error, such as TENDRIL_EXISTS for a taken name, the buffer stays; seal it again or abort it.
 * From the third plain ephemeral object of one small size in a row on, the seal also asks for the next one, so that
 * create and seal cost one round trip. The connection's next create of another kind, get, list or stat returns it
 * unused. */
TENDRIL_API int tendril_seal(tendril_buffer *, tendril_object *out);

/* Aborts an unsealed object. Does nothing after tendril_seal, and for a zeroed buffer. */
TENDRIL_API void tendril_abort(tendril_buffer *);

/* Copies size bytes into a new sealed object. Release *out (NULL: not wanted). Errors as tendril_create and
 * tendril_seal. */
TENDRIL_API int tendril_put(tendril *, const void *data, size_t size, const tendril_options *, tendril_object *out);

/* Takes a reference to a sealed object and maps it. wait_ms: how long to wait until it exists and is sealed
 * (TENDRIL_TIMEOUT); 0: do not wait; TENDRIL_FOREVER. Release *out. Another tenant's object that is shared with this
 * user has the name TENANT/NAME. TENDRIL_STORAGE, TENDRIL_FULL, TENDRIL_QUOTA: it is on disk and cannot be restored. */
TENDRIL_API int tendril_get(tendril *, tendril_key, int64_t wait_ms, tendril_object *out);

/* Gets count objects, in order, or none; 32 in each round trip. wait_ms bounds the wait for all. Release each of
 * out[0..count). Errors as tendril_get. */
TENDRIL_API int tendril_get_many(tendril *, const tendril_key *, size_t count, int64_t wait_ms, tendril_object *out);

/* Releases the reference and zeroes the object. Its data and meta must not be used any more. Does nothing for a zeroed
 * object. */
TENDRIL_API void tendril_release(tendril_object *);

/* 1 if the connection was replaced and the new daemon does not have the object. Its memory stays readable until
 * tendril_release. */
TENDRIL_API int tendril_gone(const tendril_object *);

/* 1 if the reference was taken through the index in shared memory (see tendril_connect_options.index). */
TENDRIL_API int tendril_through_index(const tendril_object *);

/* Opens the index in shared memory if it is wanted and not open yet. TENDRIL_OK: it is open. TENDRIL_UNSUPPORTED: it is
 * off, or the daemon offers none. TENDRIL_BUSY: another thread is opening it. */
TENDRIL_API int tendril_index_state(tendril *);

/* Maps all pages of the object with one system call: for a large object that will be read whole. */
TENDRIL_API void tendril_populate(const tendril_object *);

/* Copies size bytes from offset on into to, over the socket. It maps nothing and restores nothing from disk. The range
 * must lie in the object (TENDRIL_INVALID). TENDRIL_STORAGE: its copy on disk cannot be read. */
TENDRIL_API int tendril_read(tendril *, tendril_key, uint64_t offset, void *to, size_t size);

/* XXH64 (seed 0) of the object's bytes. The daemon computes it, also of an object on disk (TENDRIL_STORAGE). */
TENDRIL_API int tendril_checksum(tendril *, tendril_key, uint64_t *out);

/* Unmaps segments in which nothing is held and that the daemon wants unmapped. tendril_create and tendril_get do so
 * once a second. It does not replace a connection that broke. */
TENDRIL_API int tendril_sweep(tendril *);

/* A descriptor for the poll(2) loop of a program that goes idle. It becomes readable when tendril_sweep is worth
 * calling: some 250 ms after a release that left a segment unused, and then once a second while there is one.
 * tendril_sweep clears it. So the daemon can free memory that an idle program does not use. The library owns the
 * descriptor, until tendril_close. −1: there is none (tendril_message says why). */
TENDRIL_API int tendril_sweep_fd(tendril *);

/* ---- Filling together ------------------------------------------------------------------------------------------- */

/* Joins in filling an object that another process of the tenant made with the option shared. The key is its id or its
 * future name. The buffer is the whole object; the processes agree on who fills which bytes. Give *out to
 * tendril_filled. If a process calls tendril_abort instead, or ends before, the creator's tendril_seal_filled returns
 * TENDRIL_ABORTED once that process's connection has ended. */
TENDRIL_API int tendril_fill(tendril *, tendril_key, tendril_buffer *out);

/* Unmaps the memory and says that this process has filled its part. The buffer is zeroed. */
TENDRIL_API int tendril_filled(tendril_buffer *);

/* Waits until nobody else fills the object, then seals it as tendril_seal. For the creator. wait_ms as for tendril_get
 * (0: TENDRIL_BUSY, else TENDRIL_TIMEOUT). TENDRIL_ABORTED: a process ended before it had filled its part. With despite
 * 1 the object is sealed anyway. */
TENDRIL_API int tendril_seal_filled(tendril_buffer *, int64_t wait_ms, int despite, tendril_object *out);

/* ---- Composites ------------------------------------------------------------------------------------------------- */

typedef struct tendril_member {
	const char *name; /* in the composite; unique there */
	tendril_id id;
} tendril_member;

/* Makes a composite: an object without bytes of its own that keeps its members, sealed objects of this tenant. Of the
 * options it uses name, lifetime, ttl_ms, meta and labels. tendril_stat returns an object's members. Release *out
 * (NULL: not wanted). TENDRIL_EXISTS: the name is taken. */
TENDRIL_API int tendril_compose(tendril *, const tendril_member *, size_t count, const tendril_options *,
                                tendril_object *out);

/* ---- Streams ---------------------------------------------------------------------------------------------------- */

/* One end of a stream: a bounded channel of sealed objects (frames) between processes of one tenant, found by its name.
 * For one thread at a time. Each frame goes to one reader. */
typedef struct tendril_stream tendril_stream;

enum tendril_stream_flags {
	TENDRIL_STREAM_NEW = 4,          /* fail with TENDRIL_EXISTS if the stream exists */
	TENDRIL_STREAM_EXISTING = 8,     /* fail with TENDRIL_NOT_FOUND if it does not exist */
	TENDRIL_STREAM_DROP_OLDEST = 16, /* a push into a full stream drops the oldest frame instead of waiting */
	TENDRIL_STREAM_KEEP = 32         /* the stream stays when nobody has it open and nothing waits in it */
};

/* Options of a stream. Only writers set bounds. 0: unchanged; a new stream has room for 16 frames. */
typedef struct tendril_stream_options {
	uint32_t frames; /* how many frames may wait; ≤ 65,536 */
	uint64_t bytes;  /* how many bytes may wait; one frame always may */
	unsigned flags;  /* bits of enum tendril_stream_flags */
} tendril_stream_options;

/* Open a stream to push into, or to pop from, and create it if it does not exist. Options NULL: zeroes. Close *out with
 * tendril_stream_close. */
TENDRIL_API int tendril_stream_write(tendril *, const char *name, const tendril_stream_options *, tendril_stream **out);
TENDRIL_API int tendril_stream_read(tendril *, const char *name, const tendril_stream_options *, tendril_stream **out);

/* Seals a buffer of the same connection and puts it into the stream. If the stream is full, the call waits up to
 * wait_ms (0: do not wait; TENDRIL_FOREVER), then returns TENDRIL_TIMEOUT. On TENDRIL_OK the buffer is zeroed and a
 * later frame gets its memory. After an error push it again, unchanged, or abort it. TENDRIL_ENDED, TENDRIL_ABORTED:
 * nobody will pop it. */
TENDRIL_API int tendril_stream_push(tendril_stream *, tendril_buffer *, int64_t wait_ms);

/* Puts a sealed object of this tenant into the stream, with its reference: on TENDRIL_OK the object is zeroed. wait_ms
 * and errors as tendril_stream_push. */
TENDRIL_API int tendril_stream_push_object(tendril_stream *, tendril_object *, int64_t wait_ms);

/* Takes the oldest frame, or waits for one up to wait_ms (TENDRIL_TIMEOUT; TENDRIL_FOREVER). Release *out; then the
 * writer may use its memory again. *number (NULL: not wanted) counts from 1 in the order of the pushes; missing numbers
 * were dropped, or popped by others. If the process ends before it releases the frame, calls something else that asks
 * the daemon, or closes the connection, the frame goes back for the next pop. After an error no frame is lost.
 * TENDRIL_ENDED: there are no more frames. TENDRIL_ABORTED: the stream was removed, or its last writer's connection
 * ended while it had the stream open. */
TENDRIL_API int tendril_stream_pop(tendril_stream *, int64_t wait_ms, tendril_object *out, uint64_t *number);

/* Puts a popped frame back in its place, for the next pop. On TENDRIL_OK the object is zeroed. */
TENDRIL_API int tendril_stream_unpop(tendril_stream *, tendril_object *, uint64_t number);

/* Ends the stream for all writers. Readers get the waiting frames, then TENDRIL_ENDED. With abort 1, waiting frames are
 * dropped and all get TENDRIL_ABORTED. For writers. The stream must still be closed. */
TENDRIL_API int tendril_stream_end(tendril_stream *, int abort);

/* Closes this end. The stream goes on for others and for later writers, and readers keep waiting. Popped frames stay.
 * NULL does nothing. */
TENDRIL_API void tendril_stream_close(tendril_stream *);

/* Ends a stream for everybody, with TENDRIL_ABORTED, and drops its waiting frames. */
TENDRIL_API int tendril_stream_remove(tendril *, const char *name);

/* The tenant's streams whose name begins with prefix (NULL: all), as JSON (StreamInfo of ipc/PROTOCOL.md). Free *out
 * with free(). */
TENDRIL_API int tendril_streams_json(tendril *, const char *prefix, char **out);

/* ---- Memory of GPUs --------------------------------------------------------------------------------------------- */

/* An object can lie in the memory of a GPU. This library loads no driver; it provides a descriptor of the
 * allocation. The program imports it (cuMemImportFromShareableHandle with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
 * and maps all of its bytes on the GPU with that UUID; examples/gpu.c does so. The program must wait for its GPU's
 * work on the memory before it seals the object, and unmap the memory before it releases or aborts the object.
 * Anybody who has the memory can write it, also after the seal, because the hardware has no read-only mapping.
 * TENDRIL_UNSUPPORTED says why there is no such memory. */

/* A GPU's UUID. */
typedef struct tendril_device {
	uint8_t bytes[16];
} tendril_device;

typedef struct tendril_gpu {
	tendril_device device;
	uint64_t bytes; /* of its memory */
	int index;      /* in the daemon's order: cuda:INDEX. A program's own order may differ */
	int shares;     /* 1: its memory can be objects */
	char name[128];
} tendril_gpu;

/* The GPUs that objects can lie in. *out has *count elements; free it with free(). */
TENDRIL_API int tendril_gpus(tendril *, tendril_gpu **out, size_t *count);

/* The GPU that text names: a UUID, with or without GPU- before it and hyphens in it, or cuda:N, the N-th of
 * tendril_gpus. An OpenCL device of `tendril devices` goes by its UUID: objects there have the kind opencl, no
 * descriptor (fd -1, 0 bytes to be mapped), and are filled and read by tendril_copy alone. Of a UUID it does not ask
 * whether this node has it. TENDRIL_NO_DEVICE: there is no N-th. TENDRIL_INVALID: text is no cuda:N and no UUID. */
TENDRIL_API int tendril_find_gpu(tendril *, const char *text, tendril_device *out);

/* An unsealed object in the memory of a GPU. It may be moved, but not copied. */
typedef struct tendril_device_buffer {
	tendril_id id;
	tendril_device device;
	uint64_t size;  /* of the object: the first bytes of the allocation */
	uint64_t bytes; /* of the allocation: what is to be mapped */
	int fd;         /* of the allocation. The buffer owns it: if you close it or pass it on, set this to -1 */
	void *internal[6];
} tendril_device_buffer;

/* A sealed object in the memory of a GPU, to which this process holds a reference. It may be moved, but not copied. */
typedef struct tendril_device_object {
	tendril_id id;
	tendril_device device;
	uint64_t size, bytes; /* as the buffer's */
	int fd;               /* as the buffer's */
	const void *meta;     /* as tendril_object's */
	size_t meta_size;
	enum tendril_lifetime lifetime;
	void *internal[4];
} tendril_device_object;

/* Makes an object of size bytes, not 0, in the memory of a GPU. The memory is zero, or holds what earlier objects of
 * this connection left in it. Give it to tendril_seal_device or tendril_abort_device. own, strict, shared, checksum
 * and TENDRIL_PERSISTED are TENDRIL_UNSUPPORTED. TENDRIL_FULL: the GPU has no room. TENDRIL_QUOTA, TENDRIL_LIMIT.
 * TENDRIL_NO_DEVICE: the driver failed. */
TENDRIL_API int tendril_create_device(tendril *, const tendril_device *, uint64_t size, const tendril_options *,
                                      tendril_device_buffer *out);

/* Makes the object visible, and binds its name. The GPU's work on it must have ended. Release *out (NULL: not wanted,
 * the reference is released); it gets the descriptor. The buffer is zeroed. On an error, such as TENDRIL_EXISTS for a
 * taken name, the buffer stays; seal it again or abort it. */
TENDRIL_API int tendril_seal_device(tendril_device_buffer *, tendril_device_object *out);

/* tendril_seal_device with metadata that replaces what tendril_create_device got. */
TENDRIL_API int tendril_seal_device_with(tendril_device_buffer *, const void *meta, size_t meta_size,
                                         tendril_device_object *out);

/* Aborts an unsealed object. Does nothing after tendril_seal_device, and for a zeroed buffer. */
TENDRIL_API void tendril_abort_device(tendril_device_buffer *);

/* Takes a reference to a sealed object in the memory of a GPU. wait_ms as for tendril_get. Release *out.
 * TENDRIL_UNSUPPORTED: it is in host memory. (tendril_get of one in the memory of a GPU returns that, too.) One that
 * made way, and whose GPU is gone since, has no descriptor (fd -1, 0 bytes to be mapped): tendril_copy reads it. */
TENDRIL_API int tendril_get_device(tendril *, tendril_key, int64_t wait_ms, tendril_device_object *out);

/* Releases the reference, closes the descriptor unless it is -1, and zeroes the object. Unmap the memory first. Does
 * nothing for a zeroed object. */
TENDRIL_API void tendril_release_device(tendril_device_object *);

/* A copy of an object in the memory of a GPU, for programs that open CUDA handles and import no descriptor. It may be
 * moved, but not copied. */
typedef struct tendril_ipc_copy {
	tendril_device device;
	uint64_t size;      /* of the object: the copy's first bytes */
	uint64_t bytes;     /* of the copy: charged to the tenant */
	uint8_t handle[64]; /* a cudaIpcMemHandle_t, or CUipcMemHandle */
	void *internal[4];
} tendril_ipc_copy;

/* Has the daemon copy a sealed object in the memory of a GPU, and gives a CUDA handle of the copy: another process than
 * the daemon's keeper opens it with cudaIpcOpenMemHandle or cuIpcOpenMemHandle, on that GPU. The copy is no part of the
 * object: whoever opens it may write it, and it stays when the object goes. It ends with tendril_release_ipc, with the
 * connection, and with the daemon's keeper, which a fault of its driver may end at any time. TENDRIL_UNSUPPORTED: the
 * object is not of that kind, the driver gives no handles, or the daemon is of an earlier release. TENDRIL_LIMIT: the
 * connection has 64 of them. TENDRIL_FULL, TENDRIL_QUOTA, TENDRIL_NO_DEVICE (the driver failed). */
TENDRIL_API int tendril_ipc_handle(tendril *, tendril_key, tendril_ipc_copy *out);

/* Gives the copy back and zeroes *copy, whatever it returns. Whoever has the handle open closes it before. Does nothing
 * for a zeroed one. TENDRIL_NO_DEVICE: the copy had ended with the keeper before, and the handle was of no use since.
 * TENDRIL_DISCONNECTED: it went with the connection. */
TENDRIL_API int tendril_release_ipc(tendril_ipc_copy *copy);

/* Has the daemon copy size bytes of a sealed object into an unsealed one of this connection, named by its id. At
 * least one of the two is in the memory of a GPU; an object that other nodes have published is brought into host memory
 * first. A destination in host memory must have been created with the option own. It returns when the bytes are there.
 * TENDRIL_NO_DEVICE: the driver failed. */
TENDRIL_API int tendril_copy(tendril *, const tendril_id *to, uint64_t to_offset, tendril_key from,
                             uint64_t from_offset, uint64_t size);

/* ---- Names and lifetimes ---------------------------------------------------------------------------------------- */

/* Deletes a sealed object and its name. Its memory is freed with the last reference. */
TENDRIL_API int tendril_delete(tendril *, tendril_key);

/* Names a sealed object. TENDRIL_EXISTS: the name is taken. replace 1: it takes over the name, atomically. */
TENDRIL_API int tendril_bind(tendril *, const tendril_id *, const char *name, int replace);

/* Renames the object that is named from, atomically. replace as for tendril_bind. */
TENDRIL_API int tendril_rename(tendril *, const char *from, const char *to, int replace);

enum tendril_change_bits {
	TENDRIL_PIN = 1,       /* keep it in memory, even when memory is short */
	TENDRIL_UNPIN = 2,
	TENDRIL_SET_TTL = 4,   /* ttl_ms counts from now on; 0: no limit */
	TENDRIL_SET_LABELS = 8, /* labels replace all old ones */
	TENDRIL_PERSIST = 16   /* it is on disk when the call returns */
};

/* Changes a sealed object of this tenant. what: bits of enum tendril_change_bits. Of the options it reads ttl_ms,
 * labels and label_count (NULL: the bits need none). TENDRIL_STORAGE, TENDRIL_FULL, TENDRIL_QUOTA: it cannot be written
 * to disk or kept in memory. */
TENDRIL_API int tendril_update(tendril *, tendril_key, unsigned what, const tendril_options *);

/* Lets others read an object: to is "uid:N", "gid:N" or "all". tendril_unshare ends that for new readers. */
TENDRIL_API int tendril_share(tendril *, tendril_key, const char *to);
TENDRIL_API int tendril_unshare(tendril *, tendril_key, const char *to);

/* ---- Descriptions ----------------------------------------------------------------------------------------------- */

/* Describes an object. Strings are never NULL ("" if empty). Times are RFC 3339. */
typedef struct tendril_info {
	tendril_id id;
	const char *name, *kind, *lifetime, *state, *tenant, *creator, *created, *sealed, *expires;
	const char *meta;     /* as JSON */
	const char *fault;    /* why its copy on disk cannot be used, or what is damaged */
	const tendril_label *labels;
	size_t label_count;
	const tendril_member *members; /* of a composite */
	size_t member_count;
	uint64_t size, refs;
	uint32_t creator_pid;
	uint8_t strict, pinned, on_disk, checksum; /* checksum: it has checksums */
} tendril_info;

typedef struct tendril_query {
	const char *prefix;          /* of the name; NULL: all */
	const tendril_label *labels; /* only objects that have all of these */
	size_t label_count;
	int all;                     /* 1: also objects that other connections still fill */
	int shared;                  /* 1: other tenants' objects that this user may read, instead of this tenant's */
} tendril_query;

/* Describes one object. Free *out with tendril_info_free. */
TENDRIL_API int tendril_stat(tendril *, tendril_key, tendril_info **out);

/* Describes objects, oldest first. *out has *count elements; free it once, with tendril_info_free. query NULL: all. */
TENDRIL_API int tendril_list(tendril *, const tendril_query *, tendril_info **out, size_t *count);

/* tendril_list page by page, in bounded memory: at most limit objects (0: as many as the daemon gives, up to 1,000).
 * A page may be empty although more follow. *cursor is NULL at first. Each call that succeeds frees it and sets it
 * for the next call, to NULL after the last page. Free it if you stop earlier. An object that exists the whole time is
 * listed once. TENDRIL_UNSUPPORTED: the daemon is of an earlier release. */
TENDRIL_API int tendril_list_page(tendril *, const tendril_query *, uint32_t limit, char **cursor, tendril_info **out,
                                  size_t *count);

/* Frees the result of tendril_stat, tendril_list or tendril_list_page. NULL does nothing. */
TENDRIL_API void tendril_info_free(tendril_info *);

/* The daemon's status as JSON, as tendril status --json prints it. Free *out with free(). */
TENDRIL_API int tendril_status_json(tendril *, char **out);

typedef struct tendril_watch tendril_watch;

typedef struct tendril_event {
	/* "sealed", "named", "unnamed" (the object lost that name), "gone" (the last event of an object), "spilled",
	 * "restored"; "lost": this process was slow and events are missing, list again. Ignore events that you do not
	 * know. */
	const char *event;
	tendril_id id;
	const char *name, *at; /* at: the time, RFC 3339 */
	uint64_t size;
} tendril_event;

/* Reports events of the tenant's objects whose name begins with prefix (NULL: all), on a connection of its own. No
 * event after the return is missed. A watch does not reconnect. Options and errors as tendril_connect_with. Close *out
 * with tendril_watch_close. */
TENDRIL_API int tendril_watch_open(const tendril_connect_options *, const char *prefix, tendril_watch **out);

/* Waits for the next event. Its strings are valid until the next call. wait_ms as for tendril_get (TENDRIL_TIMEOUT).
 * One thread at a time. After TENDRIL_DISCONNECTED close the watch and open another one. */
TENDRIL_API int tendril_watch_next(tendril_watch *, int64_t wait_ms, tendril_event *out);

/* A descriptor for poll(2): readable when tendril_watch_next(…, 0, …) is worth calling. Call that until it returns
 * TENDRIL_TIMEOUT. The library owns the descriptor. */
TENDRIL_API int tendril_watch_fd(const tendril_watch *);

/* Ends a watch and its connection. NULL does nothing. */
TENDRIL_API void tendril_watch_close(tendril_watch *);

#ifdef __cplusplus
}
#endif
#endif
