// A blocking write has ended when the call returns (§5.2.2): its memory is the program's again, and whatever any queue
// does next sees its bytes, also behind a slow kernel. Random writes, each looked at in another way.
#include "dt.h"

static const char *src =
    "kernel void inc(global uint *a, uint at) { a[at + get_global_id(0)]++; }\n"
    "kernel void slow(global volatile uint *a) { *a = 1; for (int i = 0; i < 200000; i++) *a = *a * 5u + 1u; }\n";

enum { BUFFERS = 3, BYTES = 3 << 20, STEPS = 400 };
static unsigned char model[BUFFERS][BYTES], from[BYTES], got[BYTES];
static cl_mem mem[BUFFERS];
static unsigned state = 12345;

static unsigned pick(unsigned n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

int main(void) {
    setup(0);
    cl_program p = build(src, "");
    cl_kernel inc = clCreateKernel(p, "inc", &err), slow = clCreateKernel(p, "slow", &err);
    cl_command_queue q[3] = {queue, clCreateCommandQueue(context, device, 0, &err), NULL};
    q[2] = clCreateCommandQueue(context, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &err);
    if (err != CL_SUCCESS) q[2] = clCreateCommandQueue(context, device, 0, &err);
    must(err, "queues");
    cl_mem other = buffer(0, 64, NULL);
    clSetKernelArg(slow, 0, sizeof other, &other);
    cl_int worst = 0;
    for (int i = 0; i < BUFFERS; i++) {
        mem[i] = buffer(0, BYTES, NULL);
        worst |= clEnqueueWriteBuffer(queue, mem[i], CL_TRUE, 0, BYTES, model[i], 0, NULL, NULL);
    }
    static const size_t sizes[] = {4, 1000, 4096, 60000, 97000, 200000, 1 << 20, (1 << 20) + 4, 2 << 20};
    int wrong[8] = {0}, looks[8] = {0};
    for (int step = 0; step < STEPS; step++) {
        unsigned b = pick(BUFFERS), how = pick(8);
        size_t n = sizes[pick(sizeof sizes / sizeof *sizes)] & ~3u, at = pick((BYTES - n) / 4 + 1) * 4, one = 1;
        cl_command_queue w = q[pick(3)], r = q[pick(3)];
        for (size_t i = 0; i < n; i++) from[i] = (unsigned char)(state + i * 7 + (i >> 9));
        memcpy(model[b] + at, from, n);
        if (pick(4) == 0) {
            worst |= clEnqueueNDRangeKernel(w, slow, 1, NULL, &one, NULL, 0, NULL, NULL);
            worst |= clFlush(w);
        }
        worst |= clEnqueueWriteBuffer(w, mem[b], CL_TRUE, at, n, from, 0, NULL, NULL);
        memset(from, 0xEE, n); // which is the program's again
        const unsigned char *seen = got;
        cl_event e = NULL, done = NULL;
        void *map = NULL;
        memset(got, 0, n);
        switch (how) {
        case 0:
            worst |= clEnqueueReadBuffer(r, mem[b], CL_TRUE, at, n, got, 0, NULL, NULL);
            break;
        case 1:
            worst |= clEnqueueReadBuffer(r, mem[b], CL_FALSE, at, n, got, 0, NULL, NULL) | clFinish(r);
            break;
        case 2:
            worst |= clEnqueueReadBuffer(r, mem[b], CL_FALSE, at, n, got, 0, NULL, &e) | clWaitForEvents(1, &e);
            break;
        case 3:
            seen = map = clEnqueueMapBuffer(r, mem[b], CL_TRUE, CL_MAP_READ, at, n, 0, NULL, NULL, &err);
            must(err, "map");
            break;
        case 4: {
            cl_uint first = at / 4;
            size_t items = n / 4;
            clSetKernelArg(inc, 0, sizeof mem[b], &mem[b]);
            clSetKernelArg(inc, 1, sizeof first, &first);
            worst |= clEnqueueNDRangeKernel(r, inc, 1, NULL, &items, NULL, 0, NULL, &e);
            worst |= clEnqueueReadBuffer(r, mem[b], CL_TRUE, at, n, got, 1, &e, NULL);
            for (size_t i = at; i < at + n; i += 4) {
                cl_uint v;
                memcpy(&v, model[b] + i, 4);
                v++;
                memcpy(model[b] + i, &v, 4);
            }
            break;
        }
        case 5: {
            cl_mem copy = buffer(0, n, NULL);
            worst |= clEnqueueCopyBuffer(r, mem[b], copy, at, 0, n, 0, NULL, &e);
            worst |= clEnqueueReadBuffer(q[pick(3)], copy, CL_TRUE, 0, n, got, 1, &e, NULL);
            worst |= clReleaseMemObject(copy);
            break;
        }
        case 6: { // another write right behind it, by another queue
            cl_uint v = step;
            worst |= clEnqueueWriteBuffer(r, mem[b], CL_TRUE, at, 4, &v, 0, NULL, NULL);
            v = 0;
            worst |= clEnqueueReadBuffer(w, mem[b], CL_TRUE, at, n, got, 0, NULL, NULL);
            cl_uint is = step;
            memcpy(model[b] + at, &is, 4);
            break;
        }
        case 7: { // while the program holds a command back
            done = clCreateUserEvent(context, &err);
            worst |= err | clEnqueueMarkerWithWaitList(w, 1, &done, NULL);
            r = w == q[0] ? q[1] : q[0];
            worst |= clEnqueueReadBuffer(r, mem[b], CL_TRUE, at, n, got, 0, NULL, NULL);
            worst |= clSetUserEventStatus(done, CL_COMPLETE) | clReleaseEvent(done);
            break;
        }
        }
        looks[how]++;
        wrong[how] += memcmp(seen, model[b] + at, n) != 0;
        if (map) worst |= clEnqueueUnmapMemObject(r, mem[b], map, 0, NULL, NULL) | clFinish(r);
        if (e) worst |= clReleaseEvent(e);
    }
    for (int i = 0; i < 8; i++) SAY(L("way %d", i), "%d of %d wrong", wrong[i], looks[i]);
    ERR("every call", worst);
    for (int i = 0; i < BUFFERS; i++) {
        worst |= clEnqueueReadBuffer(q[i], mem[i], CL_TRUE, 0, BYTES, got, 0, NULL, NULL);
        SAY(L("buffer %d", i), "%s, %016llx", memcmp(got, model[i], BYTES) ? "other bytes" : "right", (unsigned long long)dt_hash(got, BYTES));
    }
    for (int i = 0; i < 3; i++) worst |= clFinish(q[i]);
    ERR("the end", worst);
    return 0;
}
