/* A program that outlives its daemon: it shows an object every 200 ms, whatever becomes of the node, and goes idle between.
 *
 *     cc steady.c $(pkg-config --cflags --libs tendril) -o steady
 *     ./share put greeting "hello, world"
 *     ./steady greeting 50            # meanwhile, in another terminal: tendril daemon --takeover; or kill -9 it and start another one
 *
 * The connection comes back by itself. After --takeover nothing is lost; after a crash the object that is held stays readable, and
 * is said to be gone unless it was on disk.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <tendril.h>

enum { EVERY_MS = 200 };

/* Goes idle. What the process keeps mapped without need it gives back when the daemon wants it: there is no thread to do that. */
static void idle(tendril *store)
{
	struct pollfd wake = {.fd = tendril_sweep_fd(store), .events = POLLIN};
	if (poll(&wake, 1, EVERY_MS) == 1)
		tendril_sweep(store); /* its error is the next call's, too */
}

int main(int argc, char **argv)
{
	tendril *store;
	tendril_object held = {.data = NULL};
	if (argc < 2) {
		fprintf(stderr, "usage: steady NAME [TIMES]\n");
		return 2;
	}
	if (tendril_connect_with(&(tendril_connect_options){.patience_ms = 10000}, &store) != TENDRIL_OK) {
		fprintf(stderr, "steady: %s\n", tendril_message());
		return 1;
	}
	for (int left = argc > 2 ? atoi(argv[2]) : 10; left > 0; left--) {
		tendril_object now;
		int status = tendril_get(store, tendril_named(argv[1]), 0, &now);
		if (status == TENDRIL_OK) { /* the newest is kept until there is a newer one */
			tendril_release(&held);
			held = now;
		}
		printf("%.*s (%s)\n", (int)held.size, held.data ? (const char *)held.data : "",
		       status == TENDRIL_OK ? "there" : tendril_gone(&held) ? "lost, and still held" : tendril_strerror(status));
		fflush(stdout);
		idle(store);
	}
	tendril_release(&held);
	tendril_close(store);
	return 0;
}
