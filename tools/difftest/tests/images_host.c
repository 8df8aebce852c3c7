// Images over the program's memory: every kind of image with every way of having memory (own, USE, ALLOC, COPY), as it
// is made, read, mapped and released; and images over buffers whose parents are mapped, or released first.
#include "dt.h"

enum { W = 9, H = 7, D = 5, PIXEL = 4, PAD = 12, MOST = (W * PIXEL + PAD) * (H + 1) * D };
static unsigned char host[MOST + 64] __attribute__((aligned(4096))), before[MOST + 64], want[MOST], got[MOST];
static const cl_image_format rgba8 = {CL_RGBA, CL_UNSIGNED_INT8};
static const size_t zero[3];

static const struct kind { cl_mem_object_type type; const char *name; size_t w, h, d, layers; } kinds[] = {
    {CL_MEM_OBJECT_IMAGE1D, "1d", W, 0, 0, 0},
    {CL_MEM_OBJECT_IMAGE1D_ARRAY, "1d array", W, 0, 0, D},
    {CL_MEM_OBJECT_IMAGE2D, "2d", W, H, 0, 0},
    {CL_MEM_OBJECT_IMAGE2D_ARRAY, "2d array", W, H, 0, D},
    {CL_MEM_OBJECT_IMAGE3D, "3d", W, H, D, 0},
};
static const struct { cl_mem_flags flag; const char *name; int wants; } ways[] = {
    {0, "own", 0}, {CL_MEM_USE_HOST_PTR, "use", 1}, {CL_MEM_ALLOC_HOST_PTR, "alloc", 0}, {CL_MEM_COPY_HOST_PTR, "copy", 1},
    {CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR, "alloc|copy", 1}, {CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR, "use|alloc", 1},
    {CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR, "use|copy", 1},
};

// shape is an image's region, and how its bytes lie in the program's memory.
struct shape { size_t all[3], row, slice; };

static struct shape shape(const struct kind *k, int padded) {
    struct shape s = {{k->w, k->h ? k->h : k->layers ? k->layers : 1, k->h ? (k->d ? k->d : k->layers ? k->layers : 1) : 1}, k->w * PIXEL, 0};
    int layered = k->layers || k->d;
    if (padded) s.row += PAD;
    if (layered) s.slice = k->h ? s.row * (k->h + (padded ? 1 : 0)) : s.row;
    return s;
}

static cl_mem make(const struct kind *k, const struct shape *s, int padded, cl_mem_flags flags, void *p) {
    cl_image_desc d = {.image_type = k->type, .image_width = k->w, .image_height = k->h, .image_depth = k->d, .image_array_size = k->layers};
    if (padded) d.image_row_pitch = s->row, d.image_slice_pitch = s->slice;
    return clCreateImage(context, flags, &rgba8, &d, p, &err);
}

// at is a row of an image in memory that has these pitches; the rows of a 1D array are its layers.
static unsigned char *at(const struct shape *s, const void *p, size_t row, size_t slice, size_t y, size_t z) {
    return (unsigned char *)p + (s->all[2] == 1 && slice && !z && s->slice == s->row ? y * slice : y * row + z * slice);
}

// same compares the rows of an image that lies with these pitches with those packed in want.
static const char *same(const struct shape *s, const void *p, size_t row, size_t slice) {
    size_t line = s->all[0] * PIXEL;
    for (size_t z = 0; z < s->all[2]; z++)
        for (size_t y = 0; y < s->all[1]; y++)
            if (memcmp(at(s, p, row, slice, y, z), want + (z * s->all[1] + y) * line, line)) return "WRONG";
    return "right";
}

// lay puts want into the program's memory, with a pattern between the rows.
static void lay(const struct shape *s) {
    memset(host, 0xA5, sizeof host);
    for (size_t z = 0; z < s->all[2]; z++)
        for (size_t y = 0; y < s->all[1]; y++)
            memcpy(at(s, host, s->row, s->slice, y, z), want + (z * s->all[1] + y) * s->all[0] * PIXEL, s->all[0] * PIXEL);
    memcpy(before, host, sizeof host);
}

// outside says whether what lies behind the image in the program's memory is as it was.
static const char *outside(const struct shape *s) {
    size_t end = s->slice ? s->slice * (s->all[2] > 1 ? s->all[2] : s->slice == s->row ? s->all[1] : 1) : s->row * s->all[1];
    return memcmp(host + end, before + end, sizeof host - end) ? "WRONG" : "right";
}

static const char *content(const struct shape *s, cl_mem im) {
    memset(got, 0, sizeof got);
    cl_int e = clEnqueueReadImage(queue, im, CL_TRUE, zero, s->all, 0, 0, got, 0, NULL, NULL);
    return e ? dt_name(e) : same(s, got, s->all[0] * PIXEL, s->all[0] * PIXEL * (s->slice == s->row ? 1 : s->all[1]));
}

static void *map(const struct shape *s, cl_mem im, cl_map_flags flags, size_t *row, size_t *slice) {
    *row = *slice = 0;
    return clEnqueueMapImage(queue, im, CL_TRUE, flags, zero, s->all, row, slice, 0, NULL, NULL, &err);
}

// write puts new bytes into a map, and into want.
static void write_map(const struct shape *s, void *p, size_t row, size_t slice, unsigned seed) {
    size_t line = s->all[0] * PIXEL;
    fill(want, line * s->all[1] * s->all[2], seed);
    for (size_t z = 0; z < s->all[2]; z++)
        for (size_t y = 0; y < s->all[1]; y++) memcpy(at(s, p, row, slice, y, z), want + (z * s->all[1] + y) * line, line);
}

static int natively, gone[999], *next = gone; // how many objects of each test have gone; one of an earlier test may come late
static void CL_CALLBACK destroyed(cl_mem m, void *user) { (void)m, __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST); }

// ended waits for so many destructor callbacks.
static const char *ended(const int *gone, int n) {
    AWAIT(__atomic_load_n(gone, __ATOMIC_SEQ_CST) >= n);
    return __atomic_load_n(gone, __ATOMIC_SEQ_CST) == n ? "told" : "NOT TOLD";
}

static void refused(const struct kind *k, int w) {
    struct shape s = shape(k, 0);
    for (int given = 0; given < 2; given++) {
        cl_mem im = make(k, &s, 0, ways[w].flag, given ? host : NULL);
        if (given == ways[w].wants && w < 5) {
            if (im) clReleaseMemObject(im);
            continue; // see sweep
        }
        SAY(L("%s %s %s memory", k->name, ways[w].name, given ? "with" : "without"), "%s", dt_name(err));
        if (im) clReleaseMemObject(im);
    }
}

static void sweep(const struct kind *k, int w, int padded) {
    const char *id = strdup(L("%s %s%s", k->name, ways[w].name, padded ? " padded" : ""));
    struct shape s = shape(k, padded);
    int use = ways[w].flag == CL_MEM_USE_HOST_PTR;
    size_t bytes = s.all[0] * s.all[1] * s.all[2] * PIXEL, row, slice, one[3] = {1, 1, 1};
    fill(want, bytes, 1);
    lay(&s);
    cl_mem im = make(k, &s, padded, CL_MEM_READ_WRITE | ways[w].flag, ways[w].wants ? host : NULL);
    SAY(L("%s made", id), "%s", dt_name(err));
    if (!im) return;
    int *ends = next++;
    clSetMemObjectDestructorCallback(im, destroyed, ends);
    cl_mem_flags flags = 0;
    void *p = &p;
    size_t element = 0;
    clGetMemObjectInfo(im, CL_MEM_FLAGS, sizeof flags, &flags, NULL);
    clGetMemObjectInfo(im, CL_MEM_HOST_PTR, sizeof p, &p, NULL);
    clGetImageInfo(im, CL_IMAGE_ELEMENT_SIZE, sizeof element, &element, NULL);
    SAY(L("%s is", id), "flags %llx, memory %s, %zu bytes a pixel", (unsigned long long)flags, !p ? "none" : p == host ? "the program's" : "other", element);
    if (ways[w].wants) SAY(L("%s has", id), "%s", content(&s, im));
    else {
        clEnqueueWriteImage(queue, im, CL_TRUE, zero, s.all, 0, 0, want, 0, NULL, NULL);
        SAY(L("%s was given", id), "%s", content(&s, im));
    }
    if (ways[w].flag & CL_MEM_COPY_HOST_PTR) { // it is a copy: what becomes of the original does not show
        memset(host, 0x11, sizeof host);
        SAY(L("%s keeps", id), "%s", content(&s, im));
        memcpy(host, before, sizeof host);
    }
    unsigned char *a = map(&s, im, CL_MAP_READ, &row, &slice);
    SAY(L("%s map", id), "%s %s, %s, %u", dt_name(err), a ? same(&s, a, row, slice) : "", use ? (a == host ? "in place" : "ELSEWHERE") : "-", maps_mem(im));
    if (a && use) SAY(L("%s map pitch", id), "%s", row == s.row && (!s.slice || slice == s.slice) ? "the program's" : "another");
    SAY(L("%s read beside a map", id), "%s", content(&s, im));
    unsigned char *b = map(&s, im, CL_MAP_READ, &row, &slice);
    SAY(L("%s second map", id), "%s %s, %u", dt_name(err), b ? same(&s, b, row, slice) : "", maps_mem(im));
    if (b) ERR(L("%s second unmap", id), clEnqueueUnmapMemObject(queue, im, b, 0, NULL, NULL));
    if (a) ERR(L("%s unmap", id), clEnqueueUnmapMemObject(queue, im, a, 0, NULL, NULL));
    clFinish(queue);
    UNMAPPED(im);
    SAY(L("%s maps left", id), "%u", maps_mem(im));
    const size_t last[3] = {s.all[0] - 1, s.all[1] - 1, s.all[2] - 1};
    a = clEnqueueMapImage(queue, im, CL_TRUE, CL_MAP_READ, last, one, &row, &slice, 0, NULL, NULL, &err);
    SAY(L("%s map of the last pixel", id), "%s %s", dt_name(err), a && !memcmp(a, want + bytes - PIXEL, PIXEL) ? "right" : "WRONG");
    if (a) clEnqueueUnmapMemObject(queue, im, a, 0, NULL, NULL);
    static const struct { cl_map_flags flags; const char *name; } writes[] = {
        {CL_MAP_WRITE, "write"}, {CL_MAP_READ | CL_MAP_WRITE, "read and write"}, {CL_MAP_WRITE_INVALIDATE_REGION, "invalidate"}};
    for (int i = 0; i < 3; i++) {
        a = map(&s, im, writes[i].flags, &row, &slice);
        if (!a) {
            SAY(L("%s map to %s", id, writes[i].name), "%s", dt_name(err));
            continue;
        }
        write_map(&s, a, row, slice, 10 + i);
        clEnqueueUnmapMemObject(queue, im, a, 0, NULL, NULL);
        SAY(L("%s map to %s", id, writes[i].name), "%s", content(&s, im));
    }
    fill(want, bytes, 20);
    ERR(L("%s write", id), clEnqueueWriteImage(queue, im, CL_TRUE, zero, s.all, 0, 0, want, 0, NULL, NULL));
    SAY(L("%s written", id), "%s", content(&s, im));
    a = map(&s, im, CL_MAP_READ, &row, &slice); // then the program's memory is what the image is
    if (use) SAY(L("%s the program's", id), "%s %s", same(&s, host, s.row, s.slice), outside(&s));
    if (use && a) clEnqueueUnmapMemObject(queue, im, a, 0, NULL, NULL);
    ERR(L("%s release%s", id, use ? "" : " while mapped"), clReleaseMemObject(im));
    clFinish(queue);
    if (use) SAY(L("%s end", id), "%s", ended(ends, 1)); // the next one uses the same memory
}

// released is an image of USE that is let go with work under way: the program's memory is its own again when the
// destructor has told, and no byte is written later.
static void released(const struct kind *k, int padded) {
    const char *id = strdup(L("%s%s released", k->name, padded ? " padded" : ""));
    struct shape s = shape(k, padded);
    size_t bytes = s.all[0] * s.all[1] * s.all[2] * PIXEL;
    fill(want, bytes, 2);
    lay(&s);
    int *ends = next++;
    cl_mem im = make(k, &s, padded, CL_MEM_USE_HOST_PTR, host);
    if (!im) {
        SAY(id, "%s", dt_name(err));
        return;
    }
    clSetMemObjectDestructorCallback(im, destroyed, ends);
    fill(want, bytes, 3);
    clEnqueueWriteImage(queue, im, CL_FALSE, zero, s.all, 0, 0, want, 0, NULL, NULL);
    clReleaseMemObject(im);
    clFinish(queue);
    SAY(id, "%s", ended(ends, 1));
    memset(host, 0x77, sizeof host);
    memcpy(before, host, sizeof host);
    for (int i = 0; i < 3; i++) { // other work, which may bring what is late
        cl_mem other = make(k, &s, 0, 0, NULL);
        clEnqueueWriteImage(queue, other, CL_TRUE, zero, s.all, 0, 0, want, 0, NULL, NULL);
        clReleaseMemObject(other);
        clFinish(queue);
    }
    SAY(L("%s nothing later", id), "%s", memcmp(host, before, sizeof host) ? "WRONG" : "right");
}

enum { SIDE = 16, BYTES = SIDE * SIDE * PIXEL };
static unsigned char below[BYTES] __attribute__((aligned(4096)));

// parent is an image over a buffer that has its memory in this way, in three states of the buffer.
static void parent(int flat, int w) {
    const char *id = strdup(L("%s over %s", flat ? "2d" : "1d buffer", ways[w].name));
    const struct shape s = {{flat ? SIDE : SIDE * SIDE, flat ? SIDE : 1, 1}, flat ? SIDE * PIXEL : BYTES, 0};
    cl_image_desc d = {.image_type = flat ? CL_MEM_OBJECT_IMAGE2D : CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = s.all[0]};
    if (flat) d.image_height = SIDE, d.image_row_pitch = SIDE * PIXEL;
    for (int state = 0; state < 4; state++) {
        static const char *const states[] = {"mapped first", "mapped later", "released first", "released while mapped"};
        const char *label = strdup(L("%s, buffer %s", id, states[state]));
        fill(below, BYTES, 5);
        memcpy(want, below, BYTES);
        cl_mem buf = clCreateBuffer(context, ways[w].flag, BYTES, ways[w].wants ? below : NULL, &err), im;
        must(err, "clCreateBuffer");
        if (!ways[w].wants) clEnqueueWriteBuffer(queue, buf, CL_TRUE, 0, BYTES, want, 0, NULL, NULL);
        unsigned char *p = NULL;
        if (state == 0) p = clEnqueueMapBuffer(queue, buf, CL_TRUE, CL_MAP_READ, 0, BYTES, 0, NULL, NULL, &err);
        d.buffer = buf;
        im = clCreateImage(context, 0, &rgba8, &d, NULL, &err);
        SAY(L("%s made", label), "%s", dt_name(err));
        if (!im) {
            clReleaseMemObject(buf);
            continue;
        }
        int *ends = next++;
        clSetMemObjectDestructorCallback(buf, destroyed, ends);
        clSetMemObjectDestructorCallback(im, destroyed, ends);
        if (state == 1) p = clEnqueueMapBuffer(queue, buf, CL_TRUE, CL_MAP_READ, 0, BYTES, 0, NULL, NULL, &err);
        SAY(L("%s has", label), "%s %u %u", content(&s, im), maps_mem(buf), maps_mem(im));
        if (p) clEnqueueUnmapMemObject(queue, buf, p, 0, NULL, NULL);
        if (state == 2) ERR(L("%s release", label), clReleaseMemObject(buf));
        size_t row, slice;
        unsigned char *a = map(&s, im, CL_MAP_READ | CL_MAP_WRITE, &row, &slice);
        SAY(L("%s map", label), "%s %s", dt_name(err), a ? same(&s, a, s.row, 0) : "");
        if (state == 3) ERR(L("%s release", label), clReleaseMemObject(buf));
        if (a) {
            write_map(&s, a, s.row, 0, 30 + state);
            ERR(L("%s unmap", label), clEnqueueUnmapMemObject(queue, im, a, 0, NULL, NULL));
        }
        SAY(L("%s written", label), "%s", content(&s, im));
        if (state < 2) {
            clEnqueueReadBuffer(queue, buf, CL_TRUE, 0, BYTES, got, 0, NULL, NULL);
            SAY(L("%s in the buffer", label), "%s", same(&s, got, s.row, 0));
            clReleaseMemObject(buf);
        }
        AWAIT(refs_mem(im) == 1); // PoCL lets go of a command's memory a moment after its end
        SAY(L("%s references", label), "%u", refs_mem(im));
        ERR(L("%s release image", label), clReleaseMemObject(im));
        clFinish(queue);
        SAY(L("%s destructors", label), "%s", natively ? "skipped" : ended(ends, 2)); // PoCL 3.1 never tells of the buffer's end
    }
}

int main(void) {
    setup(0);
    char name[64] = "";
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
    natively = strncmp(name, "Tendril", 7) != 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int w = 0; w < 7; w++) {
            refused(&kinds[k], w);
            for (int padded = 0; w < 5 && padded <= ways[w].wants; padded++) sweep(&kinds[k], w, padded);
            for (int padded = 0; w == 1 && padded < 2; padded++) released(&kinds[k], padded);
        }
    for (int flat = 0; flat < 2; flat++)
        for (int w = 0; w < 5; w++) parent(flat, w);
    return 0;
}
