// Where a write that nobody waits for takes its bytes: the program's memory may be filled by a read before it, or by the
// program while a user event holds the write back. The program's memory is its own, and then what a map shows.
#include "dt.h"

enum { ROUNDS = 4, MOST = 1 << 20 };

static const char *src =
    "kernel void put(global uint *p, uint v, uint n) { uint x = v; for (uint i = 0; i < n; i++) x = x * 1664525u + 1013904223u;\n"
    "  p[get_global_id(0)] = x == 1 ? 0 : v + get_global_id(0); }\n";

static cl_uint own[MOST / 4], back[MOST / 4], *via = own;

static int differs(const cl_uint *p, cl_uint v, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != v + i) return 1;
    return 0;
}

int main(void) {
    setup(0);
    cl_command_queue q[3] = {queue, clCreateCommandQueue(context, device, 0, &err), clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &err)};
    cl_kernel put = clCreateKernel(build(src, ""), "put", &err);
    cl_mem a = buffer(0, MOST, NULL), b = buffer(0, MOST, NULL);
    static const size_t sizes[] = {4, 4096, 16384, 32768, 65536, MOST};
    cl_mem shown = buffer(CL_MEM_ALLOC_HOST_PTR, MOST, NULL);
    cl_uint *map = clEnqueueMapBuffer(queue, shown, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, MOST, 0, NULL, NULL, &err);
    for (int s = 0; s < 12; s++)
        for (int other = 0; other < 3; other++) {
            size_t n = sizes[s % 6], items = n / 4;
            via = s < 6 ? own : map;
            int wrong[4] = {0};
            for (cl_uint r = 1; r <= ROUNDS; r++) {
                cl_uint v = r * 1000, loops = 100000 / items + 1;
                cl_event e[2], u;
                clSetKernelArg(put, 0, sizeof a, &a);
                clSetKernelArg(put, 1, sizeof v, &v);
                clSetKernelArg(put, 2, sizeof loops, &loops);
                // device to program to device, with an event between and no wait
                clEnqueueNDRangeKernel(q[0], put, 1, NULL, &items, NULL, 0, NULL, NULL);
                clEnqueueReadBuffer(q[0], a, CL_FALSE, 0, n, via, 0, NULL, &e[0]);
                clFlush(q[0]);
                clEnqueueWriteBuffer(q[other], b, CL_FALSE, 0, n, via, 1, e, &e[1]);
                clEnqueueReadBuffer(q[other], b, CL_TRUE, 0, n, back, 1, &e[1], NULL);
                wrong[0] += differs(back, v, items);
                wrong[1] += differs(via, v, items);
                clReleaseEvent(e[0]);
                clReleaseEvent(e[1]);
                // the same through rectangles, into memory that the next round's read overwrites
                size_t o[3] = {0}, reg[3] = {4, items, 1};
                v++;
                clSetKernelArg(put, 1, sizeof v, &v);
                clEnqueueNDRangeKernel(q[0], put, 1, NULL, &items, NULL, 0, NULL, NULL);
                clEnqueueReadBufferRect(q[0], a, CL_FALSE, o, o, reg, 4, 0, 4, 0, via, 0, NULL, &e[0]);
                clFlush(q[0]);
                clEnqueueWriteBufferRect(q[other], b, CL_FALSE, o, o, reg, 4, 0, 4, 0, via, 1, e, &e[1]);
                clEnqueueReadBuffer(q[other], b, CL_TRUE, 0, n, back, 1, &e[1], NULL);
                wrong[2] += differs(back, v, items);
                clReleaseEvent(e[0]);
                clReleaseEvent(e[1]);
                // filled by the program while the write is held back
                u = clCreateUserEvent(context, &err);
                memset(via, 0, n);
                clEnqueueWriteBuffer(q[other], b, CL_FALSE, 0, n, via, 1, &u, &e[1]);
                clFlush(q[other]);
                for (size_t i = 0; i < items; i++) via[i] = r * 7 + i;
                clSetUserEventStatus(u, CL_COMPLETE);
                clEnqueueReadBuffer(q[other], b, CL_TRUE, 0, n, back, 1, &e[1], NULL);
                wrong[3] += differs(back, r * 7, items);
                clReleaseEvent(e[1]);
                clReleaseEvent(u);
            }
            SAY(L("%zu bytes, queue %d, mapped %d", n, other, s >= 6), "written on %d, read %d, rectangles %d, filled late %d", wrong[0], wrong[1], wrong[2], wrong[3]);
        }
    via = own;
    // Many reads into one place after another: what came last stays.
    int wrong = 0;
    for (cl_uint r = 0; r < 200; r++) {
        cl_uint v = r * 3, loops = 10;
        size_t items = 1024;
        clSetKernelArg(put, 1, sizeof v, &v);
        clSetKernelArg(put, 2, sizeof loops, &loops);
        clEnqueueNDRangeKernel(q[0], put, 1, NULL, &items, NULL, 0, NULL, NULL);
        clEnqueueReadBuffer(q[0], a, CL_FALSE, 0, 4096, via + r % 4 * 1024, 0, NULL, NULL);
    }
    clFinish(q[0]);
    for (cl_uint r = 196; r < 200; r++) wrong += differs(via + r % 4 * 1024, r * 3, 1024);
    SAY("200 reads", "wrong %d", wrong);
    // An event says complete once the bytes are there, also to who only asks; a released event changes nothing.
    int early = 0;
    for (cl_uint r = 1; r <= 20; r++) {
        cl_uint v = r * 5, loops = 20;
        size_t items = 4096;
        cl_event e;
        cl_int state = CL_QUEUED;
        clSetKernelArg(put, 1, sizeof v, &v);
        clSetKernelArg(put, 2, sizeof loops, &loops);
        memset(via, 0, 32768);
        clEnqueueNDRangeKernel(q[0], put, 1, NULL, &items, NULL, 0, NULL, NULL);
        clEnqueueReadBuffer(q[0], a, CL_FALSE, 0, 16384, via + 4096, 0, NULL, &e);
        clReleaseEvent(e);
        clEnqueueReadBuffer(q[0], a, CL_FALSE, 0, 16384, via, 0, NULL, &e);
        clFlush(q[0]);
        while (state > CL_COMPLETE) clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
        early += differs(via, v, 4096) + differs(via + 4096, v, 4096);
        clReleaseEvent(e);
    }
    SAY("asked for", "early %d", early);
    clReleaseMemObject(a);
    clReleaseMemObject(b);
    return 0;
}
