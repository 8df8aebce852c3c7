/* Sealed objects: whatever the creator has of one faults when it is written, and readers see no change. */
#define _GNU_SOURCE
#include <setjmp.h>

#include "check.h"

static const char *const at = daemon_socket;

static sigjmp_buf out;
static volatile sig_atomic_t handled;

static void on_fault(int signo)
{
	(void)signo;
	handled = 1;
	siglongjmp(out, 1);
}

/* Whether a store to p faults. */
static int faults(const void *p)
{
	struct sigaction ours = {.sa_handler = on_fault}, before;
	int faulted;
	CHECK(sigaction(SIGSEGV, &ours, &before) == 0);
	faulted = sigsetjmp(out, 1);
	if (!faulted)
		*(volatile unsigned char *)(uintptr_t)p ^= 0xff;
	CHECK(sigaction(SIGSEGV, &before, NULL) == 0);
	return faulted;
}

static tendril *dial(int index)
{
	tendril *t;
	OK(tendril_connect_with(&(tendril_connect_options){.socket = at, .index = index ? 1 : -1}, &t));
	return t;
}

static void fill(void *p, size_t size, int seed)
{
	for (size_t i = 0; i < size; i++)
		((unsigned char *)p)[i] = (unsigned char)(i + (size_t)seed);
}

static void is_filled(const void *p, size_t size, int seed)
{
	for (size_t i = 0; i < size; i++)
		CHECK(((const unsigned char *)p)[i] == (unsigned char)(i + (size_t)seed));
}

/* Tries to store to the first, a middle and the last byte of an object that others get. */
static void cannot_alter(const void *p, size_t size, tendril *reader, tendril_id id, int seed)
{
	tendril_object o;
	CHECK(faults(p) && faults((const char *)p + size / 2) && faults((const char *)p + size - 1));
	OK(tendril_get(reader, tendril_by_id(id), 0, &o));
	CHECK(o.size == size);
	is_filled(o.data, size, seed);
	tendril_release(&o);
}

static const struct { size_t size; tendril_options options; int open; } kinds[] = {
	{100, {0}, 1}, /* shares its pages: tendril.h says what remains */
	{64 << 10, {0}, 0}, {100001, {0}, 0}, {(24 << 20) + 5, {0}, 0},
	{100, {.own = 1}, 0}, {5000, {.shared = 1}, 0}, {5000, {.strict = 1}, 0},
};

static void every_view(int index)
{
	tendril *creator = dial(index), *reader = dial(0);
	tendril_object first, o, got, put;
	tendril_buffer b;
	OK(tendril_put(creator, "lies before the others", 22, NULL, &first));
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		OK(tendril_create(creator, kinds[i].size, &kinds[i].options, &b));
		void *early = b.data;
		fill(early, b.size, 1);
		OK(tendril_seal(&b, &o));
		CHECK(b.data == NULL);
		if (!kinds[i].open)
			cannot_alter(early, kinds[i].size, reader, o.id, 1);
		cannot_alter(o.data, o.size, reader, o.id, 1);
		for (int twice = 0; twice < 2; twice++) {
			OK(tendril_get(creator, tendril_by_id(o.id), 0, &got));
			cannot_alter(got.data, got.size, reader, o.id, 1);
			tendril_release(&got);
		}
		OK(tendril_put(creator, o.data, o.size, &kinds[i].options, &put));
		cannot_alter(put.data, put.size, reader, put.id, 1);
		tendril_release(&put);
		tendril_release(&o);
	}
	tendril_release(&first);
	tendril_close(creator);
	tendril_close(reader);
}

static void refused(void)
{
	tendril *t = dial(0);
	tendril_object o;
	tendril_buffer b;
	tendril_options named = {.name = "taken"};
	OK(tendril_put(t, NULL, 0, &named, NULL));
	OK(tendril_create(t, 100000, &named, &b));
	void *early = b.data;
	IS(TENDRIL_EXISTS, tendril_seal(&b, &o));
	CHECK(b.data == early);
	fill(early, b.size, 2); /* it is open again */
	OK(tendril_delete(t, tendril_named("taken")));
	OK(tendril_seal(&b, &o));
	cannot_alter(early, o.size, t, o.id, 2);
	tendril_release(&o);
	tendril_close(t);
}

static void filled_together(void)
{
	tendril *creator = dial(0), *filler = dial(0);
	tendril_buffer b, part;
	tendril_object o;
	OK(tendril_create(creator, 9000, &(tendril_options){.shared = 1}, &b));
	OK(tendril_fill(filler, tendril_by_id(b.id), &part));
	void *early = b.data, *theirs = part.data;
	fill(theirs, 9000, 3);
	OK(tendril_filled(&part));
	CHECK(faults(theirs));
	OK(tendril_seal_filled(&b, TENDRIL_FOREVER, 0, &o));
	cannot_alter(early, o.size, filler, o.id, 3);
	tendril_release(&o);
	tendril_close(creator);
	tendril_close(filler);
}

static void pushed(void)
{
	tendril *t = dial(0), *u = dial(0);
	tendril_stream *w, *r;
	tendril_object o;
	tendril_buffer b;
	OK(tendril_stream_write(t, "frames", NULL, &w));
	OK(tendril_stream_read(u, "frames", NULL, &r));
	for (int i = 0; i < 20; i++) { /* the memory of each comes back */
		OK(tendril_create(t, 100000, NULL, &b));
		char *early = b.data;
		fill(early, b.size, i);
		OK(tendril_stream_push(w, &b, TENDRIL_FOREVER));
		CHECK(faults(early) && faults(early + 99999));
		OK(tendril_stream_pop(r, TENDRIL_FOREVER, &o, NULL));
		is_filled(o.data, o.size, i);
		tendril_release(&o);
	}
	tendril_stream_close(w);
	tendril_stream_close(r);
	tendril_close(t);
	tendril_close(u);
}

/* Objects of all sizes share segments and come and go: each can be filled when it is new, and holds that in the end. */
static void memory_opens_again(void)
{
	enum { HELD = 24, TURNS = 1500 };
	tendril *t = dial(0);
	tendril_object held[HELD];
	tendril_buffer b;
	memset(held, 0, sizeof held);
	srand(1);
	for (int i = 0; i < TURNS; i++) {
		size_t size = 1 + (size_t)(rand() % 700000 >> rand() % 12);
		tendril_object *o = &held[rand() % HELD];
		if (o->data)
			is_filled(o->data, o->size, (int)o->size);
		tendril_release(o);
		OK(tendril_create(t, size, NULL, &b));
		fill(b.data, b.size, (int)size);
		if (rand() % 4 == 0)
			tendril_abort(&b);
		else
			OK(tendril_seal(&b, o));
	}
	for (int i = 0; i < HELD; i++)
		tendril_release(&held[i]);
	tendril_close(t);
}

static void chained(int signo)
{
	(void)signo;
	_exit(write(STDERR_FILENO, "the earlier handler\n", 20) == 20 ? 7 : 8);
}

/* What a child says on standard error that stores to a sealed object, and how it ends. */
static int faulting_child(int explain, void (*earlier)(int), int wild, char *said, size_t cap)
{
	int fds[2], status;
	ssize_t n;
	size_t have = 0;
	CHECK(pipe(fds) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		tendril_object o;
		tendril *t;
		dup2(fds[1], STDERR_FILENO);
		signal(SIGSEGV, earlier);
		if (explain == 2)
			setenv("TENDRIL_EXPLAIN_FAULTS", "1", 1);
		OK(tendril_connect(at, &t));
		if (explain == 1) {
			OK(tendril_explain_faults());
			OK(tendril_explain_faults());
		}
		OK(tendril_put(t, "sealed", 6, NULL, &o));
		*(volatile char *)(wild ? (uintptr_t)16 : (uintptr_t)o.data) = 1;
		_exit(0);
	}
	close(fds[1]);
	while ((n = read(fds[0], said + have, cap - 1 - have)) > 0)
		have += (size_t)n;
	said[have] = 0;
	close(fds[0]);
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

static void explained(void)
{
	static const char sentence[] = "tendril: this process wrote to a sealed object, at 0x";
	char said[1 << 14];
	int status;
	for (int how = 1; how <= 2; how++) {
		status = faulting_child(how, SIG_DFL, 0, said, sizeof said);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV && strstr(said, sentence) == said);
	}
	status = faulting_child(1, chained, 0, said, sizeof said);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	CHECK(strstr(said, sentence) == said && strstr(said, "the earlier handler\n"));
	status = faulting_child(1, SIG_DFL, 1, said, sizeof said);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV && !strstr(said, sentence));
	status = faulting_child(0, SIG_DFL, 0, said, sizeof said);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV && !strstr(said, sentence));
}

static void both_ways(void)
{
	every_view(0);
	every_view(1);
}

/* A claim keeps mappings as they are: with a daemon that takes over, and with none. */
static void daemon_dies(void)
{
	tendril *t = dial(0);
	tendril_buffer b;
	tendril_object o;
	OK(tendril_create(t, 100000, NULL, &b));
	void *early = b.data;
	fill(early, b.size, 5);
	OK(tendril_seal(&b, &o));
	hand_over();
	tendril *reader = dial(0);
	cannot_alter(early, o.size, reader, o.id, 5);
	cannot_alter(o.data, o.size, t, o.id, 5);
	tendril_close(reader);
	kill_daemon();
	CHECK(faults(early) && faults(o.data));
	is_filled(o.data, o.size, 5);
	tendril_release(&o);
	tendril_close(t);
}

int main(void)
{
	static const struct test tests[] = {
		{"both_ways", both_ways}, {"refused", refused}, {"filled_together", filled_together}, {"pushed", pushed},
		{"memory_opens_again", memory_opens_again}, {"explained", explained},
	};
	return run_tests("test_sealed", tests, sizeof tests / sizeof *tests, daemon_dies);
}
