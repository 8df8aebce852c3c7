/* What the library's files share. Nothing here is exported.
 *
 * A file calls those above it in this list, and none below it (tests/tree.sh checks that there is no circle):
 *
 *   error, wire           messages of errors; encoding
 *   clock, faults, json   time and the sweep timer; writes to sealed memory explained; descriptions
 *   socket                one socket's bytes and descriptors
 *   segments              mappings
 *   connection            requests and replies, for any number of threads
 *   holds, spare          references of the program's; an object asked for ahead
 *   index                 get and release without a system call
 *   sweep                 unmapping what nobody needs
 *   open                  opening and closing a connection
 *   revive, connect       bringing one back; what programs call to connect
 *   objects, queries      create, seal, get, release; descriptions and lists
 *   stream, watch         streams, parts and composites; events
 *   device                objects in the memory of GPUs
 *
 * Where a file needs something of one below it, struct tendril has a pointer: revive, index_over, hold.rescued.
 *
 * Lock order: tendril.revival.mu, tendril.send_mu, tendril.mu. The inbox belongs to the thread that reads (reading).
 *
 * A tendril whose connection breaks gets a new one. Each of its connections is a generation, counted by gen. A call in
 * progress, an unsealed buffer and a stream belong to one generation and end with it.
 *
 * A view is a segment as this process has it, a hold one reference to a sealed object. A view is idle while nothing
 * refers to it. Sizes and offsets are bytes. Functions that return int return a status, and set the message. */
#ifndef TENDRIL_INTERNAL_H
#define TENDRIL_INTERNAL_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "tendril.h"

/* ---- error.c ---- */

/* Keeps the text for tendril_message and returns status. */
int tdl_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Keeps n bytes that another process sent as the text. */
int tdl_fail_text(int status, const char *text, size_t n);

/* ---- wire.c: ipc/PROTOCOL.md ---- */

enum {
	HEADER_BYTES = 16,
	MAX_PAYLOAD = 1 << 20,
	MAX_FDS = 2,
	FLAG_FD = 1,
	FLAG_FD2 = 2,
	FLAG_MORE = 4,
	REPLY_BIT = 0x8000,
	ERROR_FRAME = 0xFFFF,
	WIRE_LOWEST = 1,
	WIRE_VERSION = 4, /* the highest */
	WIRE_ACKS = 3,    /* from here on popped frames are acknowledged */
	WIRE_FRAME_ACKS = 4 /* and the stream of each is named */
};
#define WIRE_MAGIC 0x4C524454u

enum message {
	M_HELLO = 1, M_CREATE = 2, M_SEAL = 3, M_GET = 4, M_RELEASE = 5, M_DELETE = 6, M_ABORT = 7,
	M_STAT = 9, M_STATUS = 10, M_BIND = 12, M_FORGET = 13, M_SWEEP = 14,
	M_CREATE_WITH = 64, M_UPDATE = 65, M_GRANT = 66, M_LIST_WHERE = 67, M_RENAME = 68, M_AWAIT_MANY = 69,
	M_CHECKSUM = 70, M_READ_RANGE = 71, M_WATCH = 72,
	M_STREAM_OPEN = 80, M_STREAM_PUSH = 81, M_STREAM_POP = 82, M_STREAM_END = 83, M_STREAM_CLOSE = 84,
	M_STREAM_UNPOP = 85, M_STREAM_LIST = 86, M_STREAM_REMOVE = 87, M_FILL = 89, M_FILLED = 90, M_SEAL_FILLED = 91,
	M_COMPOSE = 92, M_RECLAIM = 93, M_STREAM_ACK = 95, M_FRAME_ACK = 96, M_OPEN_INDEX = 100,
	M_INDEX_LEVEL = 101, M_LIST_PAGE = 145,
	M_CREATE_DEVICE = 160, M_GET_DEVICE = 161, M_COPY_OBJECT = 162, M_GPUS = 163, M_SEAL_DEVICE = 164,
	M_IPC_HANDLE = 165, M_CLOSE_IPC = 166
};

/* Builds a frame in the caller's memory. bad: something did not fit. */
struct writer {
	uint8_t *to;
	size_t n, cap;
	bool bad;
};

void put_u8(struct writer *, uint8_t);
void put_u16(struct writer *, uint16_t);
void put_u32(struct writer *, uint32_t);
void put_u64(struct writer *, uint64_t);
void put_bytes(struct writer *, const void *, size_t);
void put_str16(struct writer *, const char *); /* NULL is "" */
void put_bytes32(struct writer *, const void *, size_t);
void put_key(struct writer *, tendril_key);
void put_labels(struct writer *, const tendril_label *, size_t); /* sorts by key, as the protocol demands */
/* A wait as messages carry it. The largest value means without limit, except in a Get: 49 days. */
uint32_t wire_wait(int64_t ms);
/* Begins a frame at to. Sending enters its length and request number. */
struct writer begin_frame(uint8_t *to, size_t cap, enum message);

/* Reads a payload from front to back. bad: it was too short. */
struct reader {
	const uint8_t *at, *end;
	bool bad;
};

uint8_t take_u8(struct reader *);
uint16_t take_u16(struct reader *);
uint32_t take_u32(struct reader *);
uint64_t take_u64(struct reader *);
const uint8_t *take(struct reader *, size_t); /* NULL: the payload is too short */
bool took_all(const struct reader *); /* the payload was as long as what was read */

uint64_t load_u64(const uint8_t *);
void store_u64(uint8_t *, uint64_t);

struct frame {
	uint32_t length;
	uint16_t type, flags;
	uint64_t request;
	const uint8_t *payload;
	int fds[MAX_FDS]; /* −1: none, or taken */
	int nfds;
};

/* ---- clock.c ---- */

int64_t clock_ms(void);
/* Sleeps between half and one and a half times ms, but not beyond until. */
void pause_about(int64_t ms, int64_t until);
/* Arms the timer of tendril_sweep_fd, if it exists and there may be something to sweep. ms 0: the delay after a
 * release. While the index is open, the daemon may ask for segments that no release made idle. mu is held. */
void sweep_later(tendril *, int64_t ms);
/* Disarms it. Then its descriptor is not readable. mu is held. */
void sweep_timer_ran(tendril *);

/* ---- socket.c: bytes and descriptors of one socket ---- */

struct inbox {
	uint8_t *buf;
	size_t start, end, cap;
	int fds[2 * MAX_FDS + 1];
	int nfds;
};

enum { MAX_SOCKETS = 2, SOCKET_BYTES = 512 };

/* Connects. *fd is close-on-exec and the caller's. Sets *denied if the socket refuses this user, or is a stranger's.
 * The message says why, but not the path. */
int dial(const char *path, int *fd, bool *denied);
/* Where to look for a daemon, in order. Returns how many places there are. */
int default_sockets(char paths[MAX_SOCKETS][SOCKET_BYTES]);
/* Sends everything. False: the socket failed; errno says why. flags as send(2). *sent: how many bytes were sent. */
bool send_all(int fd, const uint8_t *p, size_t n, int flags, size_t *sent);
/* Waits up to wait_ms (or TENDRIL_FOREVER) for the next whole frame. Its payload is valid until the next call. */
int receive_frame(int fd, struct inbox *, int64_t wait_ms, struct frame *);
void close_frame_fds(struct frame *);
void inbox_free(struct inbox *);

/* ---- segments.c ---- */

/* A mapped segment that index.c finds by its number without a lock. The memory of these lives as long as the index, so
 * a thread may look at one that has become another segment's. */
struct fast_view {
	_Atomic uint64_t segment;
	/* 0: empty; otherwise 1, and 1 for each object held in it. While it is not 0, the rest does not change. */
	atomic_long users;
	const uint8_t *base;
	uint64_t bytes;
};

/* One segment as this process has it. Guarded by tendril.mu. */
struct view {
	struct view *next;
	uint64_t id, bytes;
	int fd; /* −1 once all is mapped */
	void *writable, *readable; /* the two mappings; NULL: not mapped */
	void *parking; /* a second mapping that keeps the page table entries of read-only pages (park); NULL: none yet */
	bool never_parks; /* the kernel refused that */
	uint8_t *pages;      /* the state of each page of writable (segments.c); NULL while there is none */
	uint64_t page_bytes; /* the unit of its protection: the size of its pages, which may be huge */
	size_t refs; /* objects and buffers */
	size_t filling; /* those that are buffers */
	struct fast_view *fast; /* where the index finds it; NULL: nowhere */
	bool own, frozen; /* own: this connection fills it; frozen: a strict seal ended that */
	bool orphan; /* of an earlier generation: no message names it any more. Unmapped with its last reference */
	uint64_t gen; /* the generation in which a claim confirmed it */
};

struct place {
	uint64_t segment, bytes, offset;
};

/* Finds or makes the view of the segment that a reply names, and takes a reference. *out is NULL for an empty object.
 * mu is held. */
int view_adopt(tendril *, struct frame *, const struct place *, bool own, struct view **out);
/* Memory of [offset, offset+size): readable, or writable until view_leave. mu is held. */
int view_map(struct view *, const struct place *, uint64_t size, bool writable, void **out);
/* Notes that a buffer is not filled any more. With shut, writes to its pages fault from now on. A first or last page
 * that has a part of another buffer stays writable, and so does every page if the kernel refuses. mu is held. */
void view_leave(struct view *, uint64_t offset, uint64_t size, bool shut);
/* Ends the writable mapping, for a strict seal. mu is held. */
void view_freeze(struct view *);
/* Releases a reference. mu is held. True: the caller unmaps the view now, with view_let_go and view_forget. */
bool view_unref(tendril *, struct view *);
/* Removes a view from the index's table. False: an object in it is held through the index. mu is held. */
bool view_let_go(struct view *);
/* Unlinks an idle view and unmaps it. mu is held. */
void view_forget(tendril *, struct view *);
struct view *view_find(tendril *, uint64_t id);
/* Unmaps what was being filled and what is idle; all: everything. mu is held, or nobody else has the tendril. */
void views_free(tendril *, bool all);
/* Unmaps all idle views, after the connection broke. mu is held. */
void views_drop_idle(tendril *);
/* Makes orphans of all views that no claim of this generation confirmed, and unmaps the idle ones. mu is held. */
void views_orphan(tendril *);

/* ---- faults.c ---- */

/* Where a segment is mapped, for tendril_explain_faults. Any thread. */
void range_enter(const void *from, uint64_t bytes);
void range_leave(const void *from);
/* Calls tendril_explain_faults if $TENDRIL_EXPLAIN_FAULTS asks for it. */
void explain_if_asked(void);

/* ---- connection.c ---- */

/* One request in progress. It lies on its caller's stack. tendril.mu guards it until done. */
struct call {
	struct call *next, *prev;
	uint64_t request;
	enum message kind;
	bool done, sleeping;
	bool bound;      /* it belongs to the generation gen, and is not sent in another one */
	bool lost;       /* the connection broke before its reply */
	bool unsent;     /* the daemon did not get all of it */
	uint64_t gen;    /* the generation in which it was sent. If bound, the caller sets it */
	int status;
	pthread_cond_t cond; /* wakes the caller: done, or nobody reads */
	/* The reply: */
	tendril_id id;
	struct place place;
	struct view *view; /* one reference, the caller's */
	uint64_t size;
	uint64_t number; /* of a stream's frame */
	tendril_device device; /* of memory of a GPU, whose allocation has place.bytes */
	uint8_t lifetime;
	uint8_t *bytes;  /* malloc; a get's metadata, another reply's payload, or an error's text. A NUL follows */
	size_t length, room;
	int fds[MAX_FDS]; /* nfds descriptors, of the index or of memory of a GPU. drop_call closes them */
	int nfds;
	/* If not NULL, the payload goes here instead of bytes. */
	uint8_t *into;
	size_t into_cap;
};

/* NONE: there is no spare. THERE: its call was sent, and a thread may take it. TAKEN: a thread sends or awaits it. */
enum spare_state { SPARE_NONE, SPARE_THERE, SPARE_TAKEN };

struct text {
	struct text *next;
	char text[];
};

enum { BUCKETS = 256, OUT_BYTES = 16 << 10 };

/* ---- holds.c ---- */

enum hold_state {
	HOLD_NONE,
	HOLD_GOOD,
	HOLD_CLAIMED, /* a claim is in progress */
	HOLD_DROPPED, /* released while a claim is in progress */
	HOLD_GONE     /* the daemon does not have the object */
};

/* The program's reference to a sealed object, on a list from which the next connection claims it. Guarded by
 * tendril.mu. */
struct hold {
	struct hold *next, *prev; /* on tendril.held; next also on the free list */
	struct view *view;        /* one reference; NULL: an empty object */
	tendril_id id;
	enum hold_state state;
	size_t *rescued;          /* it lies in an index, which counts it here (index_retire); NULL: from the free list */
};

enum { HOLD_BLOCK = 64 };
struct hold_block {
	struct hold_block *next;
	struct hold holds[HOLD_BLOCK];
};

/* Notes a reference that came in the generation gen, and the view's. TENDRIL_DISCONNECTED: gen is over. mu is held. */
int hold_new(tendril *, uint64_t gen, const tendril_id *, struct view *, struct hold **out);
/* hold_new with a given record. It cannot fail. mu is held. */
void hold_enter(tendril *, struct hold *, const tendril_id *, struct view *);
/* Takes a hold off the list and releases its reference to the view, as view_unref does. mu is held. */
bool hold_end(tendril *, struct hold *);
/* Releases a reference. quiet: sends nothing, because somebody else has the reference now. */
void hold_release(tendril *, struct hold *, bool quiet);
void holds_free(tendril *);

struct tendril {
	atomic_size_t refs;            /* 1 while open, and 1 for each object, buffer and stream. The last one frees it */
	volatile unsigned char *mine;  /* a page that is zero in a forked child; immutable */
	int fd;                        /* immutable until close: a new connection takes over the number (dup3) */
	char *socket, *program;        /* immutable, like the next four; program may be NULL */
	uint64_t keep_bytes;
	int64_t patience_ms;
	bool ahead, defer;
	int (*revive)(tendril *);      /* replaces a connection that broke; no lock is held. NULL: no_reconnect */

	struct {
		pthread_mutex_t mu;    /* held by the thread that makes a new connection; guards the rest */
		int64_t not_until_ms, penalty_ms;
	} revival;

	pthread_mutex_t send_mu;
	uint8_t out[OUT_BYTES];        /* guarded by send_mu: one-way messages that the socket has not taken yet */
	size_t out_n;
	uint16_t speaks;               /* the protocol's version that was agreed on */
	uint64_t next;                 /* the last request number; guarded by mu */

	pthread_mutex_t mu;
	struct call *calls;            /* in progress */
	bool reading, closed;
	pthread_cond_t turn_free;      /* the connection broke, and nobody reads from it any more */
	uint64_t gen;
	int status;                    /* why the connection is over; TENDRIL_OK: it is not */
	char why[256];
	tendril_daemon daemon;
	struct text *texts;            /* what daemon points to, in any generation */
	struct hold *held, *free_holds;
	struct hold_block *hold_blocks;
	struct view *views[BUCKETS + 1]; /* the last list: orphans */
	size_t idle;                   /* how many views are idle */
	int64_t swept_ms;
	int sweep_fd;                  /* a timer; −1: tendril_sweep_fd was not called */
	bool sweep_set;
	atomic_int spare_state;        /* enum spare_state; changed under mu */
	struct {                       /* the object that a seal asked for; guarded by mu */
		struct call call;
		uint64_t size, last_size;
		unsigned row, needed;      /* plain objects of last_size in a row; how many make another one likely */
	} spare;

	_Atomic(struct shared_index *) index; /* NULL unless open; changed under mu */
	atomic_bool *index_over;       /* the index's over, set when the connection ends; guarded by mu */
	atomic_int index_state;
	atomic_long in_index;          /* threads that may read an index without holding an object in it */
	struct shared_index *retired;  /* indexes of earlier generations */

	struct inbox in;               /* of the thread that reads */
};

/* TENDRIL_OK, or TENDRIL_FORKED and its message. Call it before taking a lock. */
int check_mine(const tendril *);
static inline bool is_mine(const tendril *t) { return *t->mine != 0; }

/* Registers n calls and sends their frames (begun by begin_frame) in one system call. If the connection broke, it makes
 * a new one first, unless the calls are bound. On an error the calls are dropped. */
int send_calls(tendril *, struct writer *frames, struct call **calls, size_t n);
/* Waits for a call that was sent. On an error the call is dropped. */
int await_call(tendril *, struct call *);
void init_call(struct call *, enum message);
void init_bound_call(struct call *, enum message, uint64_t gen);
/* Frees what the reply left. */
void drop_call(struct call *);
/* send_calls and await_call for one call. If the connection breaks, the call is repeated if that is harmless. */
int round_trip(tendril *, struct writer *, struct call *);
/* round_trip for a request with an empty reply. gen not 0: bound to that generation. */
int simple(tendril *, uint64_t gen, struct writer *);

/* Appends a one-way message to out. send_mu is held. */
void post_locked(tendril *, enum message, const void *payload, size_t n);
/* Sends a one-way message now if the socket takes it, else with the next message. */
void post(tendril *, enum message, const void *payload, size_t n);
/* Releases a reference of the generation gen, or aborts an unsealed object (filling), and releases the view. */
void give_back(tendril *, uint64_t gen, const tendril_id *, struct view *, bool filling);
/* Tells the daemon, with the next message, that a popped frame is here. A release does not say so by itself: the
 * connection may hold the object otherwise, too. */
void post_ack(tendril *, uint64_t stream, const tendril_object *, uint64_t number);
/* Sends Release and, if large and the view is idle, unmaps it and sends Forget. send_mu is held. */
void say_released(tendril *, const tendril_id *, struct view *, bool large);
/* Unmaps an idle segment and tells the daemon. No reply may be in progress that could name it. Both locks are held. */
void forget(tendril *, struct view *);
/* Sends out. send_mu is held. False: the socket failed. */
bool push(tendril *, int flags);

/* Appends n bytes to the call's bytes. */
int keep_bytes(struct call *, const uint8_t *, size_t n);

/* ---- spare.c ---- */

/* Takes the spare if it has this size, and waits for it. *out gets its call. */
bool take_spare(tendril *, uint64_t size, struct call *out);
/* Returns the spare to the daemon, if there is one. */
void give_up_spare(tendril *);
/* Notes a plain create. Returns whether another one of this size is likely. */
bool spare_is_likely(tendril *, uint64_t size);
/* Reserves the spare for a call that the caller sends. False: there is a spare already. */
bool reserve_spare(tendril *, uint64_t size);
void set_spare(tendril *, enum spare_state);

/* ---- sweep.c ---- */

/* Unmaps idle segments that the daemon does not need, at most once a second unless now is set. It makes no new
 * connection: TENDRIL_DISCONNECTED. */
int sweep(tendril *, bool now);
/* round_trip, repeated while the store is full but memory is being freed. */
int round_trip_full(tendril *, struct writer *, struct call *);

/* ---- open.c ---- */

/* Opens a connection that does not reconnect. */
int open_connection(const tendril_connect_options *, tendril **);
/* Copies the facts about another connection's daemon. mu is held. */
void adopt_daemon(tendril *, const tendril *from);
/* Releases a reference to the connection. The last one frees it. */
void unref_connection(tendril *);

/* ---- revive.c ---- */

/* Replaces a connection that broke and claims what is held. TENDRIL_OK if it lives. The first time it tries for some
 * seconds. No lock is held. */
int revive(tendril *);

/* ---- objects.c, for stream.c ---- */

tendril *buffer_connection(const tendril_buffer *); /* NULL: it is sealed, aborted or moved */
tendril *object_connection(const tendril_object *);
bool buffer_is_part(const tendril_buffer *);
bool buffer_is_strict(const tendril_buffer *);
uint64_t buffer_gen(const tendril_buffer *);
/* TENDRIL_OK if the buffer can be sealed. */
int check_sealable(const tendril_buffer *);
/* Ends the buffer of an object that was sealed. out gets the object; NULL: the reference is released. */
int buffer_sealed(tendril_buffer *, tendril_object *out);
/* Ends a buffer or an object whose reference somebody else has now. Sends nothing. */
void buffer_moved(tendril_buffer *);
void object_moved(tendril_object *);
/* Makes a reference known to the daemon. References through the index are not. */
int object_hold(tendril_object *);
/* Ends the writable mapping. The buffer stays. */
void buffer_unmap(tendril_buffer *);
/* Ends the filling, while the daemon seals the buffer. Its pages become read-only if they are its own. */
void buffer_shut(tendril_buffer *);
/* Makes the buffer writable again after a seal failed with status, unless the daemon may have sealed it. Returns
 * status, and keeps its message. */
int buffer_reopen(tendril_buffer *, int status);
/* Sends a buffer's last request and, if another such buffer is likely, the Create of the next one with it. */
int send_with_spare(tendril *, const tendril_buffer *, const struct writer *, struct call *);
/* Turn the reply to a Get into an object, or that to a Fill into a buffer. They drop the call. */
int object_of_call(tendril *, struct call *, tendril_object *);
/* The same, but if it fails the reference and the call are still the caller's. */
int object_of_frame(tendril *, struct call *, tendril_object *);
int part_of_call(tendril *, struct call *, tendril_buffer *);
enum tendril_lifetime lifetime_of(const tendril_options *);
/* Copies the metadata for the object that a buffer will be, with a NUL behind it. No metadata: it changes nothing. The
 * caller frees *copy. TENDRIL_NO_MEMORY. */
int copy_meta(const tendril_options *, void **copy, void **size);

/* ---- index.c: store/index/PROTOCOL.md ---- */

/* An object's internal fields: a hold, or an index and the number of its slot plus one. */
enum { OF_CONNECTION, OF_HOLD, OF_INDEX, OF_SLOT };

/* Notes whether the program wants the index. Call it before another thread can have the connection. */
void index_want(tendril *, const tendril_connect_options *);
/* Opens the index once, if it is wanted. Call it before a get over the socket: the daemon enters what is got into an
 * open index. */
void index_open(tendril *);
/* Gets the levels that the daemon has added. */
void index_grow(tendril *);
/* Gets an object through the index. False: ask over the socket. Takes no lock, and makes one system call a second. */
bool index_get(tendril *, const tendril_key *, tendril_object *);
/* Releases an object of index_get. */
void index_release(tendril *, tendril_object *);
/* From now on index_get finds objects in this readable segment. mu is held. */
void index_remember(tendril *, struct view *);
/* Whether the daemon asks for a sweep, and that one was done. */
bool index_wants_sweep(tendril *);
void index_swept(tendril *);
/* The sweep could not unmap a segment because an object in it is held: ask again later. */
void index_sweep_again(tendril *);
/* Whether the daemon no longer has an object of index_get. mu is held. */
bool index_is_gone(const tendril_object *);
/* At the end of a generation: moves the references in slots to the list of holds. The index stays until its last object
 * is released. mu is held. */
void index_retire(tendril *);
/* Frees retired indexes that nobody needs any more. mu is held. */
void index_tidy(tendril *);
void index_free(tendril *);

/* ---- json.c ---- */

struct json {
	char *at, *end; /* the text, which is changed: strings are unescaped in place */
	bool bad;
	unsigned depth;
};

bool json_enter(struct json *, char bracket); /* passes '{' or '['; false, and bad, if something else stands there */
bool json_next(struct json *, char bracket, bool *first); /* false: no more members; passes the closing bracket */
char *json_key(struct json *);                          /* a member's key; passes the colon */
char *json_string(struct json *);                       /* NUL-terminated, in place; null is "" */
uint64_t json_u64(struct json *);
bool json_bool(struct json *);
char *json_raw(struct json *, size_t *n);               /* any value, as it is written */
void json_skip(struct json *);
bool json_id(struct json *, tendril_id *);
bool json_done(struct json *);                          /* only white space is left */

#endif
