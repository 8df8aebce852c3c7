/* The client's side of the index in shared memory: an object is found, held and released without a system call.
 * store/index/PROTOCOL.md says in which order, and why that is safe. What the index does not have is asked over the
 * socket. Getting and releasing take no lock.
 *
 * The client trusts what the daemon wrote there, but checks every number before it uses it as a bound. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum {
	MAX_LEVELS = 8, FIRST_RECORDS = 512, HEADER_WORDS = 512, BUCKET_WORDS = 8, RECORD_WORDS = 24, TEXT_WORDS = 16,
	H_MAGIC = 0, H_LEVEL = 1, H_BUCKETS = 2, H_RECORDS = 3, H_LEVELS = 4,
	B_AWAY = 0, B_ENTRIES = 1,
	R_WORD = 0, R_ID = 1, R_SEGMENT = 3, R_OFFSET = 4, R_SIZE = 5, R_KIND = 6, R_TEXT = 8,
	SLOTS_BYTES = 8192, RING = 128,
	S_USED = 0, S_AT = 1, S_ENDED = 2, S_LEAVING = 3, S_RING = 8, S_FIRST = S_RING + RING,
	MAX_SLOTS = SLOTS_BYTES / 8 - S_FIRST, TAKEN_WORDS = (MAX_SLOTS + 63) / 64,
	RECORD_BITS = 21, LEVEL_BITS = 3,
	VIEW_SETS = 256, VIEW_WAYS = 8,
	ALIVE_MS = 1000
};
#define MAGIC 0x315844494C524454ull /* "TDRLIDX1" */
#define RECORD_MASK ((1ull << RECORD_BITS) - 1)
#define ENTRY_SET (1ull << 23)

typedef _Atomic uint64_t word;

/* What is held in a slot, as this process knows it. */
struct slot_record {
	atomic_int state;       /* enum slot_state */
	struct fast_view *fast; /* where it lies; NULL: an empty object */
	struct hold hold;       /* its id. In a rescued slot: the reference itself */
};

/* When a connection breaks, its slots are rescued: their references move to the list of holds. */
enum slot_state { SLOT_FREE, SLOT_TAKEN, SLOT_RESCUED };

struct shared_index {
	struct shared_index *next; /* on tendril.retired */
	uint64_t gen;           /* the generation to which it belongs */
	size_t rescued;         /* rescued slots; guarded by tendril.mu */
	struct slot_record records[MAX_SLOTS];
	word *slots;
	const word *levels[MAX_LEVELS];
	size_t level_bytes[MAX_LEVELS];
	atomic_int count;
	word taken[TAKEN_WORDS];
	word swept;         /* the daemon's S_LEAVING, as of the last sweep */
	atomic_bool over;   /* the connection has ended */
	_Atomic int64_t asked_ms; /* when the daemon was last seen alive */
	atomic_flag growing;
	struct fast_view views[VIEW_SETS][VIEW_WAYS];
};

/* The values of tendril.index_state. */
enum { INDEX_UNWANTED, INDEX_WANTED, INDEX_OPENING, INDEX_OPEN, INDEX_REFUSED };

static inline uint64_t look(const word *w) { return atomic_load_explicit(w, memory_order_relaxed); }

static uint64_t records_of(int level)
{
	return (uint64_t)FIRST_RECORDS << 2 * (level < MAX_LEVELS - 2 ? level : MAX_LEVELS - 2);
}
static uint64_t buckets_of(int level) { return records_of(level) / 2; }
static const word *bucket_at(const struct shared_index *ix, int level, uint64_t n)
{
	return ix->levels[level] + HEADER_WORDS + n * BUCKET_WORDS;
}
static const word *record_at(const struct shared_index *ix, int level, uint64_t n)
{
	return ix->levels[level] + HEADER_WORDS + buckets_of(level) * BUCKET_WORDS + n * RECORD_WORDS;
}
static size_t bytes_of(int level)
{
	return 8 * (size_t)(HEADER_WORDS + buckets_of(level) * BUCKET_WORDS + records_of(level) * RECORD_WORDS);
}

/* ---- finding ---- */

struct wanted {
	uint64_t hash, id[2];
	const char *name; /* NULL: by id */
	size_t name_bytes;
};

struct found {
	uint64_t word, id[2], segment, offset, size;
	size_t name_bytes, meta_bytes;
	uint8_t lifetime;
	uint64_t text[TEXT_WORDS];
};

static uint64_t mix(uint64_t h)
{
	h = (h ^ h >> 33) * 0xff51afd7ed558ccdull;
	h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ull;
	return h ^ h >> 33;
}

static struct wanted want(const tendril_key *key)
{
	struct wanted k = {.name = key->name};
	if (key->name) {
		uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a */
		for (; key->name[k.name_bytes]; k.name_bytes++)
			hash = (hash ^ (uint8_t)key->name[k.name_bytes]) * 0x100000001b3ull;
		k.hash = mix(hash);
	} else {
		k.id[0] = load_u64(key->id.bytes);
		k.id[1] = load_u64(key->id.bytes + 8);
		k.hash = mix(k.id[0] ^ (k.id[1] << 32 | k.id[1] >> 32));
	}
	return k;
}

/* Copies a record. False: it is empty, or being written. */
static bool read_record(const word *r, struct found *f)
{
	f->word = atomic_load_explicit(&r[R_WORD], memory_order_acquire);
	if (f->word == 0)
		return false;
	f->id[0] = look(&r[R_ID]);
	f->id[1] = look(&r[R_ID + 1]);
	f->segment = look(&r[R_SEGMENT]);
	f->offset = look(&r[R_OFFSET]);
	f->size = look(&r[R_SIZE]);
	uint64_t kind = look(&r[R_KIND]);
	f->lifetime = (uint8_t)kind;
	f->name_bytes = kind >> 16 & 0xffff;
	f->meta_bytes = kind >> 32 & 0xffff;
	if (f->name_bytes + f->meta_bytes > 8 * TEXT_WORDS)
		return false;
	for (size_t i = 0; 8 * i < f->name_bytes + f->meta_bytes; i++)
		f->text[i] = look(&r[R_TEXT + i]);
	return true;
}

static bool is_wanted(const struct wanted *k, const struct found *f)
{
	if (!k->name)
		return f->id[0] == k->id[0] && f->id[1] == k->id[1];
	return f->name_bytes == k->name_bytes && memcmp(f->text, k->name, k->name_bytes) == 0;
}

static bool find_in(const struct shared_index *ix, int level, uint64_t bucket, const struct wanted *k, struct found *f)
{
	const word *entries = bucket_at(ix, level, bucket);
	uint64_t tag = (k->hash & ~(2 * ENTRY_SET - 1)) | ENTRY_SET;
	for (int i = B_ENTRIES; i < BUCKET_WORDS; i++) {
		uint64_t e = look(&entries[i]), n = e & RECORD_MASK;
		if ((e & ~RECORD_MASK) == tag && n < records_of(level) &&
		    read_record(record_at(ix, level, n), f) && is_wanted(k, f))
			return true;
	}
	return false;
}

static bool find(const struct shared_index *ix, const struct wanted *k, struct found *f)
{
	for (int level = atomic_load_explicit(&ix->count, memory_order_acquire) - 1; level >= 0; level--) {
		uint64_t first = k->hash & (buckets_of(level) - 1), second = k->hash >> 20 & (buckets_of(level) - 1);
		if (find_in(ix, level, first, k, f) ||
		    (look(&bucket_at(ix, level, first)[B_AWAY]) > 0 && find_in(ix, level, second, k, f)))
			return true;
	}
	return false;
}

/* Whether a record has not changed since it was read. */
static bool still_valid(const struct shared_index *ix, uint64_t w)
{
	int level = (int)(w >> RECORD_BITS & ((1u << LEVEL_BITS) - 1));
	return level < atomic_load_explicit(&ix->count, memory_order_acquire) && (w & RECORD_MASK) < records_of(level) &&
	       atomic_load_explicit(&record_at(ix, level, w & RECORD_MASK)[R_WORD], memory_order_acquire) == w;
}

/* ---- holding ---- */

static void drop_rescued(tendril *, struct shared_index *, int slot);

/* Takes the lowest free slot. −1: all are taken. */
static int take_slot(struct shared_index *ix)
{
	for (int i = 0; i < TAKEN_WORDS; i++) {
		uint64_t taken = look(&ix->taken[i]);
		while (~taken) {
			int bit = __builtin_ctzll(~taken);
			if (atomic_compare_exchange_weak_explicit(&ix->taken[i], &taken, taken | 1ull << bit,
			                                          memory_order_acquire, memory_order_relaxed))
				return 64 * i + bit;
		}
	}
	return -1;
}

static void free_bit(struct shared_index *ix, int slot)
{
	atomic_fetch_and_explicit(&ix->taken[slot / 64], ~(1ull << slot % 64), memory_order_release);
}

static void leave_view(struct fast_view *v)
{
	if (v)
		atomic_fetch_sub_explicit(&v->users, 1, memory_order_release);
}

/* Releases what a slot holds. If the index has retired meanwhile, it may be freed once the state is exchanged. */
static void drop(tendril *t, struct shared_index *ix, int slot)
{
	struct slot_record *r = &ix->records[slot];
	atomic_store_explicit(&ix->slots[S_FIRST + slot], 0, memory_order_release);
	leave_view(r->fast);
	free_bit(ix, slot); /* a thread that takes the bit before the state is free asks over the socket */
	if (atomic_exchange(&r->state, SLOT_FREE) == SLOT_RESCUED)
		drop_rescued(t, ix, slot);
}

/* Enters a record into a slot, and checks that it is still valid. Returns the slot; −1: the object is not held. */
static int hold(tendril *t, struct shared_index *ix, const struct found *f, struct fast_view *v)
{
	int slot = take_slot(ix), as_free = SLOT_FREE;
	uint64_t w = f->word;
	if (slot < 0 || !atomic_compare_exchange_strong(&ix->records[slot].state, &as_free, SLOT_TAKEN)) {
		if (slot >= 0)
			free_bit(ix, slot);
		leave_view(v);
		return -1;
	}
	if (atomic_load(&ix->over)) { /* the slot may have been rescued a moment ago */
		ix->records[slot].fast = v;
		drop(t, ix, slot);
		return -1;
	}
	ix->records[slot].fast = v;
	store_u64(ix->records[slot].hold.id.bytes, f->id[0]);
	store_u64(ix->records[slot].hold.id.bytes + 8, f->id[1]);
	uint64_t used = look(&ix->slots[S_USED]);
	while (used <= (uint64_t)slot && !atomic_compare_exchange_weak(&ix->slots[S_USED], &used, (uint64_t)slot + 1))
		;
	atomic_store_explicit(&ix->slots[S_FIRST + slot], w, memory_order_release);
	/* Either the daemon sees the slot, or this thread sees that the record is not valid any more. */
	atomic_thread_fence(memory_order_seq_cst);
	if (still_valid(ix, w) && look(&ix->slots[S_ENDED]) == 0 && !atomic_load(&ix->over))
		return slot;
	drop(t, ix, slot);
	return -1;
}

/* Notes an access for the daemon, so that it does not spill the object as unused. */
static void note_access(struct shared_index *ix, uint64_t w)
{
	uint64_t at = look(&ix->slots[S_AT]);
	if (look(&ix->slots[S_RING + (at - 1) % RING]) == w)
		return; /* the last access was to the same object */
	at = atomic_fetch_add_explicit(&ix->slots[S_AT], 1, memory_order_relaxed);
	atomic_store_explicit(&ix->slots[S_RING + at % RING], w, memory_order_relaxed);
}

/* ---- segments ---- */

/* Keeps a segment's mapping until leave_view. NULL: the segment is not in the table. */
static struct fast_view *enter_view(struct shared_index *ix, uint64_t segment)
{
	for (int i = 0; i < VIEW_WAYS; i++) {
		struct fast_view *v = &ix->views[segment % VIEW_SETS][i];
		if (look(&v->segment) != segment)
			continue;
		long users = atomic_load_explicit(&v->users, memory_order_relaxed);
		while (users > 0)
			if (atomic_compare_exchange_weak_explicit(&v->users, &users, users + 1,
			                                          memory_order_acquire, memory_order_relaxed)) {
				if (look(&v->segment) == segment)
					return v;
				atomic_fetch_sub(&v->users, 1);
				break;
			}
	}
	return NULL;
}

void index_remember(tendril *t, struct view *v)
{
	struct shared_index *ix = atomic_load(&t->index);
	if (!ix || !v || v->fast || !v->readable || t->closed)
		return;
	for (int i = 0; i < VIEW_WAYS && !v->fast; i++) {
		struct fast_view *f = &ix->views[v->id % VIEW_SETS][i];
		if (atomic_load_explicit(&f->users, memory_order_acquire) != 0)
			continue;
		f->base = v->readable;
		f->bytes = v->bytes;
		atomic_store(&f->segment, v->id);
		atomic_store_explicit(&f->users, 1, memory_order_release);
		v->fast = f;
	}
}

/* ---- get and release ---- */

static bool keep_meta(const struct found *f, tendril_object *o)
{
	if (f->meta_bytes == 0)
		return true;
	char *copy = malloc(f->meta_bytes + 1);
	if (!copy)
		return false;
	memcpy(copy, (const char *)f->text + f->name_bytes, f->meta_bytes);
	copy[f->meta_bytes] = 0;
	o->meta = copy;
	o->meta_size = f->meta_bytes;
	return true;
}

/* Holds what was found. False: ask for it over the socket. */
static bool hold_found(tendril *t, struct shared_index *ix, const struct found *f, tendril_object *o)
{
	struct fast_view *v = NULL;
	if (f->segment && !(v = enter_view(ix, f->segment)))
		return false;
	bool fits = v ? f->offset <= v->bytes && f->size <= v->bytes - f->offset : f->size == 0;
	if (!fits) {
		leave_view(v);
		return false;
	}
	int slot = hold(t, ix, f, v);
	if (slot < 0)
		return false;
	if (!keep_meta(f, o)) {
		drop(t, ix, slot);
		return false;
	}
	note_access(ix, f->word);
	atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
	store_u64(o->id.bytes, f->id[0]);
	store_u64(o->id.bytes + 8, f->id[1]);
	o->size = f->size;
	o->data = f->size ? v->base + f->offset : NULL;
	o->lifetime = (enum tendril_lifetime)f->lifetime;
	o->internal[OF_CONNECTION] = t;
	o->internal[OF_INDEX] = ix;
	o->internal[OF_SLOT] = (void *)(uintptr_t)(slot + 1);
	return true;
}

/* Checks once a second that the daemon is alive, because the index of a dead daemon does not change any more. */
static bool is_alive(tendril *t, struct shared_index *ix)
{
	int64_t now = clock_ms();
	if (atomic_load_explicit(&ix->over, memory_order_relaxed))
		return false;
	if (now - atomic_load_explicit(&ix->asked_ms, memory_order_relaxed) < ALIVE_MS)
		return true;
	char byte;
	atomic_store_explicit(&ix->asked_ms, now, memory_order_relaxed);
	ssize_t n = recv(t->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
		atomic_store(&ix->over, true); /* the next request over the socket gets the reason */
	return !atomic_load(&ix->over);
}

/* The open index. Until leave_index it is not freed, even if it retires. NULL: none is open, and leave_index must not
 * be called. */
static struct shared_index *enter_index(tendril *t)
{
	if (!atomic_load_explicit(&t->index, memory_order_relaxed))
		return NULL;
	atomic_fetch_add(&t->in_index, 1);
	struct shared_index *ix = atomic_load(&t->index);
	if (!ix)
		atomic_fetch_sub(&t->in_index, 1);
	return ix;
}

static void leave_index(tendril *t) { atomic_fetch_sub_explicit(&t->in_index, 1, memory_order_release); }

static bool wants_sweep(const struct shared_index *ix) { return look(&ix->slots[S_LEAVING]) != look(&ix->swept); }

bool index_get(tendril *t, const tendril_key *key, tendril_object *o)
{
	struct shared_index *ix = enter_index(t);
	struct found f;
	if (!ix)
		return false;
	bool got = is_alive(t, ix) && !wants_sweep(ix);
	if (got) {
		struct wanted k = want(key);
		got = find(ix, &k, &f) && hold_found(t, ix, &f, o);
	}
	leave_index(t);
	return got;
}

void index_release(tendril *t, tendril_object *o)
{
	drop(t, o->internal[OF_INDEX], (int)(uintptr_t)o->internal[OF_SLOT] - 1);
}

bool index_wants_sweep(tendril *t)
{
	struct shared_index *ix = enter_index(t);
	bool wants = ix && wants_sweep(ix);
	if (ix)
		leave_index(t);
	return wants;
}

void index_swept(tendril *t)
{
	struct shared_index *ix = enter_index(t);
	if (ix) {
		atomic_store(&ix->swept, look(&ix->slots[S_LEAVING]));
		leave_index(t);
	}
}

void index_sweep_again(tendril *t)
{
	struct shared_index *ix = enter_index(t);
	if (ix) {
		atomic_fetch_sub(&ix->swept, 1);
		leave_index(t);
	}
}

/* ---- opening ---- */

void index_want(tendril *t, const tendril_connect_options *o)
{
	const char *env = getenv("TENDRIL_INDEX");
	bool on = env &&
	          (!strcasecmp(env, "on") || !strcmp(env, "1") || !strcasecmp(env, "yes") || !strcasecmp(env, "true"));
	if (o && o->index)
		on = o->index > 0;
	atomic_init(&t->index_state, on ? INDEX_WANTED : INDEX_UNWANTED);
}

/* Maps n bytes of a descriptor, after checking that it has as many. */
static int map_shared(int fd, size_t n, bool writable, void **out)
{
	struct stat have;
	if (fstat(fd, &have) < 0 || have.st_size < 0 || (uint64_t)have.st_size < n)
		return tdl_fail(TENDRIL_PROTOCOL, "the index has less than the %zu bytes that it should have", n);
	void *p = mmap(NULL, n, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return tdl_fail(TENDRIL_NO_MEMORY, "cannot map the index: %s", strerror(errno));
	*out = p;
	return TENDRIL_OK;
}

static int add_level(struct shared_index *ix, int fd, uint64_t bytes)
{
	int n = atomic_load(&ix->count);
	void *p;
	if (n == MAX_LEVELS || bytes != bytes_of(n))
		return tdl_fail(TENDRIL_PROTOCOL, "level %d of the index has %llu bytes", n, (unsigned long long)bytes);
	int status = map_shared(fd, bytes_of(n), false, &p);
	if (status != TENDRIL_OK)
		return status;
	const word *h = p;
	if (look(&h[H_MAGIC]) != MAGIC || look(&h[H_LEVEL]) != (uint64_t)n || look(&h[H_BUCKETS]) != buckets_of(n) ||
	    look(&h[H_RECORDS]) != records_of(n)) {
		munmap(p, bytes_of(n));
		return tdl_fail(TENDRIL_PROTOCOL, "level %d of the index has a wrong header", n);
	}
	ix->levels[n] = h;
	ix->level_bytes[n] = bytes_of(n);
	atomic_store_explicit(&ix->count, n + 1, memory_order_release);
	return TENDRIL_OK;
}

static void free_index(struct shared_index *ix)
{
	for (int i = 0; i < MAX_LEVELS; i++)
		if (ix->levels[i])
			munmap((void *)(uintptr_t)ix->levels[i], ix->level_bytes[i]);
	if (ix->slots)
		munmap((void *)ix->slots, SLOTS_BYTES);
	free(ix);
}

static int fill_index(struct shared_index *ix, const struct call *c)
{
	struct reader r = {c->bytes, c->bytes + c->length, false};
	uint64_t slots = take_u64(&r), level = take_u64(&r);
	void *p;
	if (!took_all(&r) || c->nfds != 2 || slots != SLOTS_BYTES)
		return tdl_fail(TENDRIL_PROTOCOL, "the index came without its descriptors, or with slots of %llu bytes",
			(unsigned long long)slots);
	int status = map_shared(c->fds[0], SLOTS_BYTES, true, &p);
	if (status != TENDRIL_OK)
		return status;
	ix->slots = p;
	if (madvise(p, SLOTS_BYTES, MADV_DONTFORK) < 0) /* a forked child must not write its parent's slots */
		return tdl_fail(TENDRIL_UNSUPPORTED, "cannot keep the index from forked children: %s", strerror(errno));
	for (int i = MAX_SLOTS; i < 64 * TAKEN_WORDS; i++)
		ix->taken[i / 64] |= 1ull << i % 64; /* there are no such slots */
	return add_level(ix, c->fds[1], level);
}

static int ask_index(tendril *t, struct shared_index **out)
{
	*out = NULL;
	uint8_t raw[HEADER_BYTES];
	struct writer w = begin_frame(raw, sizeof raw, M_OPEN_INDEX);
	struct call c;
	init_call(&c, M_OPEN_INDEX);
	int status = round_trip(t, &w, &c);
	if (status != TENDRIL_OK)
		return status;
	struct shared_index *ix = calloc(1, sizeof *ix);
	status = ix ? fill_index(ix, &c) : tdl_fail(TENDRIL_NO_MEMORY, "no memory for the index");
	drop_call(&c);
	if (status != TENDRIL_OK) {
		if (ix)
			free_index(ix);
		return status;
	}
	ix->gen = c.gen;
	*out = ix;
	return TENDRIL_OK;
}

void index_open(tendril *t)
{
	int wanted = INDEX_WANTED;
	struct shared_index *ix;
	if (atomic_load_explicit(&t->index_state, memory_order_relaxed) != INDEX_WANTED ||
	    !atomic_compare_exchange_strong(&t->index_state, &wanted, INDEX_OPENING))
		return;
	int status = ask_index(t, &ix);
	pthread_mutex_lock(&t->mu);
	bool good = status == TENDRIL_OK && ix->gen == t->gen && t->status == TENDRIL_OK;
	if (good) {
		atomic_store(&ix->asked_ms, clock_ms());
		t->index_over = &ix->over;
		atomic_store_explicit(&t->index, ix, memory_order_release);
	}
	/* If the connection broke meanwhile, the index is opened on the next one. */
	int failed = status == TENDRIL_OK || status == TENDRIL_DISCONNECTED ? INDEX_WANTED : INDEX_REFUSED;
	atomic_store(&t->index_state, good ? INDEX_OPEN : failed);
	pthread_mutex_unlock(&t->mu);
	if (status == TENDRIL_OK && !good)
		free_index(ix);
}

static int next_level(tendril *t, struct shared_index *ix)
{
	uint8_t raw[HEADER_BYTES + 1];
	struct writer w = begin_frame(raw, sizeof raw, M_INDEX_LEVEL);
	struct call c;
	put_u8(&w, (uint8_t)atomic_load(&ix->count));
	init_bound_call(&c, M_INDEX_LEVEL, ix->gen);
	int status = round_trip(t, &w, &c);
	if (status != TENDRIL_OK)
		return status;
	struct reader r = {c.bytes, c.bytes + c.length, false};
	uint64_t bytes = take_u64(&r);
	if (took_all(&r) && c.nfds == 1)
		status = add_level(ix, c.fds[0], bytes);
	else
		status = tdl_fail(TENDRIL_PROTOCOL, "a level of the index came without its descriptor");
	drop_call(&c);
	return status;
}

void index_grow(tendril *t)
{
	struct shared_index *ix = enter_index(t);
	if (!ix)
		return;
	if (atomic_flag_test_and_set(&ix->growing)) {
		leave_index(t);
		return;
	}
	int status = TENDRIL_OK;
	while (status == TENDRIL_OK && atomic_load(&ix->count) < MAX_LEVELS &&
	       look(&ix->levels[0][H_LEVELS]) > (uint64_t)atomic_load(&ix->count))
		status = next_level(t, ix);
	if (status == TENDRIL_OK)
		atomic_flag_clear(&ix->growing); /* after an error the index does not grow any more */
	leave_index(t);
}

/* ---- the end ---- */

/* No thread can enter a retired index. So one in which nothing is held, while in_index is 0, can be freed. */
void index_tidy(tendril *t)
{
	for (struct shared_index **at = &t->retired; *at;) {
		struct shared_index *ix = *at;
		if (ix->rescued > 0 || atomic_load(&t->in_index) > 0) {
			at = &ix->next;
			continue;
		}
		*at = ix->next;
		free_index(ix);
	}
}

/* Moves a slot's reference to the list of holds. In a slot whose word is 0 nothing is held: another thread is taking or
 * dropping it, and sees SLOT_RESCUED. mu is held. */
static void rescue(tendril *t, struct shared_index *ix, int slot)
{
	struct slot_record *r = &ix->records[slot];
	int as_taken = SLOT_TAKEN;
	if (!atomic_compare_exchange_strong(&r->state, &as_taken, SLOT_RESCUED))
		return;
	ix->rescued++;
	r->hold.rescued = &ix->rescued;
	if (atomic_load_explicit(&ix->slots[S_FIRST + slot], memory_order_acquire) == 0)
		return;
	struct view *v = r->fast ? view_find(t, look(&r->fast->segment)) : NULL;
	if (v && v->refs++ == 0)
		t->idle--;
	hold_enter(t, &r->hold, &r->hold.id, v);
}

void index_retire(tendril *t)
{
	struct shared_index *ix = atomic_exchange(&t->index, NULL);
	t->index_over = NULL;
	int state = atomic_load(&t->index_state);
	if (state == INDEX_OPEN || state == INDEX_REFUSED)
		atomic_store(&t->index_state, INDEX_WANTED);
	if (ix) {
		atomic_store(&ix->over, true);
		/* Either a thread that takes a slot sees over, or this thread sees the slot. */
		atomic_thread_fence(memory_order_seq_cst);
		for (int i = 0; i < MAX_SLOTS; i++)
			rescue(t, ix, i);
		for (size_t i = 0; i < BUCKETS; i++)
			for (struct view *v = t->views[i]; v; v = v->next)
				v->fast = NULL; /* the objects in it have holds now */
		ix->next = t->retired;
		t->retired = ix;
	}
	index_tidy(t);
}

/* Releases the hold of a rescued slot. The index is not freed before. */
static void drop_rescued(tendril *t, struct shared_index *ix, int slot)
{
	struct hold *h = &ix->records[slot].hold;
	pthread_mutex_lock(&t->mu);
	bool held = h->state != HOLD_NONE;
	if (!held)
		ix->rescued--;
	pthread_mutex_unlock(&t->mu);
	if (held)
		hold_release(t, h, false);
}

bool index_is_gone(const tendril_object *o)
{
	const struct shared_index *ix = o->internal[OF_INDEX];
	const struct slot_record *r = &ix->records[(uintptr_t)o->internal[OF_SLOT] - 1];
	return atomic_load(&r->state) == SLOT_RESCUED && r->hold.state == HOLD_GONE;
}

void index_free(tendril *t)
{
	struct shared_index *ix = atomic_load(&t->index);
	if (ix)
		free_index(ix);
	while ((ix = t->retired)) {
		t->retired = ix->next;
		free_index(ix);
	}
}

int tendril_index_state(tendril *t)
{
	int status = check_mine(t);
	if (status != TENDRIL_OK)
		return status;
	index_open(t);
	switch (atomic_load(&t->index_state)) {
	case INDEX_OPEN:
		return TENDRIL_OK;
	case INDEX_OPENING:
		return tdl_fail(TENDRIL_BUSY, "the index is being opened by another thread");
	case INDEX_REFUSED:
		return tdl_fail(TENDRIL_UNSUPPORTED, "the daemon offers no index: objects are found over the socket");
	}
	return tdl_fail(TENDRIL_UNSUPPORTED, "the index is off: set the option index, or TENDRIL_INDEX=on");
}

int tendril_through_index(const tendril_object *o) { return o->internal[OF_SLOT] != NULL; }
