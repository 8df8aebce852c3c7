/* A producer of images, like a camera, and its consumer. The frames are written and read in place, in shared memory.
 *
 *     ./camera produce 100 &
 *     ./camera consume               # shows how bright each frame is
 *
 * At most AHEAD frames wait in the stream; then the producer waits. The producer gets released memory back, which costs
 * no page faults. The metadata says what the bytes are, so that Python sees an array:
 *     for frame in tendril.connect().reader("camera"): frame.numpy()
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tendril.h>

enum { WIDTH = 640, HEIGHT = 480, BYTES = WIDTH * HEIGHT, AHEAD = 4, PATIENCE_MS = 60000 };

static void must(int status)
{
	if (status != TENDRIL_OK) {
		fprintf(stderr, "camera: %s\n", tendril_message());
		exit(1);
	}
}

static void produce(tendril *store, int frames)
{
	char meta[64];
	tendril_stream *camera;
	snprintf(meta, sizeof meta, "{\"dtype\":\"|u1\",\"shape\":[%d,%d]}", HEIGHT, WIDTH);
	must(tendril_stream_write(store, "camera", &(tendril_stream_options){.frames = AHEAD}, &camera));
	for (int i = 0; i < frames; i++) {
		tendril_buffer b;
		must(tendril_create(store, BYTES, &(tendril_options){.meta = meta, .meta_size = strlen(meta)}, &b));
		memset(b.data, i % 256, BYTES); /* the exposure */
		must(tendril_stream_push(camera, &b, PATIENCE_MS));
	}
	must(tendril_stream_end(camera, 0));
	tendril_stream_close(camera);
}

static void consume(tendril *store)
{
	tendril_stream *camera;
	tendril_object frame;
	uint64_t number;
	int status;
	must(tendril_stream_read(store, "camera", NULL, &camera));
	while ((status = tendril_stream_pop(camera, PATIENCE_MS, &frame, &number)) == TENDRIL_OK) {
		unsigned long sum = 0;
		for (uint64_t at = 0; at < frame.size; at++)
			sum += ((const unsigned char *)frame.data)[at];
		printf("frame %llu: %lu\n", (unsigned long long)number, sum / (unsigned long)frame.size);
		tendril_release(&frame);
	}
	if (status != TENDRIL_ENDED)
		must(status);
	tendril_stream_close(camera);
}

int main(int argc, char **argv)
{
	tendril *store;
	int frames = argc == 3 && strcmp(argv[1], "produce") == 0 ? atoi(argv[2]) : 0;
	if (frames <= 0 && !(argc == 2 && strcmp(argv[1], "consume") == 0)) {
		fprintf(stderr, "usage: camera produce FRAMES | camera consume\n");
		return 2;
	}
	must(tendril_connect(NULL, &store));
	if (frames)
		produce(store, frames);
	else
		consume(store);
	tendril_close(store);
	return 0;
}
