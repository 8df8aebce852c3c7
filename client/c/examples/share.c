/* Shares a blob between two processes, without a copy on the reader's side.
 *
 *     cc share.c $(pkg-config --cflags --libs tendril) -o share
 *     ./share put greeting "hello, world"
 *     ./share get greeting            # in another process: waits up to a minute for it
 *     ./share delete greeting
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tendril.h>

static void must(int status)
{
	if (status != TENDRIL_OK) {
		fprintf(stderr, "share: %s\n", tendril_message());
		exit(1);
	}
}

int main(int argc, char **argv)
{
	tendril *store;
	if (argc < 3 || (strcmp(argv[1], "put") == 0 && argc < 4)) {
		fprintf(stderr, "usage: share put NAME TEXT | share get NAME | share delete NAME\n");
		return 2;
	}
	must(tendril_connect(NULL, &store));
	if (strcmp(argv[1], "put") == 0) {
		must(tendril_put(store, argv[3], strlen(argv[3]), &(tendril_options){.name = argv[2]}, NULL));
	} else if (strcmp(argv[1], "get") == 0) {
		tendril_object blob;
		must(tendril_get(store, tendril_named(argv[2]), 60000, &blob));
		fwrite(blob.data, 1, blob.size, stdout); /* the other process's memory, mapped here for reading */
		putchar('\n');
		tendril_release(&blob);
	} else {
		must(tendril_delete(store, tendril_named(argv[2])));
	}
	tendril_close(store);
	return 0;
}
