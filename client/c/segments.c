/* Segments: one descriptor and one or two mappings each, for any number of objects. tendril.mu guards them. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "internal.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC 0x958458f6
#endif

/* Bytes: the unit of a view's table of pages. Larger objects share no such page with others. */
enum { TABLE_PAGE = 4096 };
/* In the table: writes to the page fault. Other values: how many unsealed buffers begin or end on it, at most 64. */
enum { PAGE_SHUT = 0x80 };

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* Bytes. From this size on it is faster to move page table entries than to change them, which costs 75 ns a page, twice
 * for each object. store/segment has the figures. */
#define PARK_FROM (256u << 10)

/* Bytes. From this size on it is faster to map all pages with one call than by page faults. */
#define POPULATE_FROM (1u << 20)

static struct view **slot_of(tendril *t, uint64_t id) { return &t->views[id % BUCKETS]; }
static struct view **list_of(tendril *t, const struct view *v)
{
	return v->orphan ? &t->views[BUCKETS] : slot_of(t, v->id);
}

struct view *view_find(tendril *t, uint64_t id)
{
	struct view *v = *slot_of(t, id);
	while (v && v->id != id)
		v = v->next;
	return v;
}

static int view_new(tendril *t, int fd, const struct place *p, bool own, struct view **out)
{
	struct view *v = calloc(1, sizeof *v);
	if (!v)
		return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a segment's record");
	v->id = p->segment;
	v->bytes = p->bytes;
	v->fd = fd;
	v->own = own;
	v->next = *slot_of(t, v->id);
	*slot_of(t, v->id) = v;
	t->idle++;
	*out = v;
	return TENDRIL_OK;
}

int view_adopt(tendril *t, struct frame *f, const struct place *p, bool own, struct view **out)
{
	*out = NULL;
	if (p->segment == 0)
		return TENDRIL_OK;
	struct view *v = view_find(t, p->segment);
	if (f->nfds > 1)
		return tdl_fail(TENDRIL_PROTOCOL, "a segment came with two descriptors");
	if (!v && f->nfds == 0)
		return tdl_fail(TENDRIL_PROTOCOL, "segment %llu came without its descriptor",
			(unsigned long long)p->segment);
	if (v && v->bytes != p->bytes)
		return tdl_fail(TENDRIL_PROTOCOL, "segment %llu changed its size", (unsigned long long)p->segment);
	if (!v) {
		int status = view_new(t, f->fds[0], p, own, &v);
		if (status != TENDRIL_OK)
			return status;
		f->fds[0] = -1;
	}
	if (v->refs++ == 0)
		t->idle--;
	*out = v;
	return TENDRIL_OK;
}

/* Maps the whole segment. It checks the file's size first, because access beyond its end raises SIGBUS. */
static int map_whole(struct view *v, bool writable, void **out)
{
	unsigned long long id = v->id, bytes = v->bytes;
	struct stat have;
	if (v->fd < 0)
		return tdl_fail(TENDRIL_PERMISSION, "segment %llu can no longer be mapped", id);
	bool fits = fstat(v->fd, &have) == 0 && have.st_size >= 0 && (uint64_t)have.st_size >= v->bytes;
	if (!fits || v->bytes == 0 || v->bytes > SIZE_MAX)
		return tdl_fail(TENDRIL_PROTOCOL, "segment %llu has less than the %llu bytes announced", id, bytes);
	void *p = mmap(NULL, (size_t)v->bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, v->fd, 0);
	if (p == MAP_FAILED)
		return tdl_fail(errno == ENOMEM ? TENDRIL_NO_MEMORY : TENDRIL_PROTOCOL,
			"cannot map a segment of %llu bytes: %s", bytes, strerror(errno));
	range_enter(p, v->bytes);
	*out = p;
	return TENDRIL_OK;
}

static void unmap(struct view *v, void *p)
{
	if (!p)
		return;
	range_leave(p);
	munmap(p, (size_t)v->bytes);
}

static void unmap_writable(struct view *v)
{
	unmap(v, v->writable);
	if (v->parking)
		munmap(v->parking, (size_t)v->bytes);
	v->writable = v->parking = NULL;
}

/* ---- which pages are writable: ipc/PROTOCOL.md, "Sealing" ---- */

struct pages {
	size_t first, last; /* last < first: none; then first is not 0 */
};

static struct pages pages_of(uint64_t offset, uint64_t size)
{
	return (struct pages){(size_t)(offset / TABLE_PAGE), (size_t)((offset + size - 1) / TABLE_PAGE)};
}

static void count_ends(struct view *v, struct pages p, int by)
{
	v->pages[p.first] = (uint8_t)(v->pages[p.first] + by);
	if (p.last != p.first)
		v->pages[p.last] = (uint8_t)(v->pages[p.last] + by);
}

/* Moves the page table entries of [from, to) to a second mapping of the memory (away), or back. This makes mprotect
 * faster: a range without entries can be made read-only without a look at each page. The second mapping lies at an
 * address that nobody is told. The kernel moves whole tables at a time if it can. Missing entries come back by page
 * faults, so parked and protected pages may be mixed. */
static void park(struct view *v, uint64_t from, uint64_t to, bool away)
{
	size_t n = (size_t)(to - from);
	if (v->never_parks || (!v->parking && !away))
		return;
	if (!v->parking) {
		/* A length of 0 makes a copy of the mapping. It may be writable as the first is, in spite of seals. */
		void *p = mremap(v->writable, 0, (size_t)v->bytes, MREMAP_MAYMOVE);
		v->never_parks = p == MAP_FAILED;
		if (v->never_parks)
			return;
		/* The copy has the protection of the first page. */
		if (mprotect(p, (size_t)v->bytes, PROT_READ | PROT_WRITE) < 0) {
			v->never_parks = true;
			munmap(p, (size_t)v->bytes);
			return;
		}
		v->parking = p;
	}
	char *here = (char *)v->writable + from, *there = (char *)v->parking + from;
	int how = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
	if (mremap(away ? here : there, n, n, how, away ? there : here) == MAP_FAILED)
		v->never_parks = errno == EINVAL; /* before Linux 5.13 */
}

/* Makes pages writable or read-only. A huge page is made writable as a whole, and read-only only if all of it is. */
static bool protect(struct view *v, struct pages p, bool stores)
{
	uint64_t unit = v->page_bytes, from = (uint64_t)p.first * TABLE_PAGE, to = (uint64_t)(p.last + 1) * TABLE_PAGE;
	from = (stores ? from : from + unit - 1) / unit * unit;
	to = (stores ? to + unit - 1 : to) / unit * unit;
	if (from >= to)
		return true;
	if (to - from >= PARK_FROM && unit == TABLE_PAGE)
		park(v, from, to, !stores);
	return mprotect((char *)v->writable + from, (size_t)(to - from), PROT_READ | (stores ? PROT_WRITE : 0)) == 0;
}

/* Makes a new buffer's pages writable. */
static int view_open(struct view *v, uint64_t offset, uint64_t size)
{
	struct pages p = pages_of(offset, size), shut = {1, 0};
	for (size_t i = p.first; i <= p.last; i++)
		if (v->pages[i] == PAGE_SHUT) {
			shut = (struct pages){shut.last < shut.first ? i : shut.first, i};
			v->pages[i] = 0;
		}
	if (shut.first <= shut.last && !protect(v, shut, true)) {
		/* The process has too many mappings. To make the whole segment writable takes none. */
		if (mprotect(v->writable, (size_t)v->bytes, PROT_READ | PROT_WRITE) < 0)
			return tdl_fail(TENDRIL_NO_MEMORY, "cannot make pages writable: %s", strerror(errno));
		for (size_t i = 0; i <= (size_t)((v->bytes - 1) / TABLE_PAGE); i++)
			v->pages[i] = v->pages[i] == PAGE_SHUT ? 0 : v->pages[i];
	}
	count_ends(v, p, 1);
	return TENDRIL_OK;
}

void view_leave(struct view *v, uint64_t offset, uint64_t size, bool shut)
{
	if (!v || !v->writable || size == 0)
		return;
	struct pages p = pages_of(offset, size);
	count_ends(v, p, -1);
	if (!shut)
		return;
	if (v->pages[p.first] && v->pages[p.first] != PAGE_SHUT)
		p.first++;
	if (p.first <= p.last && v->pages[p.last] && v->pages[p.last] != PAGE_SHUT)
		p.last--;
	if (p.first > p.last)
		return;
	memset(v->pages + p.first, PAGE_SHUT, p.last - p.first + 1);
	(void)protect(v, p, false); /* if that fails, the table calls writable pages shut: no harm */
}

/* Makes the table of pages of a writable mapping. */
static int view_new_pages(struct view *v)
{
	struct statfs fs;
	bool huge = fstatfs(v->fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC && fs.f_bsize > TABLE_PAGE;
	v->page_bytes = huge ? (uint64_t)fs.f_bsize : TABLE_PAGE;
	free(v->pages);
	v->pages = calloc((size_t)((v->bytes + TABLE_PAGE - 1) / TABLE_PAGE), 1);
	if (v->pages)
		return TENDRIL_OK;
	unmap_writable(v);
	return tdl_fail(TENDRIL_NO_MEMORY, "no memory for a segment's record");
}

static int map_writable(struct view *v, const struct place *p, uint64_t size)
{
	if (!v->own || v->frozen)
		return tdl_fail(TENDRIL_PROTOCOL, "this connection may not write to segment %llu", (unsigned long long)v->id);
	int status = map_whole(v, true, &v->writable);
	if (status == TENDRIL_OK)
		status = view_new_pages(v);
	if (status == TENDRIL_OK && size >= POPULATE_FROM) {
		/* Maps the object's pages with one call. It may fail: then page faults do it. */
		size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (size_t)p->offset & ~(page - 1);
		(void)madvise((char *)v->writable + from, (size_t)(p->offset + size) - from, MADV_POPULATE_WRITE);
	}
	return status;
}

int view_map(struct view *v, const struct place *p, uint64_t size, bool writable, void **out)
{
	*out = NULL;
	if (size == 0)
		return TENDRIL_OK;
	if (!v || p->offset > v->bytes || size > v->bytes - p->offset)
		return tdl_fail(TENDRIL_PROTOCOL, "an object of %llu bytes does not lie in its segment",
			(unsigned long long)size);
	int status = TENDRIL_OK;
	if (writable && !v->writable)
		status = map_writable(v, p, size);
	if (!writable && !v->readable) {
		status = map_whole(v, false, &v->readable);
		if (status == TENDRIL_OK && (!v->own || v->writable || v->frozen)) {
			close(v->fd); /* all is mapped */
			v->fd = -1;
		}
	}
	if (status == TENDRIL_OK && writable)
		status = view_open(v, p->offset, size);
	if (status == TENDRIL_OK)
		*out = (char *)(writable ? v->writable : v->readable) + p->offset;
	return status;
}

void view_freeze(struct view *v)
{
	unmap_writable(v);
	v->frozen = true;
}

static void view_drop(struct view *v)
{
	unmap_writable(v);
	unmap(v, v->readable);
	free(v->pages);
	if (v->fd >= 0)
		close(v->fd);
	free(v);
}

static void unlink_view(tendril *t, struct view *v)
{
	for (struct view **at = list_of(t, v); *at; at = &(*at)->next)
		if (*at == v) {
			*at = v->next;
			return;
		}
}

bool view_let_go(struct view *v)
{
	long alone = 1;
	if (!v->fast)
		return true;
	if (!atomic_compare_exchange_strong(&v->fast->users, &alone, 0))
		return false;
	v->fast = NULL;
	return true;
}

void view_forget(tendril *t, struct view *v)
{
	unlink_view(t, v);
	t->idle--;
	view_drop(v);
}

void views_drop_idle(tendril *t)
{
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct view *v = t->views[i], *next; v; v = next) {
			next = v->next;
			if (v->refs == 0 && view_let_go(v))
				view_forget(t, v);
		}
}

static void make_orphan(tendril *t, struct view *v)
{
	unlink_view(t, v);
	v->orphan = true;
	v->next = t->views[BUCKETS];
	t->views[BUCKETS] = v;
}

void views_orphan(tendril *t)
{
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct view *v = t->views[i], *next; v; v = next) {
			next = v->next;
			if (v->gen == t->gen)
				continue;
			if (v->refs == 0)
				view_forget(t, v);
			else
				make_orphan(t, v);
		}
}

bool view_unref(tendril *t, struct view *v)
{
	if (--v->refs > 0)
		return false;
	t->idle++;
	if (t->closed || v->orphan || t->status != TENDRIL_OK) {
		if (view_let_go(v))
			view_forget(t, v);
		return false;
	}
	sweep_later(t, 0);
	return !v->own && !v->fast && v->bytes > t->keep_bytes;
}

void views_free(tendril *t, bool all)
{
	for (size_t i = 0; i <= BUCKETS; i++)
		for (struct view *v = t->views[i], *next; v; v = next) {
			next = v->next;
			view_freeze(v); /* buffers must not be used any more */
			v->refs -= v->filling;
			v->filling = 0;
			if (all || (v->refs == 0 && view_let_go(v)))
				view_forget(t, v);
		}
}
