// membw prints the rate, in bytes per second, of one memcpy of 1 GiB from
// touched anonymous memory into a touched shared mapping of a memfd: what a
// store's fill can reach. One number for each line on standard input; for the
// line "populate" the rate at which a new process maps the memfd, enters all of
// its pages with MADV_POPULATE_READ and looks at each; for the line "frames" that
// of one frame of 1 MiB copied again and again into the slots of a ring in the
// memfd, as a stream's writer does; for the line "again" that of one frame of 1 MiB
// copied again and again into the same place; for the line "ring" that of frames where another
// process takes each one, and wakes the writer, or is woken, where one waits.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE (1ul << 30)

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

static double populate(int fd)
{
	int result[2];
	double rate = -1;
	if (pipe(result) < 0)
		return -1;
	if (fork() == 0) {
		volatile char sum = 0;
		double start = now();
		char *p = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
		if (p == MAP_FAILED || madvise(p, SIZE, MADV_POPULATE_READ) < 0)
			_exit(1);
		for (size_t at = 0; at < SIZE; at += 4096)
			sum += p[at];
		rate = SIZE / (now() - start);
		_exit(write(result[1], &rate, sizeof rate) != sizeof rate);
	}
	close(result[1]);
	if (read(result[0], &rate, sizeof rate) != sizeof rate)
		rate = -1;
	close(result[0]);
	wait(NULL);
	return rate;
}

enum { FRAME = 1 << 20, SLOTS = 16, FRAMES = 256 };

static void await_change(_Atomic unsigned *word, unsigned from)
{
	syscall(SYS_futex, word, FUTEX_WAIT, from, NULL, NULL, 0);
}

static void wake(_Atomic unsigned *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0); }

// ring needs two words behind the slots: frames written, and taken.
static double ring(char *to, const char *from)
{
	_Atomic unsigned *words = (void *)(to + (size_t)SLOTS * FRAME), *written = words, *taken = words + 16;
	unsigned seen;
	*written = *taken = 0;
	pid_t reader = fork();
	if (reader == 0) {
		for (unsigned i = 0; i < FRAMES; i++) {
			while ((seen = *written) == i)
				await_change(written, seen);
			if (*written - (*taken)++ >= SLOTS)
				wake(taken);
		}
		_exit(0);
	}
	double start = now();
	for (unsigned i = 0; i < FRAMES; i++) {
		while (i - (seen = *taken) >= SLOTS)
			await_change(taken, seen);
		memcpy(to + (size_t)(i % SLOTS) * FRAME, from, FRAME);
		if ((*written)++ == *taken)
			wake(written);
	}
	waitpid(reader, NULL, 0);
	return (double)FRAME * FRAMES / (now() - start);
}

static double frames(char *to, const char *from, int slots)
{
	double start = now();
	for (int i = 0; i < FRAMES; i++)
		memcpy(to + (size_t)(i % slots) * FRAME, from, FRAME);
	return (double)FRAME * FRAMES / (now() - start);
}

int main(void)
{
	int fd = memfd_create("membw", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, SIZE) < 0) {
		perror("membw: memfd");
		return 1;
	}
	char *to = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	char *from = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (to == MAP_FAILED || from == MAP_FAILED) {
		perror("membw: mmap");
		return 1;
	}
	memset(from, 1, SIZE);
	memset(to, 2, SIZE);
	printf("ready\n");
	fflush(stdout);
	char line[16];
	while (fgets(line, sizeof line, stdin)) {
		if (strcmp(line, "populate\n") == 0) {
			printf("%.0f\n", populate(fd));
			fflush(stdout);
			continue;
		}
		if (strcmp(line, "frames\n") == 0) {
			printf("%.0f\n", frames(to, from, SLOTS));
			fflush(stdout);
			continue;
		}
		if (strcmp(line, "again\n") == 0) {
			printf("%.0f\n", frames(to, from, 1));
			fflush(stdout);
			continue;
		}
		if (strcmp(line, "ring\n") == 0) {
			printf("%.0f\n", ring(to, from));
			fflush(stdout);
			continue;
		}
		double start = now();
		memcpy(to, from, SIZE);
		printf("%.0f\n", SIZE / (now() - start));
		fflush(stdout);
	}
	return 0;
}
