// What the measuring programs share: a clock, an end with the reason, and sockets that send at once. Include it after the feature macros.
#pragma once
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

// now is the monotonic clock, in ns.
static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static inline void die(const char *what)
{
	perror(what);
	exit(1);
}

static inline void at_once(int fd)
{
	int one = 1;
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
		die("TCP_NODELAY");
}
