// Images of every dimension and format: reads and writes of random regions with pitches and guard bytes, fills, copies,
// maps; checked against a model in this program, so that a line says whether the result is right.
#include "dt.h"

enum { MOST = 512, ROUNDS = 6 };

static const struct { cl_mem_object_type type; const char *name; } kinds[] = {
    {CL_MEM_OBJECT_IMAGE1D, "1d"}, {CL_MEM_OBJECT_IMAGE1D_BUFFER, "1d buffer"}, {CL_MEM_OBJECT_IMAGE1D_ARRAY, "1d array"},
    {CL_MEM_OBJECT_IMAGE2D, "2d"}, {CL_MEM_OBJECT_IMAGE2D_ARRAY, "2d array"}, {CL_MEM_OBJECT_IMAGE3D, "3d"},
};

static int pocl, native; // the driver; by it itself
static unsigned state = 7;
static unsigned rnd(unsigned n) { state = state * 1664525u + 1013904223u; return (state >> 8) % n; }

// pic is an image and what it must hold, dense.
struct pic {
    cl_mem m, under;
    cl_image_format f;
    cl_mem_object_type type;
    size_t e[3], px;
    unsigned char *model, *own;
    size_t own_row, own_slice;
};

static size_t bytes(const struct pic *p) { return p->e[0] * p->e[1] * p->e[2] * p->px; }
static unsigned char *at(struct pic *p, const size_t *o, size_t y, size_t z) {
    return p->model + (((o[2] + z) * p->e[1] + o[1] + y) * p->e[0] + o[0]) * p->px;
}
static int sliced(const struct pic *p) {
    return p->type == CL_MEM_OBJECT_IMAGE1D_ARRAY || p->type == CL_MEM_OBJECT_IMAGE2D_ARRAY || p->type == CL_MEM_OBJECT_IMAGE3D;
}

// extra is a number of rows between slices. PoCL 3.1 ignores the slice pitch of 1D arrays: see gaps.
static int gaps_in_arrays;
static size_t extra(const struct pic *p) { return p->type != CL_MEM_OBJECT_IMAGE1D_ARRAY || gaps_in_arrays ? rnd(3) : 0; }

static void region(const struct pic *p, size_t *o, size_t *r) {
    for (int i = 0; i < 3; i++) {
        r[i] = 1 + rnd(p->e[i]);
        o[i] = rnd(p->e[i] - r[i] + 1);
    }
}

// make creates an image with sizes of its own; flags may ask for host memory with pitches.
static int make(struct pic *p, cl_mem_object_type type, cl_image_format f, cl_mem_flags flags) {
    memset(p, 0, sizeof *p);
    p->type = type;
    p->f = f;
    cl_image_desc d = {.image_type = type, .image_width = 1 + rnd(23)};
    p->e[0] = d.image_width, p->e[1] = p->e[2] = 1;
    if (type == CL_MEM_OBJECT_IMAGE2D || type == CL_MEM_OBJECT_IMAGE2D_ARRAY || type == CL_MEM_OBJECT_IMAGE3D) p->e[1] = d.image_height = 1 + rnd(11);
    if (type == CL_MEM_OBJECT_IMAGE3D) p->e[2] = d.image_depth = 1 + rnd(7);
    if (type == CL_MEM_OBJECT_IMAGE1D_ARRAY) p->e[1] = d.image_array_size = 1 + rnd(7);
    if (type == CL_MEM_OBJECT_IMAGE2D_ARRAY) p->e[2] = d.image_array_size = 1 + rnd(7);
    if (type == CL_MEM_OBJECT_IMAGE1D_BUFFER) {
        p->under = buffer(CL_MEM_READ_WRITE, p->e[0] * 16 + 64, NULL);
        d.buffer = p->under;
        flags = 0;
    }
    cl_mem probe = NULL;
    if (flags) { // the element's size comes from an image of one element
        cl_image_desc one = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 1, .image_height = 1};
        probe = clCreateImage(context, 0, &f, &one, NULL, &err);
        if (!probe) return 0;
        clGetImageInfo(probe, CL_IMAGE_ELEMENT_SIZE, sizeof p->px, &p->px, NULL);
        clReleaseMemObject(probe);
        p->own_row = (p->e[0] + rnd(5)) * p->px;
        size_t rows = type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? 1 : p->e[1];
        p->own_slice = p->own_row * (rows + extra(p));
        d.image_row_pitch = p->own_row;
        if (sliced(p)) d.image_slice_pitch = p->own_slice;
        p->own = malloc(p->own_slice * 8 + p->own_row * 16);
        fill(p->own, p->own_slice * 8 + p->own_row * 16, rnd(1000));
    }
    p->m = clCreateImage(context, flags, &f, &d, p->own, &err);
    if (!p->m) return 0;
    clGetImageInfo(p->m, CL_IMAGE_ELEMENT_SIZE, sizeof p->px, &p->px, NULL);
    p->model = malloc(bytes(p));
    size_t step_y = type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? p->own_slice : p->own_row;
    for (size_t z = 0; z < p->e[2]; z++)
        for (size_t y = 0; y < p->e[1] && p->own; y++)
            memcpy(p->model + (z * p->e[1] + y) * p->e[0] * p->px, p->own + z * p->own_slice + y * step_y, p->e[0] * p->px);
    if (!p->own) {
        size_t zero[3] = {0};
        fill(p->model, bytes(p), rnd(1000));
        must(clEnqueueWriteImage(queue, p->m, CL_TRUE, zero, p->e, 0, 0, p->model, 0, NULL, NULL), "first write");
    }
    return 1;
}

static void drop(struct pic *p) {
    if (p->m) clReleaseMemObject(p->m);
    if (p->under) clReleaseMemObject(p->under);
    clFinish(queue);
    free(p->model);
    free(p->own);
    memset(p, 0, sizeof *p);
}

// holds reads all of the image and compares.
static int holds(struct pic *p) {
    size_t zero[3] = {0};
    unsigned char *got = malloc(bytes(p) + 64);
    memset(got, 0xEE, bytes(p) + 64);
    int ok = clEnqueueReadImage(queue, p->m, CL_TRUE, zero, p->e, 0, 0, got, 0, NULL, NULL) == 0 && !memcmp(got, p->model, bytes(p));
    for (int i = 0; i < 64; i++) ok &= got[bytes(p) + i] == 0xEE;
    free(got);
    return ok;
}

// layout is random pitches for a region; what they take of memory, in bytes.
static size_t layout(const struct pic *p, const size_t *r, size_t *row, size_t *slice, size_t *sy, size_t *sz) {
    int gaps = rnd(3);
    *row = gaps ? (r[0] + rnd(4)) * p->px : 0;
    size_t w = *row ? *row : r[0] * p->px;
    size_t rows = p->type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? 1 : r[1];
    *slice = sliced(p) && gaps == 2 ? w * (rows + extra(p)) : 0;
    size_t s = *slice ? *slice : w * rows;
    *sy = p->type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? s : w;
    *sz = s;
    return s * (r[1] + 1) * (r[2] + 1);
}

static int writes(struct pic *p, int blocking) {
    size_t o[3], r[3], row, slice, sy, sz;
    region(p, o, r);
    size_t n = layout(p, r, &row, &slice, &sy, &sz);
    unsigned char *h = malloc(n);
    cl_event ev;
    fill(h, n, rnd(1000));
    int ok = clEnqueueWriteImage(queue, p->m, blocking, o, r, row, slice, h, 0, NULL, &ev) == 0;
    if (ok && !blocking) ok = clWaitForEvents(1, &ev) == 0;
    if (ok) clReleaseEvent(ev);
    for (size_t z = 0; z < r[2]; z++)
        for (size_t y = 0; y < r[1]; y++) memcpy(at(p, o, y, z), h + z * sz + y * sy, r[0] * p->px);
    free(h);
    return ok;
}

static int reads(struct pic *p, int blocking) {
    size_t o[3], r[3], row, slice, sy, sz;
    region(p, o, r);
    size_t n = layout(p, r, &row, &slice, &sy, &sz);
    unsigned char *h = malloc(n + 64), *want = malloc(n + 64);
    cl_event ev;
    memset(h, 0xEE, n + 64), memset(want, 0xEE, n + 64);
    for (size_t z = 0; z < r[2]; z++)
        for (size_t y = 0; y < r[1]; y++) memcpy(want + 32 + z * sz + y * sy, at(p, o, y, z), r[0] * p->px);
    int ok = clEnqueueReadImage(queue, p->m, blocking, o, r, row, slice, h + 32, 0, NULL, &ev) == 0;
    if (ok && !blocking) ok = clWaitForEvents(1, &ev) == 0;
    if (ok) clReleaseEvent(ev);
    ok &= !memcmp(h, want, n + 64);
    free(h), free(want);
    return ok;
}

static int maps(struct pic *p, int blocking) {
    static const cl_map_flags flags[] = {CL_MAP_READ, CL_MAP_WRITE, CL_MAP_READ | CL_MAP_WRITE, CL_MAP_WRITE_INVALIDATE_REGION};
    size_t o[3], r[3], row = 7, slice = 7;
    region(p, o, r);
    cl_map_flags how = flags[rnd(4)];
    cl_event ev;
    unsigned char *h = clEnqueueMapImage(queue, p->m, blocking, how, o, r, &row, &slice, 0, NULL, &ev, &err);
    if (!h) return 0;
    int ok = blocking || clWaitForEvents(1, &ev) == 0;
    clReleaseEvent(ev);
    size_t sy = p->type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? slice : row;
    if (!sliced(p)) ok &= slice == 0;
    for (size_t z = 0; z < r[2]; z++)
        for (size_t y = 0; y < r[1]; y++) {
            if (how != CL_MAP_WRITE_INVALIDATE_REGION) ok &= !memcmp(h + z * slice + y * sy, at(p, o, y, z), r[0] * p->px);
            if (how == CL_MAP_READ) continue;
            fill(at(p, o, y, z), r[0] * p->px, rnd(1000));
            memcpy(h + z * slice + y * sy, at(p, o, y, z), r[0] * p->px);
        }
    ok &= clEnqueueUnmapMemObject(queue, p->m, h, 0, NULL, NULL) == 0;
    clFinish(queue);
    return ok;
}

// fills asks the device for the bytes of one element, by a fill of another image.
static int fills(struct pic *p) {
    size_t o[3], r[3], zero[3] = {0}, one[3] = {1, 1, 1};
    cl_uint color[4] = {0x3f000000, 0x3e800000, 0x3f400000, 0x3f800000}; // 0.5, 0.25, 0.75, 1 as floats
    cl_uint kind = p->f.image_channel_data_type;
    if (kind >= CL_SIGNED_INT8 && kind <= CL_UNSIGNED_INT32)
        for (int i = 0; i < 4; i++) color[i] = 3 + 7 * i;
    unsigned char px[16];
    cl_image_desc d = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 1, .image_height = 1};
    cl_mem m = clCreateImage(context, 0, &p->f, &d, NULL, &err);
    if (!m) return 0;
    int ok = clEnqueueFillImage(queue, m, color, zero, one, 0, NULL, NULL) == 0;
    ok &= clEnqueueReadImage(queue, m, CL_TRUE, zero, one, 0, 0, px, 0, NULL, NULL) == 0;
    clReleaseMemObject(m);
    region(p, o, r);
    ok &= clEnqueueFillImage(queue, p->m, color, o, r, 0, NULL, NULL) == 0;
    for (size_t z = 0; z < r[2]; z++)
        for (size_t y = 0; y < r[1]; y++)
            for (size_t x = 0; x < r[0]; x++) memcpy(at(p, o, y, z) + x * p->px, px, p->px);
    return ok && clFinish(queue) == 0;
}

static int copies(struct pic *p, struct pic *q) {
    size_t a[3], b[3], r[3];
    for (int i = 0; i < 3; i++) {
        size_t n = p->e[i] < q->e[i] ? p->e[i] : q->e[i];
        r[i] = 1 + rnd(n);
        a[i] = rnd(p->e[i] - r[i] + 1), b[i] = rnd(q->e[i] - r[i] + 1);
    }
    int ok = clEnqueueCopyImage(queue, p->m, q->m, a, b, r, 0, NULL, NULL) == 0;
    for (size_t z = 0; z < r[2]; z++)
        for (size_t y = 0; y < r[1]; y++) memcpy(at(q, b, y, z), at(p, a, y, z), r[0] * p->px);
    return ok && clFinish(queue) == 0;
}

static int buffers(struct pic *p) {
    size_t o[3], r[3], n;
    region(p, o, r);
    n = r[0] * r[1] * r[2] * p->px;
    unsigned char *h = malloc(n + 128), *want = malloc(n + 128);
    fill(want, n + 128, rnd(1000));
    cl_mem b = buffer(CL_MEM_COPY_HOST_PTR, n + 128, want);
    int ok = clEnqueueCopyImageToBuffer(queue, p->m, b, o, r, 32, 0, NULL, NULL) == 0;
    for (size_t z = 0; z < r[2]; z++)
        for (size_t y = 0; y < r[1]; y++) memcpy(want + 32 + (z * r[1] + y) * r[0] * p->px, at(p, o, y, z), r[0] * p->px);
    ok &= clEnqueueReadBuffer(queue, b, CL_TRUE, 0, n + 128, h, 0, NULL, NULL) == 0 && !memcmp(h, want, n + 128);
    size_t off = rnd(100);
    region(p, o, r);
    if (r[0] * r[1] * r[2] * p->px + off <= n + 128) {
        ok &= clEnqueueCopyBufferToImage(queue, b, p->m, off, o, r, 0, NULL, NULL) == 0;
        for (size_t z = 0; z < r[2]; z++)
            for (size_t y = 0; y < r[1]; y++) memcpy(at(p, o, y, z), want + off + (z * r[1] + y) * r[0] * p->px, r[0] * p->px);
    }
    clFinish(queue);
    clReleaseMemObject(b);
    free(h), free(want);
    return ok;
}

static void every_format(int k, cl_mem_flags flags, const char *how) {
    cl_image_format list[128];
    cl_uint n = 0;
    clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, kinds[k].type, 128, list, &n);
    for (cl_uint i = 0; i < n && i < 128; i++) {
        struct pic p, q;
        char id[96], said[8][8];
        snprintf(id, sizeof id, "%s%s %x %x", kinds[k].name, how, list[i].image_channel_order, list[i].image_channel_data_type);
        int made = make(&p, kinds[k].type, list[i], flags);
        if (!made || !make(&q, kinds[k].type, list[i], 0)) {
            SAY(id, "not made: %s", dt_name(err));
            continue;
        }
        int (*const does[])(struct pic *, int) = {writes, reads, maps};
        for (int w = 0; w < 3; w++) {
            int ok = 1;
            for (int round = 0; round < ROUNDS; round++) ok &= does[w](&p, round % 2);
            strcpy(said[w], ok && holds(&p) ? "right" : "WRONG");
        }
        int over = pocl && p.type == CL_MEM_OBJECT_IMAGE1D_BUFFER; // PoCL 3.1 ends with SIGSEGV in a fill or a copy of one
        strcpy(said[3], over ? "skipped" : fills(&p) && holds(&p) ? "right" : "WRONG");
        int ok = 1;
        over &= native;
        for (int round = 0; round < ROUNDS && !over; round++) ok &= copies(&p, &q) && copies(&q, &p);
        strcpy(said[4], over ? "skipped" : ok && holds(&p) && holds(&q) ? "right" : "WRONG");
        for (int round = 0; round < ROUNDS && !over; round++) ok &= buffers(&p);
        strcpy(said[5], over ? "skipped" : ok && holds(&p) ? "right" : "WRONG");
        if (gaps_in_arrays) {
            SAY(L("%s gaps", id), "%s %s %s", said[0], said[1], said[2]);
            drop(&p), drop(&q);
            continue;
        }
        SAY(L("%s writes", id), "%s", said[0]);
        SAY(L("%s reads", id), "%s", said[1]);
        SAY(L("%s maps", id), "%s", said[2]);
        SAY(L("%s fills", id), "%s", said[3]);
        SAY(L("%s copies", id), "%s", said[4]);
        SAY(L("%s buffers", id), "%s", said[5]);
        drop(&p), drop(&q);
    }
}

int main(void) {
    setup(0);
    char name[128] = "";
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
    native = strncmp(name, "Tendril", 7) != 0;
    clGetDeviceInfo(device, CL_DEVICE_VERSION, sizeof name, name, NULL);
    pocl = strstr(name, "PoCL") != NULL;
    for (int k = 0; k < 6; k++) {
        every_format(k, 0, "");
        if (kinds[k].type == CL_MEM_OBJECT_IMAGE1D_BUFFER) continue;
        every_format(k, CL_MEM_USE_HOST_PTR, " own");
        every_format(k, CL_MEM_COPY_HOST_PTR, " copied");
    }
    gaps_in_arrays = 1;
    every_format(2, 0, "");
    every_format(2, CL_MEM_USE_HOST_PTR, " own");
    return 0;
}
