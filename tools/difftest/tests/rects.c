// Rectangular transfers with every kind of pitch, between guard bytes.
#include "dt.h"

enum { HOST = 4096, BUF = 2048 };
static unsigned char before[HOST], host[HOST], dev[BUF], back[BUF];

struct rect { size_t bo[3], ho[3], r[3], brp, bsp, hrp, hsp; const char *n; };

static const struct rect cases[] = {
    {{0, 0, 0}, {0, 0, 0}, {16, 4, 2}, 0, 0, 0, 0, "dense"},
    {{0, 0, 0}, {0, 0, 0}, {16, 1, 1}, 0, 0, 0, 0, "line"},
    {{0, 0, 0}, {0, 0, 0}, {16, 4, 1}, 32, 0, 24, 0, "pitches"},
    {{3, 1, 1}, {5, 2, 1}, {16, 4, 2}, 32, 256, 24, 240, "offsets and all pitches"},
    {{1, 1, 1}, {1, 1, 1}, {7, 3, 3}, 9, 45, 11, 66, "odd pitches"},
    {{0, 0, 0}, {0, 0, 0}, {16, 4, 2}, 16, 64, 16, 64, "tight pitches said"},
    {{4, 0, 0}, {0, 3, 0}, {8, 2, 3}, 16, 0, 8, 0, "row pitch, slice by default"},
    {{0, 0, 2}, {0, 0, 3}, {5, 5, 2}, 0, 100, 0, 125, "slice pitch, row by default"},
    {{0, 0, 0}, {0, 0, 0}, {1, 1, 1}, 0, 0, 0, 0, "one byte"},
    {{0, 0, 0}, {0, 0, 0}, {2048, 1, 1}, 0, 0, 0, 0, "the whole buffer"},
    {{0, 0, 0}, {0, 0, 0}, {0, 1, 1}, 0, 0, 0, 0, "width 0"},
    {{0, 0, 0}, {0, 0, 0}, {1, 0, 1}, 0, 0, 0, 0, "height 0"},
    {{0, 0, 0}, {0, 0, 0}, {1, 1, 0}, 0, 0, 0, 0, "depth 0"},
    {{0, 0, 0}, {0, 0, 0}, {16, 4, 1}, 15, 0, 0, 0, "buffer row pitch too small"},
    {{0, 0, 0}, {0, 0, 0}, {16, 4, 1}, 0, 0, 15, 0, "host row pitch too small"},
    {{0, 0, 0}, {0, 0, 0}, {16, 4, 2}, 16, 63, 0, 0, "buffer slice pitch too small"},
    {{0, 0, 0}, {0, 0, 0}, {16, 4, 2}, 0, 0, 16, 63, "host slice pitch too small"},
    {{0, 0, 0}, {0, 0, 0}, {16, 4, 2}, 16, 72, 0, 0, "buffer slice no multiple of row"},
    {{0, 0, 0}, {0, 0, 0}, {16, 4, 2}, 0, 0, 16, 72, "host slice no multiple of row"},
    {{0, 0, 0}, {0, 0, 0}, {2049, 1, 1}, 0, 0, 0, 0, "too wide"},
    {{0, 0, 0}, {0, 0, 0}, {16, 129, 1}, 0, 0, 0, 0, "too high"},
    {{0, 120, 0}, {0, 0, 0}, {16, 9, 1}, 0, 0, 0, 0, "over the end by the offset"},
    {{0, 0, 0}, {0, 0, 0}, {1, ~(size_t)0, 1}, 0, 0, 0, 0, "height wraps"},
    {{~(size_t)0, 0, 0}, {0, 0, 0}, {2, 1, 1}, 0, 0, 0, 0, "offset wraps"},
    {{15, 0, 0}, {0, 0, 0}, {1, 128, 1}, 16, 0, 0, 0, "last column"},
    {{2047, 0, 0}, {0, 0, 0}, {1, 1, 1}, 0, 0, 0, 0, "last byte"},
    {{0, 0, 0}, {0, 0, 0}, {16, 4, 1}, 4096, 0, 0, 0, "row pitch beyond the buffer"},
    {{0, 0, 0}, {0, 0, 0}, {16, 1, 1}, 4096, 0, 0, 0, "row pitch beyond the buffer, one row"},
};

static void reset(cl_mem m) {
    fill(host, HOST, 1);
    memcpy(before, host, HOST);
    fill(dev, BUF, 2);
    must(clEnqueueWriteBuffer(queue, m, CL_TRUE, 0, BUF, dev, 0, NULL, NULL), "reset");
}

static void state(const char *label, cl_mem m) {
    must(clEnqueueReadBuffer(queue, m, CL_TRUE, 0, BUF, back, 0, NULL, NULL), "state");
    SAY(label, "buffer %016llx host %016llx", (unsigned long long)dt_hash(back, BUF), (unsigned long long)dt_hash(host, HOST));
}

int main(void) {
    setup(0);
    cl_mem m = buffer(0, BUF, NULL), m2 = buffer(0, BUF, NULL);
    cl_buffer_region region = {1024, 1024};
    cl_uint bits;
    clGetDeviceInfo(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits, NULL);
    cl_mem sub = clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &err);
    must(err, "sub-buffer");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct rect *c = &cases[i];
        for (int blocking = 0; blocking < 2; blocking++) {
            const char *b = blocking ? "blocking" : "async";
            reset(m);
            ERR(L("read rect %s, %s", c->n, b), clEnqueueReadBufferRect(queue, m, blocking, c->bo, c->ho, c->r, c->brp, c->bsp, c->hrp, c->hsp, host, 0, NULL, NULL));
            if (!blocking) clFinish(queue);
            state(L("read rect %s, %s, state", c->n, b), m);
            reset(m);
            ERR(L("write rect %s, %s", c->n, b), clEnqueueWriteBufferRect(queue, m, blocking, c->bo, c->ho, c->r, c->brp, c->bsp, c->hrp, c->hsp, host, 0, NULL, NULL));
            if (!blocking) clFinish(queue);
            state(L("write rect %s, %s, state", c->n, b), m);
        }
        reset(m); reset(m2);
        ERR(L("copy rect %s", c->n), clEnqueueCopyBufferRect(queue, m, m2, c->bo, c->ho, c->r, c->brp, c->bsp, c->hrp, c->hsp, 0, NULL, NULL));
        state(L("copy rect %s, state", c->n), m2);
        reset(m);
        ERR(L("sub read rect %s", c->n), clEnqueueReadBufferRect(queue, sub, CL_TRUE, c->bo, c->ho, c->r, c->brp, c->bsp, c->hrp, c->hsp, host, 0, NULL, NULL));
        state(L("sub read rect %s, state", c->n), m);
        ERR(L("sub write rect %s", c->n), clEnqueueWriteBufferRect(queue, sub, CL_TRUE, c->bo, c->ho, c->r, c->brp, c->bsp, c->hrp, c->hsp, before, 0, NULL, NULL));
        state(L("sub write rect %s, state", c->n), m);
    }
    size_t o[3] = {0}, o2[3] = {8, 1, 0}, o3[3] = {16, 0, 0}, r[3] = {16, 4, 1};
    reset(m);
    ERR("read rect null ptr", clEnqueueReadBufferRect(queue, m, CL_TRUE, o, o, r, 0, 0, 0, 0, NULL, 0, NULL, NULL));
    ERR("write rect null ptr", clEnqueueWriteBufferRect(queue, m, CL_TRUE, o, o, r, 0, 0, 0, 0, NULL, 0, NULL, NULL));
    ERR("read rect null buffer", clEnqueueReadBufferRect(queue, NULL, CL_TRUE, o, o, r, 0, 0, 0, 0, host, 0, NULL, NULL));
    ERR("read rect null queue", clEnqueueReadBufferRect(NULL, m, CL_TRUE, o, o, r, 0, 0, 0, 0, host, 0, NULL, NULL));
    ERR("read rect null region", clEnqueueReadBufferRect(queue, m, CL_TRUE, o, o, NULL, 0, 0, 0, 0, host, 0, NULL, NULL));
    ERR("read rect null origin", clEnqueueReadBufferRect(queue, m, CL_TRUE, NULL, o, r, 0, 0, 0, 0, host, 0, NULL, NULL));
    ERR("write rect null host origin", clEnqueueWriteBufferRect(queue, m, CL_TRUE, o, NULL, r, 0, 0, 0, 0, host, 0, NULL, NULL));
    ERR("copy rect within, overlapping", clEnqueueCopyBufferRect(queue, m, m, o, o2, r, 32, 0, 32, 0, 0, NULL, NULL));
    ERR("copy rect within, side by side", clEnqueueCopyBufferRect(queue, m, m, o, o3, r, 32, 0, 32, 0, 0, NULL, NULL));
    state("copy rect within, side by side, state", m);
    ERR("copy rect within, other pitches", clEnqueueCopyBufferRect(queue, m, m, o, o3, r, 32, 0, 64, 0, 0, NULL, NULL));
    ERR("finish", clFinish(queue));
    return 0;
}
