/* opencldevice makes an object in the memory of an OpenCL device out of one in host memory, and reads it again, as a
 * program of C does: by copies. It has no descriptor, and nothing to map.
 *
 *   opencldevice UUID NAME
 *
 * NAME is an object in host memory. Prints its bytes, as they came from the device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <tendril.h>

#define OK(e) do { if ((e) != TENDRIL_OK) { \
	fprintf(stderr, "opencldevice: %s: %s\n", #e, tendril_message()); exit(1); } } while (0)
#define CHECK(e) do { if (!(e)) { fprintf(stderr, "opencldevice: not so: %s\n", #e); exit(1); } } while (0)

int main(int argc, char **argv)
{
	tendril *t;
	tendril_device device;
	tendril_object host;
	tendril_device_buffer b;
	tendril_device_object there, again;
	tendril_buffer back;
	CHECK(argc == 3);
	OK(tendril_connect(NULL, &t));
	OK(tendril_find_gpu(t, argv[1], &device));
	OK(tendril_get(t, tendril_named(argv[2]), 0, &host));
	OK(tendril_create_device(t, &device, host.size, NULL, &b));
	CHECK(b.fd == -1 && b.bytes == 0 && b.size == host.size);
	OK(tendril_copy(t, &b.id, 0, tendril_by_id(host.id), 0, host.size));
	OK(tendril_seal_device(&b, &there));
	OK(tendril_get_device(t, tendril_by_id(there.id), 0, &again));
	CHECK(again.fd == -1 && again.bytes == 0 && again.size == host.size);
	OK(tendril_create(t, host.size, &(tendril_options){.own = 1}, &back));
	OK(tendril_copy(t, &back.id, 0, tendril_by_id(again.id), 0, host.size));
	fwrite(back.data, 1, host.size, stdout);
	tendril_abort(&back);
	tendril_release_device(&again);
	tendril_release_device(&there);
	tendril_release(&host);
	tendril_close(t);
	return 0;
}
