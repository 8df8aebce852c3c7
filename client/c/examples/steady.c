/* A program that outlives its daemon: it shows an object every 200 ms, and is idle between.
 *
 *     cc steady.c $(pkg-config --cflags --libs tendril) -o steady
 *     ./share put greeting "hello, world"
 *     ./steady greeting 50
 *
 * Meanwhile run tendril daemon --takeover in another terminal, or kill -9 the daemon and start another one. The program
 * reconnects. After --takeover nothing is lost. After a crash the object that it holds stays readable; it is gone for
 * others unless it was on disk.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <tendril.h>

enum { EVERY_MS = 200 };

/* Waits. When the daemon wants memory unmapped that is not in use, this does it, because the library has no thread. */
static void idle(tendril *store)
{
	struct pollfd wake = {.fd = tendril_sweep_fd(store), .events = POLLIN};
	if (poll(&wake, 1, EVERY_MS) == 1)
		tendril_sweep(store); /* if it fails, the next call fails too */
}

int main(int argc, char **argv)
{
	tendril *store;
	tendril_object held = {.data = NULL};
	if (argc < 2) {
		fprintf(stderr, "usage: steady NAME [TIMES]\n");
		return 2;
	}
	if (tendril_connect_with(&(tendril_connect_options){.patience_ms = 60000}, &store) != TENDRIL_OK) {
		fprintf(stderr, "steady: %s\n", tendril_message());
		return 1;
	}
	for (int left = argc > 2 ? atoi(argv[2]) : 10; left > 0; left--) {
		tendril_object now;
		int status = tendril_get(store, tendril_named(argv[1]), 0, &now);
		if (status == TENDRIL_OK) { /* keep the newest object until there is a newer one */
			tendril_release(&held);
			held = now;
		}
		const char *missing = tendril_gone(&held) ? "lost, and still held" : tendril_strerror(status);
		printf("%.*s (%s)\n", (int)held.size, held.data ? (const char *)held.data : "",
		       status == TENDRIL_OK ? "there" : missing);
		fflush(stdout);
		idle(store);
	}
	tendril_release(&held);
	tendril_close(store);
	return 0;
}
