// delay is a link between two machines, as far as one machine can make it: what goes through arrives later, and nothing else happens to it. It listens
// on a port of loopback for each port that it is given and passes on what comes to that one; its first line says on which ports. A line "LINK NS" on
// standard input, the first link being 0, sets how much later, one way, and is answered. One thread a direction waits for bytes and for the time of those that it has, so that
// a message costs a wake-up when it comes and one when it goes, and no hand-over between threads: netem would cost less, but few kernels of
// small machines have it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { PIECE = 64 << 10, UNDER_WAY = 256, LINKS = 8 };

struct link {
	int listener;
	int target; // port
	atomic_long delay; // ns
};

struct piece {
	struct piece *next;
	long due;
	size_t n;
	char bytes[];
};

struct way {
	int from, to;
	struct link *link;
};

static struct link links[LINKS];

static void start(void *(*f)(void *), void *arg)
{
	pthread_t t;
	if (pthread_create(&t, NULL, f, arg))
		die("delay: thread");
	pthread_detach(t);
}

static struct piece *take(struct way *w, char *buf)
{
	ssize_t n = recv(w->from, buf, PIECE, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		n = 0;
	else if (n <= 0)
		return NULL;
	struct piece *p = malloc(sizeof *p + n);
	if (!p)
		die("delay: memory");
	*p = (struct piece){.due = now() + w->link->delay, .n = n};
	memcpy(p->bytes, buf, n);
	return p;
}

static int give(struct way *w, struct piece *p)
{
	size_t at = 0;
	for (ssize_t n; at < p->n; at += n)
		if ((n = send(w->to, p->bytes + at, p->n - at, MSG_NOSIGNAL)) < 0)
			break;
	int whole = at == p->n;
	free(p);
	return whole;
}

// pass carries one direction until its end. The sockets stay open: the process ends with its measurement.
static void *pass(void *arg)
{
	struct way *w = arg;
	struct piece *first = NULL, **last = &first;
	int waiting = 0, open = 1;
	char *buf = malloc(PIECE);
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	while (open || first) {
		struct pollfd p = {.fd = open && waiting < UNDER_WAY ? w->from : -1, .events = POLLIN};
		long left = first ? first->due - now() : -1;
		struct timespec t = {left / 1000000000, left % 1000000000};
		if (first && left <= 0) {
			struct piece *x = first;
			if (!(first = x->next))
				last = &first;
			waiting--;
			if (!give(w, x))
				break;
			continue;
		}
		if (ppoll(&p, 1, first ? &t : NULL, NULL) < 0 && errno != EINTR)
			die("delay: poll");
		if (!p.revents)
			continue;
		struct piece *x = take(w, buf);
		if (!x) {
			open = 0;
			continue;
		}
		*last = x;
		last = &x->next;
		waiting++;
	}
	shutdown(w->to, SHUT_WR);
	shutdown(w->from, SHUT_RD);
	free(buf);
	free(w);
	return NULL;
}

static void join(int from, int to, struct link *l)
{
	struct way *w = malloc(sizeof *w);
	if (!w)
		die("delay: memory");
	*w = (struct way){from, to, l};
	start(pass, w);
}

static void *serve(void *arg)
{
	struct link *l = arg;
	for (int fd; (fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
		struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(l->target), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (far < 0 || connect(far, (struct sockaddr *)&to, sizeof to) < 0)
			die("delay: connect");
		at_once(fd);
		at_once(far);
		join(fd, far, l);
		join(far, fd, l);
	}
	return NULL;
}

static int listen_for(struct link *l)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof at;
	l->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (l->listener < 0 || bind(l->listener, (struct sockaddr *)&at, n) < 0 || listen(l->listener, 16) < 0 || getsockname(l->listener, (struct sockaddr *)&at, &n) < 0)
		die("delay: listen");
	start(serve, l);
	return ntohs(at.sin_port);
}

int main(int argc, char **argv)
{
	char line[64];
	printf("ready");
	for (int i = 1; i < argc && i <= LINKS; i++) {
		links[i - 1].target = atoi(argv[i]);
		printf(" %d", listen_for(&links[i - 1]));
	}
	printf("\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		int link;
		long delay;
		if (sscanf(line, "%d %ld", &link, &delay) != 2 || link < 0 || link >= argc - 1 || link >= LINKS || delay < 0)
			return 1;
		links[link].delay = delay;
		printf("1\n");
		fflush(stdout);
	}
	return 0;
}
