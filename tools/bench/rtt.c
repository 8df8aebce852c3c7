/*
 * The reference for the store's figures: the median time in ns of a 64-byte round trip over a unix stream
 * socketpair between two processes, with plain blocking read and write. Takes nothing, prints one number.
 *
 *     cc -O2 -o rtt rtt.c && ./rtt
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { message_bytes = 64, warm_rounds = 2000, rounds = 20000 };

/* Moves exactly one message; ends the process when the peer is gone. */
static void receive(int fd, char *buf) {
    for (size_t got = 0; got < message_bytes;) {
        ssize_t n = read(fd, buf + got, message_bytes - got);
        if (n <= 0) _exit(n < 0);
        got += (size_t)n;
    }
}

static void send_all(int fd, const char *buf) {
    for (size_t sent = 0; sent < message_bytes;) {
        ssize_t n = write(fd, buf + sent, message_bytes - sent);
        if (n <= 0) _exit(1);
        sent += (size_t)n;
    }
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    long long x = *(const long long *)a, y = *(const long long *)b;
    return (x > y) - (x < y);
}

int main(void) {
    static long long took[rounds];
    char buf[message_bytes];
    int fds[2];
    memset(buf, 'x', sizeof buf);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) { perror("socketpair"); return 1; }
    pid_t echo = fork();
    if (echo < 0) { perror("fork"); return 1; }
    if (echo == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        for (;;) { receive(fds[1], buf); send_all(fds[1], buf); }
    }
    close(fds[1]);
    for (int i = -warm_rounds; i < rounds; i++) {
        long long began = now();
        send_all(fds[0], buf);
        receive(fds[0], buf);
        if (i >= 0) took[i] = now() - began;
    }
    close(fds[0]);
    waitpid(echo, NULL, 0);
    qsort(took, rounds, sizeof took[0], ascending);
    printf("%lld\n", took[rounds / 2]);
    return 0;
}
