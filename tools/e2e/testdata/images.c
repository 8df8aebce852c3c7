// images: images of every kind, written at one device and used at the other, in a context over two. A line each says whether what arrived
// was right; little of it comes to the program.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

static void must(cl_int e, const char *what) {
    if (e) {
        printf("%s: error %d\n", what, e);
        exit(1);
    }
}

int main(void) {
    cl_platform_id platform;
    cl_device_id devices[2];
    cl_int err;
    must(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    must(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 2, devices, NULL), "clGetDeviceIDs");
    cl_context context = clCreateContext(NULL, 2, devices, NULL, NULL, &err);
    must(err, "clCreateContext");
    cl_command_queue queues[2];
    for (int i = 0; i < 2; i++) {
        queues[i] = clCreateCommandQueue(context, devices[i], 0, &err);
        must(err, "clCreateCommandQueue");
    }
    static const struct { const char *name; cl_image_desc desc; size_t region[3]; } kinds[] = {
        {"2d", {CL_MEM_OBJECT_IMAGE2D, 1024, 1024}, {1024, 1024, 1}},
        {"2d, narrow", {CL_MEM_OBJECT_IMAGE2D, 7, 3}, {7, 3, 1}},
        {"3d", {CL_MEM_OBJECT_IMAGE3D, 256, 64, 64}, {256, 64, 64}},
        {"1d", {CL_MEM_OBJECT_IMAGE1D, 2048}, {2048, 1, 1}},
        {"1d array", {CL_MEM_OBJECT_IMAGE1D_ARRAY, 1024, 0, 0, 1024}, {1024, 1024, 1}},
        {"2d array", {CL_MEM_OBJECT_IMAGE2D_ARRAY, 256, 64, 0, 64}, {256, 64, 64}},
    };
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_mem few = clCreateBuffer(context, CL_MEM_READ_WRITE, 64, NULL, &err);
    must(err, "clCreateBuffer");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        cl_mem image = clCreateImage(context, CL_MEM_READ_WRITE, &format, &kinds[k].desc, NULL, &err);
        must(err, kinds[k].name);
        const size_t *all = kinds[k].region, origin[3] = {0, 0, 0}, last[3] = {all[0] - 1, all[1] - 1, all[2] - 1}, one[3] = {1, 1, 1};
        int right = 1;
        for (unsigned turn = 0; turn < 4; turn++) { // there, back, and again; a corner is other than the rest
            cl_uint rest[4] = {turn, 7, (cl_uint)k, 1}, corner[4] = {turn, 9, (cl_uint)k, 2};
            unsigned char got[8] = {0};
            cl_command_queue from = queues[turn % 2], to = queues[1 - turn % 2];
            must(clEnqueueFillImage(from, image, rest, origin, all, 0, NULL, NULL), "fill");
            must(clEnqueueFillImage(from, image, corner, last, one, 0, NULL, NULL), "fill");
            must(clFinish(from), "finish");
            must(clEnqueueCopyImageToBuffer(to, image, few, origin, one, 0, 0, NULL, NULL), "copy");
            must(clEnqueueCopyImageToBuffer(to, image, few, last, one, 4, 0, NULL, NULL), "copy");
            must(clEnqueueReadBuffer(to, few, CL_TRUE, 0, 8, got, 0, NULL, NULL), "read");
            for (int i = 0; i < 4; i++)
                right = right && got[i] == rest[i] && got[4 + i] == corner[i];
        }
        printf("%s %s\n", kinds[k].name, right ? "right" : "WRONG");
        clReleaseMemObject(image);
    }
    return 0;
}
