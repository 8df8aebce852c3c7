// tiles brightens a picture of 4096 x 1024 grey points tile by tile, the way many programs do at first; with the
// argument "mended" as docs/TRACE.md makes it.
//     cc -O2 -o tiles tiles.c -lOpenCL && tendril trace -- ./tiles
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(e) do { cl_int s_ = (e); if (s_ != CL_SUCCESS) { fprintf(stderr, "%s: %d\n", #e, s_); exit(1); } } while (0)

enum { TILES = 256, TILE = 4096 * 1024 / TILES };

static const char *source =
	"kernel void brighten(global uchar *tile) {\n"
	"  size_t i = get_global_id(0);\n"
	"  tile[i] = min(tile[i] + 40, 255);\n"
	"}\n";

static unsigned char picture[TILES][TILE];

int main(int argc, char **argv)
{
	int mended = argc > 1 && strcmp(argv[1], "mended") == 0;
	cl_platform_id platform;
	cl_device_id device;
	cl_int err;
	CHECK(clGetPlatformIDs(1, &platform, NULL));
	CHECK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
	CHECK(err);
	cl_command_queue queue = clCreateCommandQueue(context, device, 0, &err);
	CHECK(err);
	cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &err);
	CHECK(err);
	CHECK(clBuildProgram(program, 1, &device, "", NULL, NULL));
	cl_kernel brighten = clCreateKernel(program, "brighten", &err);
	CHECK(err);
	// One tile's memory each, so that nothing has to wait for the tile before; slow needs only one.
	cl_mem tile[TILES];
	for (int i = 0; i < TILES; i++) {
		tile[i] = clCreateBuffer(context, CL_MEM_READ_WRITE, TILE, NULL, &err);
		CHECK(err);
	}
	memset(picture, 100, sizeof picture);
	size_t items = TILE;
	cl_bool wait = mended ? CL_FALSE : CL_TRUE;
	for (int i = 0; i < TILES; i++) {
		CHECK(clEnqueueWriteBuffer(queue, tile[i], wait, 0, TILE, picture[i], 0, NULL, NULL));
		CHECK(clSetKernelArg(brighten, 0, sizeof tile[i], &tile[i]));
		CHECK(clEnqueueNDRangeKernel(queue, brighten, 1, NULL, &items, NULL, 0, NULL, NULL));
		if (!mended)
			CHECK(clFinish(queue));
		CHECK(clEnqueueReadBuffer(queue, tile[i], wait, 0, TILE, picture[i], 0, NULL, NULL));
	}
	CHECK(clFinish(queue));
	for (int i = 0; i < TILES; i++)
		for (int k = 0; k < TILE; k++)
			if (picture[i][k] != 140) {
				fprintf(stderr, "tile %d, point %d: %d\n", i, k, picture[i][k]);
				return 1;
			}
	puts("bright");
	return 0;
}
