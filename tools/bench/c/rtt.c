// rtt prints, for each line on standard input, the median time in ns of a
// 64-byte round trip between this process and a child, both in blocking system
// calls: the floor of any request over a socket. Without an argument the two have
// a unix stream socketpair. With "tcp" the child listens on loopback: the first
// line says on which port, and a line PORT measures through whatever listens
// there and passes on to the child; "rtt" measures without such a thing. Over the
// socketpair a line "chain" measures half a round trip through a third process:
// the floor of a hand-over from one client of a daemon to another.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64, TRIPS = 5000, THROUGH = 500 };

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

static double median_trip(int fd, int trips)
{
	static double took[TRIPS];
	char b[SIZE] = {0};
	for (int i = -trips / 10; i < trips; i++) {
		double start = now();
		if (send(fd, b, SIZE, 0) != SIZE || recv(fd, b, SIZE, MSG_WAITALL) != SIZE)
			die("rtt: round trip");
		if (i >= 0)
			took[i] = now() - start;
	}
	qsort(took, trips, sizeof *took, ascending);
	return took[trips / 2];
}

static int over_unix(void)
{
	int fd[2];
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
	return fd[0];
}

// relay passes on what comes, both ways.
static void relay(int a, int b)
{
	struct pollfd p[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
	char m[SIZE];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (poll(p, 2, -1) > 0)
		for (int i = 0; i < 2; i++)
			if (p[i].revents && (recv(p[i].fd, m, SIZE, MSG_WAITALL) != SIZE || send(p[!i].fd, m, SIZE, 0) != SIZE))
				_exit(0);
	_exit(0);
}

// chain starts a child that echoes behind a child that relays.
static int chain(void)
{
	int far = over_unix(), fd[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) < 0)
		die("rtt: socketpair");
	switch (fork()) {
	case -1:
		die("rtt: fork");
	case 0:
		close(fd[0]);
		relay(fd[1], far);
	}
	close(fd[1]);
	close(far);
	return fd[0];
}

static void at_once(int fd)
{
	int one = 1;
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
		die("rtt: TCP_NODELAY");
}

static int dial(int port)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
		die("rtt: connect");
	at_once(fd);
	return fd;
}

// over_tcp starts a child that echoes on a port, one process a connection.
static int over_tcp(int *port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof at;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	if (l < 0 || bind(l, (struct sockaddr *)&at, n) < 0 || listen(l, 8) < 0 || getsockname(l, (struct sockaddr *)&at, &n) < 0)
		die("rtt: listen");
	*port = ntohs(at.sin_port);
	switch (fork()) {
	case -1:
		die("rtt: fork");
	case 0:
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGCHLD, SIG_IGN);
		for (int fd; (fd = accept(l, NULL, NULL)) >= 0; close(fd)) {
			at_once(fd);
			if (fork() == 0) {
				close(l);
				echo(fd);
			}
		}
		_exit(0);
	}
	close(l);
	return dial(*port);
}

int main(int argc, char **argv)
{
	char line[16];
	int port = 0, fd = argc > 1 ? over_tcp(&port) : over_unix(), third = -1;
	printf("ready %d\n", port);
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		int through = atoi(line);
		if (strcmp(line, "chain\n") == 0) {
			third = third < 0 ? chain() : third;
			printf("%.1f\n", median_trip(third, TRIPS) / 2);
			fflush(stdout);
			continue;
		}
		int used = through ? dial(through) : fd;
		printf("%.1f\n", median_trip(used, through ? THROUGH : TRIPS));
		fflush(stdout);
		if (through)
			close(used);
	}
	return 0;
}
