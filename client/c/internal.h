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
 *
 * What a lower file needs of a higher one it finds in struct tendril: revive, index_over, hold.rescued.
 *
 * Lock order: tendril.revival.mu, tendril.send_mu, tendril.mu. The inbox belongs to the thread that has the reader's turn (reading).
 *
 * A tendril that breaks comes back as another connection of the same process; each that it has been is a life of it, counted
 * by gen. What belongs to one (a call under way, an unsealed buffer, a stream) ends with it. */
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
	WIRE_VERSION = 2 /* the highest */
};
#define WIRE_MAGIC 0x4C524454u

enum message {
	M_HELLO = 1, M_CREATE = 2, M_SEAL = 3, M_GET = 4, M_RELEASE = 5, M_DELETE = 6, M_ABORT = 7,
	M_STAT = 9, M_STATUS = 10, M_BIND = 12, M_FORGET = 13, M_SWEEP = 14,
	M_CREATE_WITH = 64, M_UPDATE = 65, M_GRANT = 66, M_LIST_WHERE = 67, M_RENAME = 68, M_AWAIT_MANY = 69,
	M_CHECKSUM = 70, M_READ_RANGE = 71, M_WATCH = 72,
	M_STREAM_OPEN = 80, M_STREAM_PUSH = 81, M_STREAM_POP = 82, M_STREAM_END = 83, M_STREAM_CLOSE = 84, M_STREAM_UNPOP = 85,
	M_STREAM_LIST = 86, M_STREAM_REMOVE = 87, M_FILL = 89, M_FILLED = 90, M_SEAL_FILLED = 91, M_COMPOSE = 92, M_RECLAIM = 93,
	M_OPEN_INDEX = 100, M_INDEX_LEVEL = 101, M_LIST_PAGE = 145
};

/* A frame that is being built in caller's memory; bad once something did not fit. */
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
void put_labels(struct writer *, const tendril_label *, size_t); /* sorts by key, as the protocol wants */
/* A wait as messages have it: the longest is without end (of a Get: 49 days). */
uint32_t wire_wait(int64_t ms);
/* Begins a frame at to; the request number is entered when it is sent. */
struct writer begin_frame(uint8_t *to, size_t cap, enum message);

struct reader {
	const uint8_t *at, *end;
	bool bad;
};

uint8_t take_u8(struct reader *);
uint16_t take_u16(struct reader *);
uint32_t take_u32(struct reader *);
uint64_t take_u64(struct reader *);
const uint8_t *take(struct reader *, size_t); /* NULL: not there */
bool took_all(const struct reader *);

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
/* Arms the timer of tendril_sweep_fd where that is wanted and there is something to sweep; ms 0: for the first time. While the index
 * is open the daemon may want segments back that no release made idle. mu is held. */
void sweep_later(tendril *, int64_t ms);
/* Disarms it, which also ends its being readable. mu is held. */
void sweep_timer_ran(tendril *);

/* ---- socket.c: bytes and descriptors of one socket ---- */

struct inbox {
	uint8_t *buf;
	size_t start, end, cap;
	int fds[2 * MAX_FDS + 1];
	int nfds;
};

enum { MAX_SOCKETS = 2, SOCKET_BYTES = 512 };

/* Connects, close-on-exec; the descriptor goes to *fd. *denied is set where a daemon may be there that does not let this user in, and left
 * alone otherwise. The message says why, and not where. */
int dial(const char *path, int *fd, bool *denied);
/* Where a daemon is looked for, the first place first; how many there are. */
int default_sockets(char paths[MAX_SOCKETS][SOCKET_BYTES]);
/* Sends everything; false: the socket failed. flags as send(2). *sent tells how far it came. */
bool send_all(int fd, const uint8_t *p, size_t n, int flags, size_t *sent);
/* The next whole frame, waiting for it up to wait_ms (TENDRIL_FOREVER). Its payload lives until the next call. */
int receive_frame(int fd, struct inbox *, int64_t wait_ms, struct frame *);
void close_frame_fds(struct frame *);
void inbox_free(struct inbox *);

/* ---- segments.c ---- */

/* A mapped segment, found by its number without a lock. These never go before the connection: a look at one that has
 * become another's is harmless. index.c fills them. */
struct fast_view {
	_Atomic uint64_t segment;
	atomic_long users; /* 0: empty; 1, and one an object held in it. What follows stays while it is not 0 */
	const uint8_t *base;
	uint64_t bytes;
};

/* One segment as this process has it. Guarded by tendril.mu. */
struct view {
	struct view *next;
	uint64_t id, bytes;
	int fd; /* −1 once there is nothing left to map */
	void *writable, *readable;
	void *parking; /* where writable's page table entries wait while stores shall fault; NULL: nothing was parked yet */
	bool never_parks; /* the kernel cannot, or has no addresses left */
	uint8_t *pages;      /* of writable: who stores to each; NULL while there is none */
	uint64_t page_bytes; /* the unit of its protection: huge pages' size, where it has those */
	size_t refs; /* objects and buffers */
	size_t filling; /* those that are buffers */
	struct fast_view *fast; /* where the index finds it; NULL: nowhere */
	bool own, frozen; /* this connection fills it; a strict seal ended that */
	bool orphan; /* another life's: no message names it any more, and it goes with its last reference */
	uint64_t gen; /* the life in which a claim found it again */
};

struct place {
	uint64_t segment, bytes, offset;
};

/* Finds or makes the view that a reply names and takes a reference; *out is NULL for an empty object. mu is held. */
int view_adopt(tendril *, struct frame *, const struct place *, bool own, struct view **out);
/* Memory of [offset, offset+size), for reading, or for writing until view_leave. mu is held. */
int view_map(struct view *, const struct place *, uint64_t size, bool writable, void **out);
/* Notes that a buffer is filled no more. With shut stores to its pages fault from here on, but for a first or last one that another buffer
 * has a part of; where the kernel has no room for that they stay as they are. mu is held. */
void view_leave(struct view *, uint64_t offset, uint64_t size, bool shut);
/* Ends the writable mapping, for a strict seal. mu is held. */
void view_freeze(struct view *);
/* Gives a reference back. mu is held. True: it is to be let go now, by view_forget. */
bool view_unref(tendril *, struct view *);
/* Ends what the index gives in a view; false: an object in it is held. mu is held. */
bool view_let_go(struct view *);
/* Takes an idle view out and unmaps it. mu is held. */
void view_forget(tendril *, struct view *);
struct view *view_find(tendril *, uint64_t id);
void views_free(tendril *, bool all);
/* Unmaps what nothing refers to, on a connection that broke. mu is held. */
void views_drop_idle(tendril *);
/* Makes orphans of all views that no claim of this life has found again, and unmaps those without references. mu is held. */
void views_orphan(tendril *);

/* ---- faults.c ---- */

/* Where a segment is mapped, for tendril_explain_faults; any thread. */
void range_enter(const void *from, uint64_t bytes);
void range_leave(const void *from);
/* Does it where $TENDRIL_EXPLAIN_FAULTS wants it. */
void explain_if_asked(void);

/* ---- connection.c ---- */

/* One request under way. Lives on its caller's stack; guarded by tendril.mu until done. */
struct call {
	struct call *next, *prev;
	uint64_t request;
	enum message kind;
	bool done, sleeping;
	bool bound;      /* it belongs to the life gen, and is not made in another one */
	bool lost;       /* the connection broke before its reply */
	bool unsent;     /* the daemon did not get the whole of it */
	uint64_t gen;    /* the life in which it was made; where bound, set before */
	int status;
	pthread_cond_t cond; /* wakes the caller: done, or the reader's turn is free */
	/* what came */
	tendril_id id;
	struct place place;
	struct view *view; /* one reference, the caller's */
	uint64_t size;
	uint64_t number; /* a frame's */
	uint8_t lifetime;
	uint8_t *bytes;  /* malloc; a get's meta, another reply's payload, an error's text; a NUL follows */
	size_t length, room;
	int fds[MAX_FDS]; /* of the index's messages: nfds of them, until drop_call */
	int nfds;
	/* where a reply's payload goes at once, in place of bytes */
	uint8_t *into;
	size_t into_cap;
};

/* There is no spare; its call is under way or done and nobody's; somebody has taken it and waits for it. */
enum spare_state { SPARE_NONE, SPARE_THERE, SPARE_TAKEN };

struct text {
	struct text *next;
	char text[];
};

enum { BUCKETS = 256, OUT_BYTES = 16 << 10 };

/* ---- holds.c ---- */

enum hold_state { HOLD_NONE, HOLD_GOOD, HOLD_CLAIMED /* a claim is under way */, HOLD_DROPPED /* released meanwhile */, HOLD_GONE };

/* A reference of the program's to a sealed object, on a list so that the next daemon can be asked for it. Guarded by tendril.mu. */
struct hold {
	struct hold *next, *prev; /* on tendril.held; next: the free list's, too */
	struct view *view;        /* one reference; NULL: an object of no bytes */
	tendril_id id;
	enum hold_state state;
	size_t *rescued;          /* it is in a record of an index, which counts it here; NULL: one of the free list */
};

enum { HOLD_BLOCK = 64 };
struct hold_block {
	struct hold_block *next;
	struct hold holds[HOLD_BLOCK];
};

/* Takes note of a reference that came in the life gen, with the view's; TENDRIL_DISCONNECTED: that is over. mu is held. */
int hold_new(tendril *, uint64_t gen, const tendril_id *, struct view *, struct hold **out);
/* The same for a record that is there already. mu is held. */
void hold_enter(tendril *, struct hold *, const tendril_id *, struct view *);
/* Takes it off the list, and gives the view's reference back as view_unref does. mu is held. */
bool hold_end(tendril *, struct hold *);
/* Gives a reference back; quiet: somebody else has it now. */
void hold_release(tendril *, struct hold *, bool quiet);
void holds_free(tendril *);

struct tendril {
	atomic_size_t refs;            /* 1 while open, and one an object or buffer: the last one frees */
	volatile unsigned char *mine;  /* a page that is zero in a forked child; immutable */
	int fd;                        /* immutable until close: another connection takes the number over (dup3) */
	char *socket, *program;        /* immutable, as what follows; program may be NULL */
	uint64_t keep_bytes;
	int64_t patience_ms;
	bool ahead, defer;
	int (*revive)(tendril *);      /* brings it back after it broke, no lock held; NULL: it does not come back */

	struct {
		pthread_mutex_t mu;    /* one thread brings the connection back; guards what follows */
		int64_t not_until_ms, penalty_ms;
	} revival;

	pthread_mutex_t send_mu;
	uint8_t out[OUT_BYTES];        /* guarded by send_mu: one-way messages that the socket did not take yet */
	size_t out_n;
	uint64_t next;

	pthread_mutex_t mu;
	struct call *calls;            /* under way */
	bool reading, closed;
	pthread_cond_t turn_free;      /* nobody reads any more from a connection that broke */
	uint64_t gen;
	int status;                    /* why the connection is over */
	char why[256];
	tendril_daemon daemon;
	struct text *texts;            /* what daemon points to, now or in another life */
	struct hold *held, *free_holds;
	struct hold_block *hold_blocks;
	struct view *views[BUCKETS + 1]; /* the last: orphans */
	size_t idle;                   /* views without references */
	int64_t swept_ms;
	int sweep_fd;                  /* a timer; −1: nobody wants it */
	bool sweep_set;
	atomic_int spare_state;        /* enum spare_state; changed under mu */
	struct {                       /* the object that a seal asked for ahead; guarded by mu */
		struct call call;
		uint64_t size, last_size;
		unsigned row, needed;      /* plain objects of last_size in a row; how many make another one likely */
	} spare;

	_Atomic(struct shared_index *) index; /* NULL unless open; changed under mu */
	atomic_bool *index_over;       /* of the index: set at the connection's end, from when on it gives nothing; guarded by mu */
	atomic_int index_state;
	atomic_long in_index;          /* threads that may look at an index without holding an object in it */
	struct shared_index *retired;  /* other lives' */

	struct inbox in;               /* the reader's */
};

/* TENDRIL_OK, or TENDRIL_FORKED with its text. Before any lock. */
int check_mine(const tendril *);
static inline bool is_mine(const tendril *t) { return *t->mine != 0; }

/* Sends the frames (each begun by begin_frame; n of them, one call each) in one system call and registers the calls. On a connection
 * that broke it first makes a new one, unless they are bound to the old one. */
int send_calls(tendril *, struct writer *frames, struct call **calls, size_t n);
/* Waits for a sent call. On an error its text is tendril_message's and nothing is left to free. */
int await_call(tendril *, struct call *);
void init_call(struct call *, enum message);
/* Frees what the call's reply left. */
void drop_call(struct call *);
void init_bound_call(struct call *, enum message, uint64_t gen);
/* send_calls and await_call of one; once more where the connection broke in the middle and that changes nothing twice. */
int round_trip(tendril *, struct writer *, struct call *);
/* round_trip for a request whose reply is empty; of the life gen where that is not 0. */
int simple(tendril *, uint64_t gen, struct writer *);

/* Sends a one-way message now if the socket takes it, else with the next one. send_mu is held. */
void post_locked(tendril *, enum message, const void *payload, size_t n);
void post(tendril *, enum message, const void *payload, size_t n);
/* Gives an id of the life gen and the view back: a Release (of an unsealed object: an abort), and Forget where that is due. */
void give_back(tendril *, uint64_t gen, const tendril_id *, struct view *, bool filling);
/* Says Release, and Forget where large; send_mu is held. */
void say_released(tendril *, const tendril_id *, struct view *, bool large);
/* Lets an idle segment go and tells the daemon so; only while no reply is under way that could name it. Both locks are held. */
void forget(tendril *, struct view *);
/* Sends what waits. send_mu is held. False: the socket failed. */
bool push(tendril *, int flags);

/* Adds n bytes to what the call brought. */
int keep_bytes(struct call *, const uint8_t *, size_t n);

/* ---- spare.c ---- */

/* Takes the spare if it fits; its call is copied out once it is done. */
bool take_spare(tendril *, uint64_t size, struct call *out);
/* Gives it back where there is one. */
void give_up_spare(tendril *);
/* Notes a plain create; whether another one of its size is likely. */
bool spare_is_likely(tendril *, uint64_t size);
/* Makes room for one, whose call is to be sent; false: there is one. */
bool reserve_spare(tendril *, uint64_t size);
void set_spare(tendril *, enum spare_state);

/* ---- sweep.c ---- */

/* Asks which mappings can go: at most once a second unless now is set. Not on a connection that broke: TENDRIL_DISCONNECTED. */
int sweep(tendril *, bool now);
/* round_trip, again where the store is full but memory may be on its way back. */
int round_trip_full(tendril *, struct writer *, struct call *);

/* ---- open.c ---- */

/* Opens a connection without anything on it. */
int open_connection(const tendril_connect_options *, tendril **);
/* Takes over what another connection's daemon told about itself. mu is held. */
void adopt_daemon(tendril *, const tendril *from);
/* Gives one of its references back; the last one frees it. */
void unref_connection(tendril *);

/* ---- revive.c ---- */

/* Brings a connection that broke back, with what is held; TENDRIL_OK where it lives. Waits some seconds the first time. No lock is held. */
int revive(tendril *);

/* ---- objects.c, for stream.c ---- */

tendril *buffer_connection(const tendril_buffer *); /* NULL: it is sealed, aborted or moved */
tendril *object_connection(const tendril_object *);
bool buffer_is_part(const tendril_buffer *);
bool buffer_is_strict(const tendril_buffer *);
/* Whether tendril_seal may try. */
int check_sealable(const tendril_buffer *);
/* Ends the buffer of an object that was sealed. */
int buffer_sealed(tendril_buffer *, tendril_object *out);
/* Ends a buffer or an object whose reference is somebody else's now. */
void buffer_moved(tendril_buffer *);
void object_moved(tendril_object *);
/* Has the daemon know of the reference, which the index's are not. */
int object_hold(tendril_object *);
/* Ends the writable mapping; the buffer stays. */
void buffer_unmap(tendril_buffer *);
/* Ends the filling, as far as the buffer's size allows: while the daemon seals it or puts it into a stream. */
void buffer_shut(tendril_buffer *);
/* Follows a seal that failed with status, unless it may have been carried out all the same. Keeps status, and its text. */
int buffer_reopen(tendril_buffer *, int status);
/* Sends a buffer's last request and, where another such buffer is likely, the Create of the next one with it. */
int send_with_spare(tendril *, const tendril_buffer *, const struct writer *, struct call *);
/* Turns a reply like a Get's into an object, or a Fill's into a buffer; the call is spent. */
uint64_t buffer_gen(const tendril_buffer *);
int object_of_call(tendril *, struct call *, tendril_object *);
int part_of_call(tendril *, struct call *, tendril_buffer *);
enum tendril_lifetime lifetime_of(const tendril_options *);

/* ---- index.c: store/index/PROTOCOL.md ---- */

/* What an object's internal fields are: a hold, or an index and one more than the number of a slot in it. */
enum { OF_CONNECTION, OF_HOLD, OF_INDEX, OF_SLOT };

/* Notes whether the index is wanted. Before the connection is anybody else's. */
void index_want(tendril *, const tendril_connect_options *);
/* Opens it where it is wanted, once. Before a get over the socket: the daemon puts what is got into an index that is open. */
void index_open(tendril *);
/* Gets the levels that the daemon has added. */
void index_grow(tendril *);
/* An object that the index has; false: ask over the socket. No lock, no system call but one look at the socket a second. */
bool index_get(tendril *, const tendril_key *, tendril_object *);
/* Gives back what index_get gave. */
void index_release(tendril *, tendril_object *);
/* Lets the index give objects in a segment that is mapped for reading. mu is held. */
void index_remember(tendril *, struct view *);
/* Whether the daemon has said that segments should be let go of; and that they were. */
bool index_wants_sweep(tendril *);
void index_swept(tendril *);
/* One of them was about to be used: it is to be asked for again. */
void index_sweep_again(tendril *);
/* Whether the daemon of now does not have an object that index_get gave. mu is held. */
bool index_is_gone(const tendril_object *);
/* Before another life: puts what is held in slots on the list of holds, and leaves the index to its last object. mu is held. */
void index_retire(tendril *);
/* Frees what retired and is not needed any more. mu is held. */
void index_tidy(tendril *);
void index_free(tendril *);

/* ---- json.c ---- */

struct json {
	char *at, *end; /* altered while it is read: strings are unescaped in place */
	bool bad;
	unsigned depth;
};

bool json_enter(struct json *, char bracket);           /* '{' or '[': false, and bad, if something else stands there */
bool json_next(struct json *, char bracket, bool *first); /* another member or element? else the closing bracket is passed */
char *json_key(struct json *);                          /* a member's key; the colon is passed */
char *json_string(struct json *);                       /* NUL-terminated, in place; null is "" */
uint64_t json_u64(struct json *);
bool json_bool(struct json *);
char *json_raw(struct json *, size_t *n);               /* any value, as it stands */
void json_skip(struct json *);
bool json_id(struct json *, tendril_id *);
bool json_done(struct json *);                          /* nothing but white space is left */

#endif
