/* A camera-like producer and its consumer: frames are written in place into shared memory and read there.
 *
 *     ./camera consume 100 &          # shows how bright each frame is
 *     ./camera produce 100
 *
 * The consumer deletes each frame that it has seen, and the producer never has more than AHEAD frames waiting: memory
 * that is released comes back to the same producer, already warm. The tensor's metadata says what the bytes are, so that
 * Python sees an array: tendril.connect().get("camera/0").numpy()
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tendril.h>

enum { WIDTH = 640, HEIGHT = 480, BYTES = WIDTH * HEIGHT, AHEAD = 4, PATIENCE_MS = 10000 };

static void must(int status)
{
	if (status != TENDRIL_OK) {
		fprintf(stderr, "camera: %s\n", tendril_message());
		exit(1);
	}
}

static const char *name_of(int frame, char *text, size_t n)
{
	snprintf(text, n, "camera/%d", frame);
	return text;
}

/* Waits until the consumer has deleted a frame. */
static void await_seen(tendril_watch *events, const char *name)
{
	tendril_event e;
	do
		must(tendril_watch_next(events, PATIENCE_MS, &e));
	while (strcmp(e.event, "gone") != 0 || strcmp(e.name, name) != 0);
}

static void produce(tendril *store, int frames)
{
	char meta[64], name[32];
	tendril_watch *events;
	snprintf(meta, sizeof meta, "{\"dtype\":\"|u1\",\"shape\":[%d,%d]}", HEIGHT, WIDTH);
	must(tendril_watch_open(NULL, "camera/", &events));
	for (int i = 0; i < frames; i++) {
		tendril_buffer b;
		if (i >= AHEAD)
			await_seen(events, name_of(i - AHEAD, name, sizeof name));
		tendril_options o = {.name = name_of(i, name, sizeof name), .meta = meta, .meta_size = strlen(meta)};
		must(tendril_create(store, BYTES, &o, &b));
		memset(b.data, i % 256, BYTES); /* the exposure */
		must(tendril_seal(&b, NULL));
	}
	tendril_watch_close(events);
}

static void consume(tendril *store, int frames)
{
	char name[32];
	for (int i = 0; i < frames; i++) {
		tendril_object frame;
		unsigned long sum = 0;
		must(tendril_get(store, tendril_named(name_of(i, name, sizeof name)), PATIENCE_MS, &frame));
		for (uint64_t at = 0; at < frame.size; at++)
			sum += ((const unsigned char *)frame.data)[at];
		printf("%s %lu\n", name, sum / (unsigned long)frame.size);
		tendril_release(&frame);
		must(tendril_delete(store, tendril_named(name)));
	}
}

int main(int argc, char **argv)
{
	tendril *store;
	int frames = argc == 3 ? atoi(argv[2]) : 0;
	if (frames <= 0 || (strcmp(argv[1], "produce") != 0 && strcmp(argv[1], "consume") != 0)) {
		fprintf(stderr, "usage: camera produce FRAMES | camera consume FRAMES\n");
		return 2;
	}
	must(tendril_connect(NULL, &store));
	(argv[1][0] == 'p' ? produce : consume)(store, frames);
	tendril_close(store);
	return 0;
}
