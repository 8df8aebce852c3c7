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
 * Objects are shared memory: a get maps what another process wrote and copies nothing. Sizes and offsets are bytes, waits are
 * milliseconds; strings are UTF-8 and end with NUL.
 *
 * Sealed objects do not change. From the seal on the kernel gives nobody a new writable mapping of one, root neither, and the memory of
 * every tendril_object faults when it is written, also in the process that made the object. What that process had before is
 * closed: the seal zeroes the buffer, and a pointer from before faults, if the object has 64 KiB or more or memory of its own (own).
 * What remains is the process that made it. A pointer from before still writes to a smaller object, which shares its pages with
 * others that are being filled. Code that sets out to can make pages writable again (mprotect), or write through a child that was
 * forked before the seal. The option strict ends that too: then no writable mapping is left, and none can be made.
 *
 * A store to sealed memory is a SIGSEGV, because the page is mapped read-only. tendril_explain_faults() has it say so.
 *
 * Errors. Functions return TENDRIL_OK (0) or one of enum tendril_status; tendril_message() then says in words what went
 * wrong and what to do. What a failed call was to fill in is zeroed.
 *
 * Threads. A tendril may be used by any number of threads at once; one tendril_object or tendril_buffer by one at a time
 * (reading the memory of an object by many is what it is for).
 *
 * Coming back. A connection that breaks is made anew by the next call: to a daemon that took over from the one before (tendril
 * daemon --takeover) with all objects that are held, to one that was started after a crash with those that are on disk; tendril_gone
 * tells the others, which stay readable until tendril_release, as what was mapped always does. The call waits up to 5 s, with growing, random pauses;
 * where that was in vain calls fail at once, and one tries again every 1 to 30 s. A call that was under way is made again where that
 * alters nothing twice: all that only ask, tendril_get and tendril_create among them, and any that had not left yet. Others answer
 * TENDRIL_DISCONNECTED: it is not known whether they took place. So do calls with what ended with the connection: unsealed buffers
 * (tendril_abort them), parts of tendril_fill, streams (close and open them anew), watches. The option no_reconnect refuses all of that.
 *
 * Fork. A child may read what its parent holds as long as the parent holds it. All else on the parent's connection answers
 * TENDRIL_FORKED: the child makes its own. tendril_close in the child closes the inherited descriptors; the parent
 * notices nothing.
 *
 * Signals. No call raises SIGPIPE or ends early for a signal (EINTR). No handler is installed but by tendril_explain_faults. No thread
 * is started. Every descriptor is close-on-exec.
 *
 * Trust. The library believes the daemon's meaning, never its lengths. It does not talk to a socket under /tmp that is
 * neither this user's nor root's.
 */
#ifndef TENDRIL_H
#define TENDRIL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TENDRIL_API __attribute__((visibility("default")))

/* The library's interface; the daemon's version is told by tendril_about. */
#define TENDRIL_C_MAJOR 0
#define TENDRIL_C_MINOR 1

#define TENDRIL_MAX_META 4096      /* bytes of an object's metadata */
#define TENDRIL_MAX_LABELS 16      /* of one object */
#define TENDRIL_MAX_NAME 1024      /* bytes of a name, with TENANT/ before it */
#define TENDRIL_MAX_MEMBERS 1024   /* of a composite */
#define TENDRIL_FOREVER (-1)       /* a wait without end */

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
	TENDRIL_QUOTA = 8,         /* the tenant may hold no more */
	TENDRIL_PERMISSION = 9,
	TENDRIL_UNSUPPORTED = 10,
	TENDRIL_TIMEOUT = 11,      /* a wait ran out of time */
	TENDRIL_BUSY = 12,
	TENDRIL_VERSION = 13,      /* no protocol version in common */
	TENDRIL_INTERNAL = 14,     /* the daemon failed; its log says more */
	TENDRIL_NO_DEVICE = 15,
	TENDRIL_STORAGE = 64,      /* the object's copy on disk cannot be used, or its bytes are damaged */
	TENDRIL_ENDED = 80,        /* the stream has ended: there was the last frame */
	TENDRIL_ABORTED = 81,      /* the stream was removed or lost its last writer; somebody ended in the middle of filling the object */
	TENDRIL_DISCONNECTED = 1000, /* no daemon, or the connection broke in the middle; held objects stay readable. See "Coming back" above */
	TENDRIL_FORKED = 1001,     /* the connection is the parent process's */
	TENDRIL_NO_MEMORY = 1002   /* malloc or mmap failed in this process */
};

/* What a status means, in a few fixed words. Never NULL. */
TENDRIL_API const char *tendril_strerror(int status);

/* What this thread's last failed call had to say: the daemon's own text where it was the daemon's answer. Valid until the
 * thread's next failed call. Never NULL. */
TENDRIL_API const char *tendril_message(void);

/* Has a sentence written to standard error before a store to a sealed object ends the process: a handler for SIGSEGV, which then calls the
 * one that was there before, or lets the signal take its course. It looks at faults in the library's own mappings alone, and is
 * async-signal-safe. For programs under development; once is enough, a second call does nothing. $TENDRIL_EXPLAIN_FAULTS=1 has
 * tendril_connect do it. */
TENDRIL_API int tendril_explain_faults(void);

/* ---- Connections ---------------------------------------------------------------------------------------------- */

typedef struct tendril tendril;

typedef struct tendril_connect_options {
	const char *socket;      /* path; NULL: $TENDRIL_SOCKET, then the usual places */
	const char *program;     /* what the daemon shows; NULL: the program's name */
	uint64_t keep_bytes;     /* other writers' segments up to this size stay mapped while nothing in them is held,
	                          * until the daemon has no use for them (asked once a second by tendril_create and
	                          * tendril_get); larger ones are unmapped with their last release. 0: 64 MiB */
	int no_ahead;            /* 1: do not ask for the next small object together with a seal (see tendril_seal) */
	int defer;               /* 1: releases go with the next request, or with tendril_flush, and cost no system call of their
	                          * own: for a busy loop. The last ones before a pause want a tendril_flush */
	int64_t patience_ms;     /* how long to try, with growing, random pauses, where there is no daemon; 0: to connect not at all,
	                          * to come back 5 s */
	int index;               /* 1: find, hold and release objects through shared memory where they can be, without a system call
	                          * (segments of any size then stay mapped until the daemon has no use for them); -1: over the
	                          * socket alone. 0: what $TENDRIL_INDEX says (on or off), else -1 */
	int no_reconnect;        /* 1: after the connection broke all calls answer TENDRIL_DISCONNECTED */
} tendril_connect_options;

/* Connects to the daemon (socket NULL: the default). *out is to be closed with tendril_close. TENDRIL_DISCONNECTED: there is none. */
TENDRIL_API int tendril_connect(const char *socket, tendril **out);
TENDRIL_API int tendril_connect_with(const tendril_connect_options *options, tendril **out);

/* Ends the connection: unsealed objects and references are given back. No other thread may be in a call on it. Objects that are held stay
 * readable until tendril_release; buffers must not be touched any more. NULL does nothing. */
TENDRIL_API void tendril_close(tendril *);

typedef struct tendril_daemon {
	const char *version, *tenant; /* valid until tendril_close; tenant is this process's */
	uint8_t incarnation[16];      /* new each time the daemon starts, but after --takeover */
	uint32_t pid;
	uint64_t capacity_bytes;
} tendril_daemon;

/* Who answered, the last time that the connection was made. */
TENDRIL_API void tendril_about(tendril *, tendril_daemon *out);

/* Sends what waits for company: deferred releases. */
TENDRIL_API void tendril_flush(tendril *);

/* Whether the connection is good as it is: TENDRIL_OK, TENDRIL_DISCONNECTED (the next call makes it anew) or TENDRIL_FORKED. Asks nobody. */
TENDRIL_API int tendril_alive(tendril *);

/* ---- Objects -------------------------------------------------------------------------------------------------- */

typedef struct tendril_id {
	uint8_t bytes[16];
} tendril_id;

/* Text of an id: 32 hexadecimal digits and NUL. Returns text. */
TENDRIL_API char *tendril_id_text(const tendril_id *, char text[33]);
/* The reverse; TENDRIL_INVALID where text is not 32 hexadecimal digits. */
TENDRIL_API int tendril_id_parse(const char *text, tendril_id *out);

/* Names one object: by name, or by id where name is NULL. */
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

/* Life-time classes. */
enum tendril_lifetime {
	TENDRIL_EPHEMERAL = 0, /* gone with its last reference */
	TENDRIL_TTL = 1,       /* gone when its time is over */
	TENDRIL_NAMED = 2,     /* kept by its name until tendril_delete */
	TENDRIL_PERSISTED = 3  /* on disk once sealed, there after a restart */
};

typedef struct tendril_label {
	const char *key, *value; /* at most 128 bytes each */
} tendril_label;

/* What an object is to be. NULL, or zeroes: an ephemeral one without a name. A name alone makes it TENDRIL_NAMED. */
typedef struct tendril_options {
	const char *name;            /* bound by the seal; NULL: none */
	enum tendril_lifetime lifetime;
	uint64_t ttl_ms;             /* TENDRIL_TTL: from the seal on */
	const void *meta;            /* opaque; tensors: {"dtype":"<f4","shape":[2,3],"strides":[3,1]}, strides in elements */
	size_t meta_size;            /* ≤ TENDRIL_MAX_META */
	const tendril_label *labels;
	size_t label_count;          /* ≤ TENDRIL_MAX_LABELS */
	int own;                     /* 1: memory of its own, given back whole: for single objects that stay */
	int strict;                  /* 1: sealed so that nobody can write any more, this process's other code neither; implies own */
	int ephemeral_name;          /* 1: with a name and TENDRIL_EPHEMERAL: the name finds the object and keeps nothing */
	int shared;                  /* 1: other processes of the tenant may help to fill it (tendril_fill); implies own */
	int checksum;                /* 1: the daemon makes checksums at the seal, which takes longer, and compares them from then on */
} tendril_options;

/* An object that this process fills. */
typedef struct tendril_buffer {
	tendril_id id;
	void *data;    /* size bytes, aligned to 64, contents undefined; NULL where size is 0 */
	uint64_t size;
	void *internal[8];
} tendril_buffer;

/* A sealed object that this process holds a reference to. */
typedef struct tendril_object {
	tendril_id id;
	const void *data; /* size bytes, aligned to 64, in memory that faults when written; NULL where size is 0 */
	uint64_t size;
	const void *meta; /* meta_size bytes and a NUL behind them; NULL where there are none */
	size_t meta_size;
	enum tendril_lifetime lifetime;
	void *internal[4];
} tendril_object;

/* Makes an object of size bytes to fill. It is to be given to tendril_seal or tendril_abort; it ends with the connection otherwise.
 * While the store is full it waits for memory that is on its way back, some seconds at most. */
TENDRIL_API int tendril_create(tendril *, uint64_t size, const tendril_options *, tendril_buffer *out);

/* Makes the object immutable and visible, and binds its name. *out (NULL: not wanted, the reference is given back) is to be released. The buffer is
 * zeroed, and its memory must not be written any more: "Sealed objects" above says where that faults. On an error, for one that the name is taken (TENDRIL_EXISTS), the buffer stays, to be sealed again or aborted.
 * From the third plain ephemeral object of one small size in a row on, the seal asks for the next one on the way, so
 * that create and seal cost one round trip; the connection's next create of another kind, get, list or stat gives back what was not used. */
TENDRIL_API int tendril_seal(tendril_buffer *, tendril_object *out);

/* Gives an unsealed object up. After tendril_seal, and for a zeroed buffer, it does nothing. */
TENDRIL_API void tendril_abort(tendril_buffer *);

/* Copies size bytes into a new sealed object. *out (NULL: not wanted) is to be released. */
TENDRIL_API int tendril_put(tendril *, const void *data, size_t size, const tendril_options *, tendril_object *out);

/* Takes a reference to a sealed object and maps it. wait_ms: how long to wait until it is there and sealed; 0: not at all;
 * TENDRIL_FOREVER. *out is to be released. Another tenant's object that is shared with this user: by its id, or by the name TENANT/NAME. */
TENDRIL_API int tendril_get(tendril *, tendril_key, int64_t wait_ms, tendril_object *out);

/* Gets count objects, in order, or none. wait_ms bounds the wait for all together. Each of out[0..count) is to be released. A batch costs one round trip. */
TENDRIL_API int tendril_get_many(tendril *, const tendril_key *, size_t count, int64_t wait_ms, tendril_object *out);

/* Gives the reference back; nothing may use data and meta any more. A zeroed or released object does nothing. */
TENDRIL_API void tendril_release(tendril_object *);

/* 1 where the connection came back to a daemon that does not have the object any more. Its memory stays readable until tendril_release. */
TENDRIL_API int tendril_gone(const tendril_object *);

/* 1 where the reference was taken in shared memory, without a system call (see tendril_connect_options.index). */
TENDRIL_API int tendril_through_index(const tendril_object *);

/* Whether the connection uses the index in shared memory, which it opens where it is wanted and no get has done so yet.
 * TENDRIL_UNSUPPORTED: it is not asked for, or the daemon offers none. */
TENDRIL_API int tendril_index_state(tendril *);

/* Enters all pages of the object into this process's page table with one call: for a large one that is about to be read whole. */
TENDRIL_API void tendril_populate(const tendril_object *);

/* Copies size bytes from offset on by way of the socket: maps nothing, brings nothing back from disk. The range must lie in
 * the object (TENDRIL_INVALID). */
TENDRIL_API int tendril_read(tendril *, tendril_key, uint64_t offset, void *to, size_t size);

/* XXH64 (seed 0) of the object's bytes, computed by the daemon. */
TENDRIL_API int tendril_checksum(tendril *, tendril_key, uint64_t *out);

/* Unmaps now what nothing is held in and the daemon has no more use for; create and get do it once a second. It makes no broken connection anew. */
TENDRIL_API int tendril_sweep(tendril *);

/* A descriptor for the poll(2) loop of a program that goes idle: readable when tendril_sweep is worth calling, which ends that. Some 250 ms after
 * a release that left a segment without use, and then once a second while there is one, so that the daemon gets the memory back although the
 * program asks for nothing. The library's, until tendril_close. −1: there is none to be had (tendril_message says why). */
TENDRIL_API int tendril_sweep_fd(tendril *);

/* ---- Filling together ------------------------------------------------------------------------------------------- */

/* Joins in filling an object that another process of the tenant made with the option shared: by its id, or by the name that it will have. The
 * buffer has all of its memory; which bytes are whose is for the processes to agree on. *out is to be given to tendril_filled; after
 * tendril_abort, or where the connection ends first, sealing answers TENDRIL_ABORTED once the connection has ended. */
TENDRIL_API int tendril_fill(tendril *, tendril_key, tendril_buffer *out);

/* Unmaps the memory and says that this process has filled its part. The buffer is zeroed. */
TENDRIL_API int tendril_filled(tendril_buffer *);

/* The creator's tendril_seal, which first waits until nobody else fills the object: wait_ms as tendril_get's (0: TENDRIL_BUSY, else
 * TENDRIL_TIMEOUT). TENDRIL_ABORTED: somebody ended in the middle; with despite it is sealed as it is. */
TENDRIL_API int tendril_seal_filled(tendril_buffer *, int64_t wait_ms, int despite, tendril_object *out);

/* ---- Composites ------------------------------------------------------------------------------------------------- */

typedef struct tendril_member {
	const char *name;
	tendril_id id;
} tendril_member;

/* Makes an object without bytes of its own that keeps its members, sealed objects of this tenant, until it goes itself. Of the options name,
 * lifetime, ttl_ms, meta and labels count. tendril_stat tells an object's members. *out (NULL: not wanted) is to be released. */
TENDRIL_API int tendril_compose(tendril *, const tendril_member *, size_t count, const tendril_options *, tendril_object *out);

/* ---- Streams ---------------------------------------------------------------------------------------------------- */

/* A bounded channel of sealed objects, its frames, between processes of one tenant, found by its name. One end is one
 * writer's or one reader's, for one thread at a time; each frame goes to one reader. */
typedef struct tendril_stream tendril_stream;

enum tendril_stream_flags {
	TENDRIL_STREAM_NEW = 4,          /* it must not be there yet: TENDRIL_EXISTS */
	TENDRIL_STREAM_EXISTING = 8,     /* it must be there: TENDRIL_NOT_FOUND */
	TENDRIL_STREAM_DROP_OLDEST = 16, /* a push into a full stream drops the frame that waits longest, instead of waiting */
	TENDRIL_STREAM_KEEP = 32         /* the stream stays when nobody has it open and nothing waits in it */
};

/* NULL, or zeroes: as it is; a new stream has room for 16 frames. The bounds are a writer's to set. */
typedef struct tendril_stream_options {
	uint32_t frames; /* that may wait; ≤ 65,536 */
	uint64_t bytes;  /* that may wait; one frame always may */
	unsigned flags;  /* bits of enum tendril_stream_flags */
} tendril_stream_options;

/* Open a stream to push into, or to pop from, and make it where it is missing. *out is to be closed with tendril_stream_close. */
TENDRIL_API int tendril_stream_write(tendril *, const char *name, const tendril_stream_options *, tendril_stream **out);
TENDRIL_API int tendril_stream_read(tendril *, const char *name, const tendril_stream_options *, tendril_stream **out);

/* Seals a buffer of the same connection (tendril_create, with metadata perhaps) and puts it into the stream. Where that is full it waits: not at all
 * with wait_ms 0, TENDRIL_FOREVER, else TENDRIL_TIMEOUT. On TENDRIL_OK the buffer is zeroed and its memory a later frame's; after an
 * error it is to be pushed again, unchanged, or aborted. TENDRIL_ENDED, TENDRIL_ABORTED: nobody will pop it. */
TENDRIL_API int tendril_stream_push(tendril_stream *, tendril_buffer *, int64_t wait_ms);

/* Puts a sealed object of this tenant's, and the reference with it: on TENDRIL_OK the object is zeroed. */
TENDRIL_API int tendril_stream_push_object(tendril_stream *, tendril_object *, int64_t wait_ms);

/* Takes the frame that waits longest, or waits for one. *out is to be released: then its memory is its writer's to use again. *number (NULL: not wanted)
 * counts from 1 in the order of the pushes: what is missing was dropped, or popped by others. TENDRIL_ENDED: there was the last one;
 * TENDRIL_ABORTED: the stream was removed, or its last writer's connection ended while it had the stream open. */
TENDRIL_API int tendril_stream_pop(tendril_stream *, int64_t wait_ms, tendril_object *out, uint64_t *number);

/* Puts a popped frame back to its place, for whoever pops next. On TENDRIL_OK the object is zeroed. */
TENDRIL_API int tendril_stream_unpop(tendril_stream *, tendril_object *, uint64_t number);

/* A writer's: no more frames come, from any writer; readers get what waits, then TENDRIL_ENDED. With abort what waits is dropped, and all get
 * TENDRIL_ABORTED. The stream is still to be closed. */
TENDRIL_API int tendril_stream_end(tendril_stream *, int abort);

/* Leaves the stream to others, to writers that are yet to come, too: readers go on waiting. NULL does nothing. Frames that were popped stay. */
TENDRIL_API void tendril_stream_close(tendril_stream *);

/* Ends a stream for everybody, with TENDRIL_ABORTED, and drops what waits in it. */
TENDRIL_API int tendril_stream_remove(tendril *, const char *name);

/* The tenant's streams whose name begins with prefix (NULL: all), as JSON (StreamInfo of ipc/PROTOCOL.md), to be freed with free(). */
TENDRIL_API int tendril_streams_json(tendril *, const char *prefix, char **out);

/* ---- Names and life-times --------------------------------------------------------------------------------------- */

/* Takes a sealed object out of the table; its memory goes with the last reference. */
TENDRIL_API int tendril_delete(tendril *, tendril_key);

/* Names a sealed object. A name that is taken is TENDRIL_EXISTS, unless replace takes it away in the same step. */
TENDRIL_API int tendril_bind(tendril *, const tendril_id *, const char *name, int replace);

/* Gives the object that is called from the name to, in one step for all. */
TENDRIL_API int tendril_rename(tendril *, const char *from, const char *to, int replace);

enum tendril_change_bits {
	TENDRIL_PIN = 1,       /* stays in memory whatever is short of it */
	TENDRIL_UNPIN = 2,
	TENDRIL_SET_TTL = 4,   /* ttl_ms from now on; 0: no end any more */
	TENDRIL_SET_LABELS = 8, /* labels take the place of all */
	TENDRIL_PERSIST = 16   /* on disk when the call comes back */
};

/* Alters a sealed object of the own tenant. what: bits of enum tendril_change_bits; of options only ttl_ms, labels and label_count
 * are read (NULL where the bits need none). */
TENDRIL_API int tendril_update(tendril *, tendril_key, unsigned what, const tendril_options *);

/* Lets others read an object: to is "uid:N", "gid:N" or "all". tendril_unshare ends that for new readers. */
TENDRIL_API int tendril_share(tendril *, tendril_key, const char *to);
TENDRIL_API int tendril_unshare(tendril *, tendril_key, const char *to);

/* ---- Facts ------------------------------------------------------------------------------------------------------ */

/* What the daemon tells about an object. Strings are never NULL ("" where there is nothing); times are RFC 3339. */
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
	uint8_t strict, pinned, on_disk, checksum; /* checksum: those of its bytes are known, and compared */
} tendril_info;

typedef struct tendril_query {
	const char *prefix;          /* of the name; NULL: all */
	const tendril_label *labels; /* all of these */
	size_t label_count;
	int all;                     /* 1: also what other connections still fill */
	int shared;                  /* 1: other tenants' objects that may be read, instead of the own ones */
} tendril_query;

/* Describes one object. *out is to be freed with tendril_info_free. */
TENDRIL_API int tendril_stat(tendril *, tendril_key, tendril_info **out);

/* Describes objects, oldest first. *out has *count elements and is to be freed once, with tendril_info_free. query NULL: all. */
TENDRIL_API int tendril_list(tendril *, const tendril_query *, tendril_info **out, size_t *count);

/* tendril_list page by page, in bounded memory: at most limit objects (0: as many as the daemon gives, up to 1,000), perhaps none though more
 * come. *cursor is NULL at the beginning; each call that succeeds frees it and makes it what the next is to have, NULL behind the last page. Free it
 * where the rest is not wanted. What is there all the while comes once. TENDRIL_UNSUPPORTED: the daemon is of an earlier release. */
TENDRIL_API int tendril_list_page(tendril *, const tendril_query *, uint32_t limit, char **cursor, tendril_info **out, size_t *count);

/* Frees what tendril_stat, tendril_list or tendril_list_page gave. NULL does nothing. */
TENDRIL_API void tendril_info_free(tendril_info *);

/* The daemon's status as JSON, to be freed with free(). */
TENDRIL_API int tendril_status_json(tendril *, char **out);

typedef struct tendril_watch tendril_watch;

typedef struct tendril_event {
	/* "sealed", "named", "unnamed" (it has that name no more), "gone" (its last), "spilled", "restored"; "lost": this process was slow, list again.
	 * There may be others one day. */
	const char *event;
	tendril_id id;
	const char *name, *at;
	uint64_t size;
} tendril_event;

/* Listens for what happens to the tenant's objects whose name begins with prefix, on a connection of its own. When it returns listening has
 * begun. *out is to be closed with tendril_watch_close. */
TENDRIL_API int tendril_watch_open(const tendril_connect_options *, const char *prefix, tendril_watch **out);

/* The next event; its strings are valid until the next call. wait_ms as tendril_get's (TENDRIL_TIMEOUT). One thread at a time. */
TENDRIL_API int tendril_watch_next(tendril_watch *, int64_t wait_ms, tendril_event *out);

/* A descriptor for poll(2): readable when tendril_watch_next(…, 0, …) is worth calling. Call that until it says TENDRIL_TIMEOUT. The library's. */
TENDRIL_API int tendril_watch_fd(const tendril_watch *);

TENDRIL_API void tendril_watch_close(tendril_watch *);

#ifdef __cplusplus
}
#endif
#endif
