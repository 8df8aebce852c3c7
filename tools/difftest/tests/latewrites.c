// Memory that is the program's again (CL_MEM_USE_HOST_PTR, reads that are not waited for): of a buffer or an image that
// was just released, it is unmapped or used for something else. Nothing may be written there any more; and after each
// synchronisation, of whatever kind, the results are there. DT_ROUNDS: 400 if it is not set.
#define _GNU_SOURCE
#include "dt.h"
#include <sys/mman.h>

static const char *source = "kernel void add(global uchar *a, uchar b) { size_t i = get_global_id(0); a[i] += b; }\n";
static cl_kernel add;
static unsigned seed = 99;
static unsigned rnd(unsigned n) { return (seed = seed * 1103515245u + 12345u) >> 8 & 0x7FFFFF ? (seed >> 8) % n : 0; }

enum { TOMBS = 24 };
static struct { unsigned char *at; size_t n; } tombs[TOMBS]; // memory that was used anew
static unsigned disturbed, wrong;

static int is(const unsigned char *p, size_t n, unsigned char v) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != v) return 0;
    return 1;
}

// bury gives memory back, or uses it anew, and looks after it for a while.
static void bury(unsigned char *p, size_t n) {
    static unsigned next;
    if (rnd(2)) {
        munmap(p, n);
        return;
    }
    if (mmap(p, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != p) exit(3);
    memset(p, 0xA5, n);
    unsigned i = next++ % TOMBS;
    if (tombs[i].at) disturbed += !is(tombs[i].at, tombs[i].n, 0xA5), munmap(tombs[i].at, tombs[i].n);
    tombs[i].at = p, tombs[i].n = n;
}

static void CL_CALLBACK ended(cl_event e, cl_int s, void *flag) {
    (void)e, (void)s;
    __atomic_store_n((int *)flag, 1, __ATOMIC_SEQ_CST);
}

// wait_for is one of the ways in which a program may learn that a queue's commands have ended.
static void wait_for(cl_mem other, cl_command_queue q) {
    unsigned char byte;
    cl_event e;
    static int flag;
    switch (rnd(6)) {
    case 0: must(clFinish(q), "finish"); break;
    case 1: must(clEnqueueReadBuffer(q, other, CL_TRUE, 0, 1, &byte, 0, NULL, NULL), "read"); break;
    case 2:
        must(clEnqueueMarkerWithWaitList(q, 0, NULL, &e), "marker");
        must(clWaitForEvents(1, &e), "wait"), clReleaseEvent(e);
        break;
    case 3:
        must(clEnqueueMarkerWithWaitList(q, 0, NULL, &e), "marker");
        must(clFlush(q), "flush");
        for (cl_int s = 1; s > 0;) must(clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL), "info");
        clReleaseEvent(e);
        break;
    case 4:
        flag = 0;
        must(clEnqueueMarkerWithWaitList(q, 0, NULL, &e), "marker");
        must(clSetEventCallback(e, CL_COMPLETE, ended, &flag), "callback");
        must(clFlush(q), "flush");
        while (!__atomic_load_n(&flag, __ATOMIC_SEQ_CST)) usleep(50);
        clReleaseEvent(e);
        break;
    default:
        must(clEnqueueFillBuffer(q, other, &byte, 1, 0, 64, 0, NULL, &e), "fill");
        must(clWaitForEvents(1, &e), "wait"), clReleaseEvent(e);
    }
}

int main(void) {
    setup(0);
    cl_program p = clCreateProgramWithSource(context, 1, &source, NULL, &err);
    must(clBuildProgram(p, 0, NULL, "", NULL, NULL), "clBuildProgram");
    add = clCreateKernel(p, "add", &err);
    must(err, "clCreateKernel");
    cl_device_id all[2] = {device, NULL};
    clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof all, all, NULL);
    cl_command_queue second = clCreateCommandQueue(context, all[0], 0, &err), qs[2] = {queue, second};
    cl_mem other = buffer(0, 1 << 20, NULL);
    unsigned char zero = 0;
    must(clEnqueueFillBuffer(queue, other, &zero, 1, 0, 1 << 20, 0, NULL, NULL), "fill");
    clFinish(queue);
    int rounds = getenv("DT_ROUNDS") ? atoi(getenv("DT_ROUNDS")) : 400;
    for (int round = 0; round < rounds; round++) {
        static const size_t sizes[] = {4096, 60000, 100000, 300000, 1 << 20};
        size_t n = sizes[rnd(5)], room = (n + 4095) / 4096 * 4096;
        unsigned char *at = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), v = 3, b = 1 + rnd(5);
        if (at == MAP_FAILED) exit(3);
        cl_command_queue q = qs[rnd(2)];
        unsigned kind = rnd(4);
        memset(at, v, n);
        if (kind == 0) { // a read that is waited for by another command's end
            unsigned char *got = at;
            must(clEnqueueReadBuffer(q, other, CL_FALSE, 0, n > 1 << 20 ? 1 << 20 : n, got, 0, NULL, NULL), "read");
            wait_for(other, q);
            wrong += !is(at, n, at[0]);
            bury(at, room);
            continue;
        }
        int image = kind == 1 && n >= 60000;
        cl_mem m;
        size_t used = n;
        if (image) {
            cl_image_format f = {CL_RGBA, CL_UNSIGNED_INT8};
            cl_image_desc d = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 100, .image_height = n / 400};
            used = d.image_height * 400;
            m = clCreateImage(context, CL_MEM_USE_HOST_PTR, &f, &d, at, &err);
            must(err, "clCreateImage");
        } else m = buffer(CL_MEM_USE_HOST_PTR, n, at);
        int ops = 1 + rnd(3), looked = 0;
        for (int i = 0; i < ops; i++) {
            if (image) {
                cl_uint four[4] = {b, b, b, b};
                size_t o[3] = {0, 0, 0}, r[3] = {100, n / 400, 1};
                must(clEnqueueFillImage(q, m, four, o, r, 0, NULL, NULL), "fill image");
                v = b++;
                continue;
            }
            switch (rnd(5)) {
            case 0: case 1:
                must(clSetKernelArg(add, 0, sizeof m, &m), "arg"), must(clSetKernelArg(add, 1, 1, &b), "arg");
                must(clEnqueueNDRangeKernel(q, add, 1, NULL, &n, NULL, 0, NULL, NULL), "launch");
                v += b;
                break;
            case 2:
                must(clEnqueueFillBuffer(q, m, &b, 1, 0, n, 0, NULL, NULL), "fill");
                v = b++;
                break;
            case 3: {
                unsigned char *shown = clEnqueueMapBuffer(q, m, rnd(2), CL_MAP_READ | CL_MAP_WRITE, 0, n, 0, NULL, NULL, &err);
                must(err, "map");
                wait_for(other, q);
                if (shown != at) wrong++;
                wrong += !is(shown, n, v);
                memset(shown, ++v, n);
                must(clEnqueueUnmapMemObject(q, m, shown, 0, NULL, NULL), "unmap");
                break;
            }
            default:
                wait_for(other, q);
                wrong += !is(at, n, v);
                looked = 1;
            }
        }
        if (!looked || rnd(2)) wait_for(other, q);
        if (rnd(2) && !image) {
            wait_for(other, q);
            wrong += !is(at, used, v);
        } else wait_for(other, q);
        must(clReleaseMemObject(m), "release");
        bury(at, room);
    }
    for (int i = 0; i < TOMBS; i++)
        if (tombs[i].at) disturbed += !is(tombs[i].at, tombs[i].n, 0xA5);
    SAY("rounds", "%u with other bytes, %u written to after they were the program's", wrong, disturbed);
    return 0;
}
