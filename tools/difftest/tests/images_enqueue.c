// Commands on images: every argument wrong in turn; gates, out-of-order queues, releases while commands are under way.
#include "dt.h"
#include <pthread.h>

enum { W = 16, H = 8, D = 4, PX = 4 };

static int native; // on PoCL itself, which takes some regions beyond the edge and writes there
static const cl_image_format rgba8 = {CL_RGBA, CL_UNSIGNED_INT8}, r32 = {CL_R, CL_UNSIGNED_INT32};
static const size_t zero[3] = {0}, all2[3] = {W, H, 1}, all3[3] = {W, H, D};
static unsigned char host[W * H * D * PX * 4], got[sizeof host];

static cl_mem image(cl_mem_object_type type, const cl_image_format *f, cl_mem_flags flags, void *p) {
    cl_image_desc d = {.image_type = type, .image_width = W, .image_height = H};
    if (type == CL_MEM_OBJECT_IMAGE1D) d.image_height = 0;
    if (type == CL_MEM_OBJECT_IMAGE3D) d.image_depth = D;
    if (type == CL_MEM_OBJECT_IMAGE2D_ARRAY) d.image_array_size = D;
    if (type == CL_MEM_OBJECT_IMAGE1D_ARRAY) d.image_array_size = H, d.image_height = 0;
    cl_mem m = clCreateImage(context, flags, f, &d, p, &err);
    must(err, "clCreateImage");
    return m;
}

// bad_regions tries regions beyond each edge with a call on m; two says that the image has two dimensions.
#define BAD_REGIONS(what, two, call)                                                                                     \
    do {                                                                                                               \
        static const struct { size_t o[3], r[3]; const char *name; } bad[] = {                                         \
            {{1, 0, 0}, {W, 1, 1}, "x over"}, {{0, 1, 0}, {1, H, 1}, "y over"}, {{0, 0, 1}, {1, 1, D}, "z over"},        \
            {{W, 0, 0}, {1, 1, 1}, "x at the end"}, {{0, 0, 0}, {0, 1, 1}, "width 0"}, {{0, 0, 0}, {1, 0, 1}, "height 0"}, \
            {{0, 0, 0}, {1, 1, 0}, "depth 0"}, {{~(size_t)0, 0, 0}, {2, 1, 1}, "x wraps"}, {{0, 0, 1}, {1, 1, 1}, "z 1"}, \
            {{0, 0, 0}, {1, 1, 2}, "depth 2"}};                                                                        \
        for (int i_ = 0; i_ < (two ? 10 : 8); i_++) {                                                                  \
            const size_t *o = bad[i_].o, *r = bad[i_].r;                                                               \
            if (native && (o[0] || r[2] == 2)) SAY(L("%s %s", what, bad[i_].name), "skipped"); /* it would write there */ \
            else ERR(L("%s %s", what, bad[i_].name), call);                                                            \
        }                                                                                                              \
    } while (0)

static void transfers(void) {
    cl_mem m2 = image(CL_MEM_OBJECT_IMAGE2D, &rgba8, 0, NULL), m3 = image(CL_MEM_OBJECT_IMAGE3D, &rgba8, 0, NULL), m1 = image(CL_MEM_OBJECT_IMAGE1D, &rgba8, 0, NULL);
    cl_mem b = buffer(0, sizeof host, NULL);
    cl_event none = NULL;
    for (int w = 0; w < 2; w++) {
#define MOVE(q, m, o, r, row, slice, p, n, list) \
    (w ? clEnqueueWriteImage(q, m, CL_TRUE, o, r, row, slice, p, n, list, NULL) : clEnqueueReadImage(q, m, CL_TRUE, o, r, row, slice, p, n, list, NULL))
        const char *n = w ? "write" : "read";
        ERR(L("%s null queue", n), MOVE(NULL, m2, zero, all2, 0, 0, host, 0, NULL));
        ERR(L("%s null image", n), MOVE(queue, NULL, zero, all2, 0, 0, host, 0, NULL));
        ERR(L("%s a buffer", n), MOVE(queue, b, zero, all2, 0, 0, host, 0, NULL));
        ERR(L("%s null origin", n), MOVE(queue, m2, NULL, all2, 0, 0, host, 0, NULL));
        ERR(L("%s null region", n), MOVE(queue, m2, zero, NULL, 0, 0, host, 0, NULL));
        ERR(L("%s null pointer", n), MOVE(queue, m2, zero, all2, 0, 0, NULL, 0, NULL));
        ERR(L("%s row pitch 63", n), MOVE(queue, m2, zero, all2, 63, 0, host, 0, NULL));
        ERR(L("%s row pitch 66", n), MOVE(queue, m2, zero, all2, 66, 0, host, 0, NULL));
        ERR(L("%s row pitch 128", n), MOVE(queue, m2, zero, all2, 128, 0, host, 0, NULL));
        ERR(L("%s slice pitch of 2D", n), MOVE(queue, m2, zero, all2, 64, 64 * H, host, 0, NULL));
        ERR(L("%s slice pitch of 1D", n), MOVE(queue, m1, zero, ((size_t[]){W, 1, 1}), 64, 64, host, 0, NULL));
        ERR(L("%s slice pitch too small", n), MOVE(queue, m3, zero, all3, 64, 64 * H - 1, host, 0, NULL));
        ERR(L("%s slice pitch odd", n), MOVE(queue, m3, zero, all3, 64, 64 * H + 4, host, 0, NULL));
        ERR(L("%s count without list", n), MOVE(queue, m2, zero, all2, 0, 0, host, 1, NULL));
        ERR(L("%s null event in list", n), MOVE(queue, m2, zero, all2, 0, 0, host, 1, &none));
        BAD_REGIONS(L("%s 2D", n), 1, MOVE(queue, m2, o, r, 0, 0, host, 0, NULL));
        BAD_REGIONS(L("%s 3D", n), 0, MOVE(queue, m3, o, r, 0, 0, host, 0, NULL));
    }
    size_t o[3] = {0}, r[3] = {8, 1, 1};
    ERR("read buffer of an image", clEnqueueReadBuffer(queue, m2, CL_TRUE, 0, 16, host, 0, NULL, NULL));
    ERR("write buffer of an image", clEnqueueWriteBuffer(queue, m2, CL_TRUE, 0, 16, host, 0, NULL, NULL));
    ERR("read rect of an image", clEnqueueReadBufferRect(queue, m2, CL_TRUE, o, o, r, 0, 0, 0, 0, host, 0, NULL, NULL));
    ERR("copy buffer of an image", clEnqueueCopyBuffer(queue, m2, b, 0, 0, 16, 0, NULL, NULL));
    ERR("copy buffer to an image", clEnqueueCopyBuffer(queue, b, m2, 0, 0, 16, 0, NULL, NULL));
    ERR("fill buffer of an image", clEnqueueFillBuffer(queue, m2, host, 4, 0, 16, 0, NULL, NULL));
    void *p;
    MAKE("map buffer of an image", p, clEnqueueMapBuffer(queue, m2, CL_TRUE, CL_MAP_READ, 0, 16, 0, NULL, NULL, &err));
    cl_buffer_region part = {0, 16};
    cl_mem sub;
    MAKE("sub-buffer of an image", sub, clCreateSubBuffer(m2, 0, CL_BUFFER_CREATE_TYPE_REGION, &part, &err));
    ERR("migrate an image", clEnqueueMigrateMemObjects(queue, 1, &m2, CL_MIGRATE_MEM_OBJECT_HOST, 0, NULL, NULL));
    static const cl_mem_flags access[] = {CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_WRITE_ONLY, CL_MEM_HOST_NO_ACCESS};
    for (int i = 0; i < 3; i++) {
        cl_mem h = image(CL_MEM_OBJECT_IMAGE2D, &rgba8, access[i], NULL);
        size_t row;
        ERR(L("access %d read", i), clEnqueueReadImage(queue, h, CL_TRUE, zero, all2, 0, 0, got, 0, NULL, NULL));
        ERR(L("access %d write", i), clEnqueueWriteImage(queue, h, CL_TRUE, zero, all2, 0, 0, host, 0, NULL, NULL));
        static const cl_map_flags how[] = {CL_MAP_READ, CL_MAP_WRITE, CL_MAP_WRITE_INVALIDATE_REGION};
        for (int k = 0; k < 3; k++) {
            MAKE(L("access %d map %d", i, k), p, clEnqueueMapImage(queue, h, CL_TRUE, how[k], zero, all2, &row, NULL, 0, NULL, NULL, &err));
            if (p) clEnqueueUnmapMemObject(queue, h, p, 0, NULL, NULL);
        }
        clFinish(queue);
        clReleaseMemObject(h);
    }
    clReleaseMemObject(m1); clReleaseMemObject(m2); clReleaseMemObject(m3); clReleaseMemObject(b);
}

static void copies(void) {
    cl_mem m2 = image(CL_MEM_OBJECT_IMAGE2D, &rgba8, 0, NULL), n2 = image(CL_MEM_OBJECT_IMAGE2D, &rgba8, 0, NULL), m3 = image(CL_MEM_OBJECT_IMAGE3D, &rgba8, 0, NULL);
    cl_mem other = image(CL_MEM_OBJECT_IMAGE2D, &r32, 0, NULL), b = buffer(0, W * H * PX, NULL);
    cl_uint color[4] = {1, 2, 3, 4};
    size_t half[3] = {W / 2, H, 1}, right[3] = {W / 2, 0, 0}, one[3] = {1, 0, 0};
    ERR("copy good", clEnqueueCopyImage(queue, m2, n2, zero, zero, all2, 0, NULL, NULL));
    ERR("copy null queue", clEnqueueCopyImage(NULL, m2, n2, zero, zero, all2, 0, NULL, NULL));
    ERR("copy null source", clEnqueueCopyImage(queue, NULL, n2, zero, zero, all2, 0, NULL, NULL));
    ERR("copy null target", clEnqueueCopyImage(queue, m2, NULL, zero, zero, all2, 0, NULL, NULL));
    ERR("copy from a buffer", clEnqueueCopyImage(queue, b, n2, zero, zero, all2, 0, NULL, NULL));
    ERR("copy to a buffer", clEnqueueCopyImage(queue, m2, b, zero, zero, all2, 0, NULL, NULL));
    ERR("copy formats differ", clEnqueueCopyImage(queue, m2, other, zero, zero, all2, 0, NULL, NULL));
    ERR("copy 2D to 3D", clEnqueueCopyImage(queue, m2, m3, zero, zero, all2, 0, NULL, NULL));
    ERR("copy overlap", clEnqueueCopyImage(queue, m2, m2, zero, one, half, 0, NULL, NULL));
    ERR("copy touching", clEnqueueCopyImage(queue, m2, m2, zero, right, half, 0, NULL, NULL));
    ERR("copy null origin", clEnqueueCopyImage(queue, m2, n2, NULL, zero, all2, 0, NULL, NULL));
    ERR("copy null target origin", clEnqueueCopyImage(queue, m2, n2, zero, NULL, all2, 0, NULL, NULL));
    ERR("copy null region", clEnqueueCopyImage(queue, m2, n2, zero, zero, NULL, 0, NULL, NULL));
    BAD_REGIONS("copy source", 1, clEnqueueCopyImage(queue, m2, n2, o, zero, r, 0, NULL, NULL));
    BAD_REGIONS("copy target", 1, clEnqueueCopyImage(queue, m2, n2, zero, o, r, 0, NULL, NULL));
    ERR("fill good", clEnqueueFillImage(queue, m2, color, zero, all2, 0, NULL, NULL));
    ERR("fill null queue", clEnqueueFillImage(NULL, m2, color, zero, all2, 0, NULL, NULL));
    ERR("fill null image", clEnqueueFillImage(queue, NULL, color, zero, all2, 0, NULL, NULL));
    ERR("fill a buffer", clEnqueueFillImage(queue, b, color, zero, all2, 0, NULL, NULL));
    ERR("fill null color", clEnqueueFillImage(queue, m2, NULL, zero, all2, 0, NULL, NULL));
    ERR("fill null origin", clEnqueueFillImage(queue, m2, color, NULL, all2, 0, NULL, NULL));
    ERR("fill null region", clEnqueueFillImage(queue, m2, color, zero, NULL, 0, NULL, NULL));
    BAD_REGIONS("fill", 1, clEnqueueFillImage(queue, m2, color, o, r, 0, NULL, NULL));
    ERR("to buffer good", clEnqueueCopyImageToBuffer(queue, m2, b, zero, all2, 0, 0, NULL, NULL));
    ERR("to buffer null image", clEnqueueCopyImageToBuffer(queue, NULL, b, zero, all2, 0, 0, NULL, NULL));
    ERR("to buffer an image", clEnqueueCopyImageToBuffer(queue, m2, n2, zero, all2, 0, 0, NULL, NULL));
    ERR("to buffer from a buffer", clEnqueueCopyImageToBuffer(queue, b, b, zero, all2, 0, 0, NULL, NULL));
    ERR("to buffer too small", clEnqueueCopyImageToBuffer(queue, m2, b, zero, all2, 1, 0, NULL, NULL));
    ERR("to buffer offset wraps", clEnqueueCopyImageToBuffer(queue, m2, b, zero, all2, ~(size_t)0, 0, NULL, NULL));
    ERR("to buffer null origin", clEnqueueCopyImageToBuffer(queue, m2, b, NULL, all2, 0, 0, NULL, NULL));
    BAD_REGIONS("to buffer", 1, clEnqueueCopyImageToBuffer(queue, m2, b, o, r, 0, 0, NULL, NULL));
    ERR("to image good", clEnqueueCopyBufferToImage(queue, b, m2, 0, zero, all2, 0, NULL, NULL));
    ERR("to image null buffer", clEnqueueCopyBufferToImage(queue, NULL, m2, 0, zero, all2, 0, NULL, NULL));
    ERR("to image null image", clEnqueueCopyBufferToImage(queue, b, NULL, 0, zero, all2, 0, NULL, NULL));
    ERR("to image from an image", clEnqueueCopyBufferToImage(queue, n2, m2, 0, zero, all2, 0, NULL, NULL));
    ERR("to image too small", clEnqueueCopyBufferToImage(queue, b, m2, 1, zero, all2, 0, NULL, NULL));
    BAD_REGIONS("to image", 1, clEnqueueCopyBufferToImage(queue, b, m2, 0, o, r, 0, NULL, NULL));
    ERR("finish", clFinish(queue));
    clReleaseMemObject(m2); clReleaseMemObject(n2); clReleaseMemObject(m3); clReleaseMemObject(other); clReleaseMemObject(b);
}

static void maps(void) {
    cl_mem m2 = image(CL_MEM_OBJECT_IMAGE2D, &rgba8, 0, NULL), m3 = image(CL_MEM_OBJECT_IMAGE3D, &rgba8, 0, NULL);
    cl_mem a1 = image(CL_MEM_OBJECT_IMAGE1D_ARRAY, &rgba8, 0, NULL), b = buffer(0, 64, NULL);
    cl_mem spare = image(CL_MEM_OBJECT_IMAGE2D, &rgba8, 0, NULL);
    size_t row, slice;
    void *p;
    MAKE("map null queue", p, clEnqueueMapImage(NULL, m2, CL_TRUE, CL_MAP_READ, zero, all2, &row, NULL, 0, NULL, NULL, &err));
    MAKE("map null image", p, clEnqueueMapImage(queue, NULL, CL_TRUE, CL_MAP_READ, zero, all2, &row, NULL, 0, NULL, NULL, &err));
    MAKE("map a buffer", p, clEnqueueMapImage(queue, b, CL_TRUE, CL_MAP_READ, zero, all2, &row, NULL, 0, NULL, NULL, &err));
    MAKE("map null origin", p, clEnqueueMapImage(queue, m2, CL_TRUE, CL_MAP_READ, NULL, all2, &row, NULL, 0, NULL, NULL, &err));
    MAKE("map null region", p, clEnqueueMapImage(queue, m2, CL_TRUE, CL_MAP_READ, zero, NULL, &row, NULL, 0, NULL, NULL, &err));
    MAKE("map null row pitch", p, clEnqueueMapImage(queue, m2, CL_TRUE, CL_MAP_READ, zero, all2, NULL, NULL, 0, NULL, NULL, &err));
    MAKE("map 3D null slice pitch", p, clEnqueueMapImage(queue, m3, CL_TRUE, CL_MAP_READ, zero, all3, &row, NULL, 0, NULL, NULL, &err));
    MAKE("map array null slice pitch", p, clEnqueueMapImage(queue, a1, CL_TRUE, CL_MAP_READ, zero, all2, &row, NULL, 0, NULL, NULL, &err));
    BAD_REGIONS("map", 1, (clEnqueueMapImage(queue, spare, CL_TRUE, CL_MAP_READ, o, r, &row, NULL, 0, NULL, NULL, &err), err));
    MAKE("map", p, clEnqueueMapImage(queue, m2, CL_TRUE, CL_MAP_WRITE, zero, all2, &row, &slice, 0, NULL, NULL, &err));
    SAY("map pitches", "%zu %zu", row, slice);
    SAY("map count", "%u", maps_mem(m2));
    ERR("unmap foreign pointer", clEnqueueUnmapMemObject(queue, m2, host, 0, NULL, NULL));
    ERR("unmap", clEnqueueUnmapMemObject(queue, m2, p, 0, NULL, NULL));
    ERR("unmap again", clEnqueueUnmapMemObject(queue, m2, p, 0, NULL, NULL));
    clFinish(queue);
    UNMAPPED(m2);
    SAY("map count after", "%u", maps_mem(m2));
    MAKE("map 3D", p, clEnqueueMapImage(queue, m3, CL_TRUE, CL_MAP_READ, zero, all3, &row, &slice, 0, NULL, NULL, &err));
    SAY("map 3D pitches", "%zu %zu", row, slice);
    clEnqueueUnmapMemObject(queue, m3, p, 0, NULL, NULL);
    MAKE("map array", p, clEnqueueMapImage(queue, a1, CL_TRUE, CL_MAP_READ, zero, all2, &row, &slice, 0, NULL, NULL, &err));
    SAY("map array pitches", "%zu %zu", row, slice);
    clEnqueueUnmapMemObject(queue, a1, p, 0, NULL, NULL);
    clFinish(queue);
    clReleaseMemObject(m2); clReleaseMemObject(m3); clReleaseMemObject(a1); clReleaseMemObject(b); clReleaseMemObject(spare);
}

static void say_type(const char *label, cl_event e) {
    cl_command_type t = 0;
    cl_int s = 99;
    clGetEventInfo(e, CL_EVENT_COMMAND_TYPE, sizeof t, &t, NULL);
    clWaitForEvents(1, &e);
    clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL);
    SAY(label, "type %x status %d", t, s);
    clReleaseEvent(e);
}

static void order(cl_command_queue_properties props, const char *name) {
    cl_command_queue q = clCreateCommandQueue(context, device, props, &err);
    must(err, "queue");
    cl_mem a = image(CL_MEM_OBJECT_IMAGE3D, &rgba8, 0, NULL), b = image(CL_MEM_OBJECT_IMAGE3D, &rgba8, 0, NULL), flat = buffer(0, W * H * D * PX, NULL);
    cl_uint color[4] = {9, 8, 7, 6};
    cl_event gate = clCreateUserEvent(context, &err), e[8];
    size_t row, slice, small[3] = {3, 2, 2}, off[3] = {2, 3, 1};
    fill(host, sizeof host, 77);
    memset(got, 0, sizeof got);
    must(clEnqueueWriteImage(q, a, CL_FALSE, zero, all3, 0, 0, host, 1, &gate, &e[0]), "write");
    must(clEnqueueFillImage(q, a, color, off, small, 1, &e[0], &e[1]), "fill");
    must(clEnqueueCopyImage(q, a, b, zero, zero, all3, 1, &e[1], &e[2]), "copy");
    must(clEnqueueCopyImageToBuffer(q, b, flat, zero, all3, 0, 1, &e[2], &e[3]), "to buffer");
    must(clEnqueueCopyBufferToImage(q, flat, a, 64, off, small, 1, &e[3], &e[4]), "to image");
    unsigned char *p = clEnqueueMapImage(q, a, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, zero, all3, &row, &slice, 1, &e[4], &e[5], &err);
    must(err, "map");
    must(clEnqueueReadImage(q, b, CL_FALSE, zero, all3, 0, 0, got, 1, &e[4], &e[6]), "read");
    clFlush(q);
    usleep(20000);
    cl_int s = 99;
    clGetEventInfo(e[5], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL);
    SAY(L("%s before the gate", name), "%s %d", s > 0 ? "waiting" : "over", got[0]);
    clSetUserEventStatus(gate, CL_COMPLETE);
    clWaitForEvents(1, &e[5]);
    uint64_t h = 0;
    for (int z = 0; z < D; z++)
        for (int y = 0; y < H; y++) h = h * 31 + dt_hash(p + z * slice + y * row, W * PX);
    SAY(L("%s mapped", name), "%016llx", (unsigned long long)h);
    p[0] ^= 0xFF;
    cl_event un;
    must(clEnqueueUnmapMemObject(q, a, p, 0, NULL, &un), "unmap");
    for (int i = 0; i < 7; i++) say_type(L("%s event %d", name, i), e[i]);
    say_type(L("%s unmap", name), un);
    HASH(L("%s read", name), got, W * H * D * PX);
    must(clEnqueueReadImage(q, a, CL_TRUE, zero, all3, 0, 0, got, 0, NULL, NULL), "read");
    HASH(L("%s at the end", name), got, W * H * D * PX);
    // The program lets go of an image while commands on it are under way.
    cl_event late = clCreateUserEvent(context, &err), done[3];
    must(clEnqueueWriteImage(q, b, CL_FALSE, zero, all3, 0, 0, host, 1, &late, &done[0]), "write");
    must(clEnqueueReadImage(q, b, CL_FALSE, zero, all3, 0, 0, got, 1, &done[0], &done[1]), "read");
    if (!native) { // PoCL sometimes ends with SIGSEGV here
        p = clEnqueueMapImage(q, b, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, zero, all3, &row, &slice, 1, &done[1], &done[2], &err);
        must(err, "map");
        must(clEnqueueUnmapMemObject(q, b, p, 1, &done[2], NULL), "unmap");
        clReleaseEvent(done[2]);
    }
    clReleaseMemObject(b);
    clSetUserEventStatus(late, CL_COMPLETE);
    ERR(L("%s finish after a release", name), clFinish(q));
    HASH(L("%s read after a release", name), got, W * H * D * PX);
    for (int i = 0; i < 2; i++) clReleaseEvent(done[i]);
    clReleaseEvent(gate); clReleaseEvent(late);
    clReleaseMemObject(a); clReleaseMemObject(flat);
    ERR(L("%s finish", name), clFinish(q));
    clReleaseCommandQueue(q);
}

// failed: commands behind an event that failed never touch the image or the program's memory.
static void failed(void) {
    cl_mem m = image(CL_MEM_OBJECT_IMAGE2D, &rgba8, 0, NULL);
    memset(host, 5, sizeof host);
    must(clEnqueueWriteImage(queue, m, CL_TRUE, zero, all2, 0, 0, host, 0, NULL, NULL), "write");
    cl_command_queue q = clCreateCommandQueue(context, device, 0, &err);
    cl_event gate = clCreateUserEvent(context, &err), e[2];
    memset(host, 6, sizeof host);
    memset(got, 7, sizeof got);
    must(clEnqueueWriteImage(q, m, CL_FALSE, zero, all2, 0, 0, host, 1, &gate, &e[0]), "write");
    must(clEnqueueReadImage(q, m, CL_FALSE, zero, all2, 0, 0, got, 1, &e[0], &e[1]), "read");
    clSetUserEventStatus(gate, -5);
    clWaitForEvents(2, e);
    for (int i = 0; i < 2; i++) {
        cl_int s = 99;
        clGetEventInfo(e[i], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof s, &s, NULL);
        SAY(L("failed %d", i), "%s", s < 0 ? "failed" : "not failed");
        clReleaseEvent(e[i]);
    }
    SAY("failed read touched", "%d", got[0]);
    must(clEnqueueReadImage(queue, m, CL_TRUE, zero, all2, 0, 0, got, 0, NULL, NULL), "read");
    SAY("failed write touched", "%d", got[0]);
    clReleaseEvent(gate); clReleaseMemObject(m); clReleaseCommandQueue(q);
}

static void *hammer(void *seed) {
    cl_command_queue q = clCreateCommandQueue(context, device, 0, &err);
    unsigned char mine[W * H * PX], back[W * H * PX];
    size_t bad = 0;
    for (unsigned i = 0; i < 60; i++) {
        cl_mem m = image(CL_MEM_OBJECT_IMAGE2D, &rgba8, 0, NULL);
        fill(mine, sizeof mine, i * 7 + (unsigned)(uintptr_t)seed);
        clEnqueueWriteImage(q, m, i % 2, zero, all2, 0, 0, mine, 0, NULL, NULL);
        clEnqueueReadImage(q, m, CL_TRUE, zero, all2, 0, 0, back, 0, NULL, NULL);
        bad += memcmp(mine, back, sizeof mine) != 0;
        clReleaseMemObject(m);
    }
    clReleaseCommandQueue(q);
    return (void *)bad;
}

static void threads(void) {
    pthread_t t[4];
    size_t bad = 0;
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&t[i], NULL, hammer, (void *)i);
    for (int i = 0; i < 4; i++) {
        void *r;
        pthread_join(t[i], &r);
        bad += (size_t)r;
    }
    SAY("threads", "%zu wrong", bad);
}

int main(void) {
    setup(0);
    char name[128] = "";
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
    native = strncmp(name, "Portable Computing Language", 27) == 0;
    transfers();
    copies();
    maps();
    order(0, "in order");
    order(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, "out of order");
    order(CL_QUEUE_PROFILING_ENABLE, "profiled");
    failed();
    threads();
    return 0;
}
