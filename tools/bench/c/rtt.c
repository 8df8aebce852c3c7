// rtt prints, for each line on standard input, the median time in ns of a
// 64-byte round trip over a unix stream socketpair between this process and a
// child, both in blocking system calls: the floor of any request over a socket.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64, WARM = 500, TRIPS = 5000 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void echo(int fd)
{
	char b[SIZE];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (recv(fd, b, SIZE, MSG_WAITALL) == SIZE)
		if (send(fd, b, SIZE, 0) != SIZE)
			break;
	_exit(0);
}

static int ascending(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

static double median_trip(int fd)
{
	static double took[TRIPS];
	char b[SIZE] = {0};
	for (int i = -WARM; i < TRIPS; i++) {
		double start = now();
		if (send(fd, b, SIZE, 0) != SIZE || recv(fd, b, SIZE, MSG_WAITALL) != SIZE)
			die("rtt: round trip");
		if (i >= 0)
			took[i] = now() - start;
	}
	qsort(took, TRIPS, sizeof *took, ascending);
	return took[TRIPS / 2];
}

int main(void)
{
	int fd[2];
	char line[16];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) < 0)
		die("rtt: socketpair");
	switch (fork()) {
	case -1:
		die("rtt: fork");
	case 0:
		close(fd[0]);
		echo(fd[1]);
	}
	close(fd[1]);
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		printf("%.1f\n", median_trip(fd[0]));
		fflush(stdout);
	}
	return 0;
}
