// A program that publishes a buffer and keeps, in the way that it is told, what it had of the buffer's memory: "nothing", a second "mapping" or a
// "child" that inherited one. Each line that it reads takes it a step further: the buffer is filled, published, and written through what was kept.
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl_ext.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tendril/cl_tendril_store.h>
#include <unistd.h>

enum { Bytes = 1 << 20 };

static void check(cl_int e, const char *what) {
    if (e) {
        printf("failed %s %d\n", what, e);
        exit(1);
    }
}

// inode of the memory at an address.
static unsigned long inode(void *at) {
    char line[512];
    unsigned long from, to, number;
    FILE *f = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &from, &to, &number) == 3 && from <= (unsigned long)at && (unsigned long)at < to) return number;
    return 0;
}

static void step(void) {
    char line[64];
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

int main(int argc, char **argv) {
    step();
    const char *keeps = argc > 1 ? argv[1] : "nothing";
    cl_platform_id platform;
    cl_device_id device;
    cl_int err;
    check(clGetPlatformIDs(1, &platform, NULL), "platforms");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "devices");
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
    check(err, "context");
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &err);
    check(err, "queue");
    const char *source = "kernel void put(global uint *a, uint n) { a[get_global_id(0)] = n; }\n"
                         "kernel void take(global const uint *a, global uint *b) { b[get_global_id(0)] = a[get_global_id(0)]; }\n";
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &err);
    check(clBuildProgram(program, 1, &device, "-cl-kernel-arg-info", NULL, NULL), "build");
    cl_mem b = clCreateBuffer(context, 0, Bytes, NULL, &err), other = clCreateBuffer(context, 0, Bytes, NULL, &err);
    cl_kernel put = clCreateKernel(program, "put", &err), take = clCreateKernel(program, "take", &err);
    uint32_t value = 7, *back = malloc(Bytes);
    size_t n = Bytes / 4;
    clSetKernelArg(put, 0, sizeof b, &b);
    clSetKernelArg(put, 1, sizeof value, &value);
    check(clEnqueueNDRangeKernel(queue, put, 1, NULL, &n, NULL, 0, NULL, NULL), "put");
    volatile uint32_t *at = clEnqueueMapBuffer(queue, b, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, Bytes, 0, NULL, NULL, &err);
    check(err, "map");
    volatile uint32_t *kept = NULL;
    int go[2], went[2];
    char c;
    pid_t child = 0;
    if (!strcmp(keeps, "mapping")) kept = mremap((void *)at, 0, Bytes, MREMAP_MAYMOVE);
    int mem = strcmp(keeps, "mem") ? -1 : open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    int orphan = !strcmp(keeps, "orphan");
    if (orphan || !strcmp(keeps, "child")) {
        if (pipe(go) || pipe(went)) return 1;
        if (!(child = fork())) {
            if (orphan && (setsid() < 0 || fork())) _exit(0);
            close(go[1]);
            if (read(go[0], &c, 1) == 1) at[0] = 99;
            if (write(went[1], &c, 1) != 1) _exit(1);
            _exit(0);
        }
    }
    printf("filled %lu\n", inode((void *)at));
    step();
    check(clEnqueueUnmapMemObject(queue, b, (void *)at, 0, NULL, NULL), "unmap");
    clPublishBufferTENDRIL_fn publish = (clPublishBufferTENDRIL_fn)clGetExtensionFunctionAddressForPlatform(platform, "clPublishBufferTENDRIL");
    check(publish(b, "out", NULL), "publish");
    // What was published is read on by kernels, and written in other memory.
    clSetKernelArg(take, 0, sizeof b, &b);
    clSetKernelArg(take, 1, sizeof other, &other);
    check(clEnqueueNDRangeKernel(queue, take, 1, NULL, &n, NULL, 0, NULL, NULL), "take");
    check(clEnqueueReadBuffer(queue, other, CL_TRUE, 0, Bytes, back, 0, NULL, NULL), "read");
    printf("published %u\n", back[n - 1]);
    step();
    if (kept) kept[0] = 99;
    value = 99;
    if (mem >= 0 && pwrite(mem, &value, sizeof value, (off_t)(uintptr_t)at) > 0) fprintf(stderr, "wrote through /proc/self/mem\n");
    if (child && (write(go[1], "g", 1) != 1 || read(went[0], &c, 1) != 1)) return 1;
    value = 8;
    clSetKernelArg(put, 1, sizeof value, &value);
    check(clEnqueueNDRangeKernel(queue, put, 1, NULL, &n, NULL, 0, NULL, NULL), "put again");
    check(clEnqueueReadBuffer(queue, b, CL_TRUE, 0, Bytes, back, 0, NULL, NULL), "read again");
    printf("wrote %u %u\n", kept ? kept[0] : 0, back[n - 1]);
    step();
    return 0;
}
