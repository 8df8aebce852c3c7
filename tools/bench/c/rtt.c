// rtt prints, for each line on standard input, the median time in ns of a
// 64-byte round trip between this process and a child, both in blocking system
// calls: the floor of any request over a socket. Without an argument the two have
// a unix stream socketpair. With "tcp" the child listens on loopback: the first
// line says on which port, and a line PORT measures through whatever listens
// there and passes on to the child; "rtt" measures without such a thing. Over the
// socketpair a line "chain" measures half a round trip through a third process:
// the floor of a hand-over from one client of a daemon to another; and a line
// "crowd" how many pairs of round trips a second 4 clients of one server get: the
// floor of what takes a daemon two requests.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { SIZE = 64, TRIPS = 5000, THROUGH = 500, CLIENTS = 4 };

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

// serve echoes to all until they are gone.
static void serve(const int fd[CLIENTS])
{
	int all = epoll_create1(0), left = CLIENTS;
	char m[SIZE];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < CLIENTS; i++) {
		struct epoll_event e = {.events = EPOLLIN, .data.fd = fd[i]};
		if (epoll_ctl(all, EPOLL_CTL_ADD, fd[i], &e) < 0)
			die("rtt: epoll");
	}
	while (left > 0) {
		struct epoll_event e[CLIENTS];
		int n = epoll_wait(all, e, CLIENTS, -1);
		for (int i = 0; i < n; i++)
			if (recv(e[i].data.fd, m, SIZE, 0) != SIZE || send(e[i].data.fd, m, SIZE, MSG_NOSIGNAL) != SIZE) {
				epoll_ctl(all, EPOLL_CTL_DEL, e[i].data.fd, NULL);
				left--;
			}
	}
	_exit(0);
}

// pairs counts pairs of round trips in a second, as a client of libtendril makes them: it sleeps in poll.
static long pairs(int fd)
{
	char m[SIZE] = {0};
	long n = 0;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	for (double end = now() + 1e9; now() < end; n++)
		for (int i = 0; i < 2; i++)
			if (send(fd, m, SIZE, 0) != SIZE || poll(&p, 1, -1) != 1 || recv(fd, m, SIZE, 0) != SIZE)
				_exit(1);
	return n;
}

static double crowd(void)
{
	int near[CLIENTS], far[CLIENTS], count[2];
	long total = 0, n;
	if (pipe(count) < 0)
		die("rtt: pipe");
	for (int i = 0; i < CLIENTS; i++) {
		int fd[2];
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
			die("rtt: socketpair");
		near[i] = fd[0];
		far[i] = fd[1];
	}
	for (int i = -1; i < CLIENTS; i++)
		if (fork() == 0) {
			for (int j = 0; j < CLIENTS; j++)
				if (j != i)
					close(near[j]);
			if (i < 0)
				serve(far);
			n = pairs(near[i]);
			_exit(write(count[1], &n, sizeof n) != sizeof n);
		}
	close(count[1]);
	for (int i = 0; i < CLIENTS; i++) {
		close(near[i]);
		close(far[i]);
	}
	while (read(count[0], &n, sizeof n) == sizeof n)
		total += n;
	close(count[0]);
	for (int i = 0; i <= CLIENTS; i++)
		wait(NULL);
	return total;
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
		if (strcmp(line, "crowd\n") == 0) {
			printf("%.1f\n", crowd());
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
