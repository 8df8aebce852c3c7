// membw prints the rate, in bytes per second, of one memcpy of 1 GiB from
// touched anonymous memory into a touched shared mapping of a memfd: what a
// store's fill can reach. One number for each line on standard input.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SIZE (1ul << 30)

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
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
		double start = now();
		memcpy(to, from, SIZE);
		printf("%.0f\n", SIZE / (now() - start));
		fflush(stdout);
	}
	return 0;
}
