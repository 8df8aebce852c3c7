// Images over other memory objects: every kind of parent with every kind of image, size, pitch, format and flags; and
// parents that are mapped or released.
#define _GNU_SOURCE
#include "dt.h"

enum { SIDE = 16, BYTES = SIDE * SIDE * 4 };
static unsigned char host[4 * BYTES] __attribute__((aligned(4096)));
static const cl_image_format formats[] = {
    {CL_RGBA, CL_UNSIGNED_INT8}, {CL_BGRA, CL_UNORM_INT8}, {CL_RGBA, CL_UNORM_INT8}, {CL_R, CL_UNSIGNED_INT8},
    {CL_RGBA, CL_FLOAT}, {CL_RGBA, 0x9999},
};
static const char *const format_names[] = {"rgba8", "bgra", "unorm", "r8", "float", "wild"};
static const size_t zero[3];

static const struct { cl_mem_object_type type; const char *name; size_t w, h, d, layers; } kinds[] = {
    {CL_MEM_OBJECT_BUFFER, "buffer", SIDE * SIDE, 0, 0, 0},
    {CL_MEM_OBJECT_IMAGE1D, "1d", SIDE, 0, 0, 0},
    {CL_MEM_OBJECT_IMAGE1D_BUFFER, "1d buffer", SIDE * SIDE, 0, 0, 0},
    {CL_MEM_OBJECT_IMAGE1D_ARRAY, "1d array", SIDE, 0, 0, 4},
    {CL_MEM_OBJECT_IMAGE2D, "2d", SIDE, SIDE, 0, 0},
    {CL_MEM_OBJECT_IMAGE2D_ARRAY, "2d array", SIDE, SIDE, 0, 2},
    {CL_MEM_OBJECT_IMAGE3D, "3d", SIDE, SIDE, 2, 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds, FORMATS = sizeof formats / sizeof *formats };

static cl_image_desc desc(int k, cl_mem parent) {
    cl_image_desc d = {.image_type = kinds[k].type, .image_width = kinds[k].w, .image_height = kinds[k].h, .image_depth = kinds[k].d,
                       .image_array_size = kinds[k].layers, .buffer = parent};
    return d;
}

static const char *const parent_names[] = {"buffer", "used buffer", "part", "odd part", "1d", "1d over buffer", "2d", "2d over buffer", "3d", "2d array", "2d over 2d"};
enum { PARENTS = sizeof parent_names / sizeof *parent_names };

static cl_mem image(int k, cl_mem parent, size_t pitch) {
    cl_image_desc d = desc(k, parent);
    d.image_row_pitch = pitch;
    return clCreateImage(context, 0, &formats[0], &d, NULL, &err);
}

// parent makes one; its own parents are released at once.
static cl_mem parent(int i) {
    cl_mem b = NULL, m = NULL;
    cl_buffer_region part = {BYTES, BYTES}, odd = {128, BYTES};
    switch (i) {
    case 0: return clCreateBuffer(context, 0, BYTES, NULL, &err);
    case 1: return clCreateBuffer(context, CL_MEM_USE_HOST_PTR, BYTES, host, &err);
    case 2:
    case 3:
        b = clCreateBuffer(context, 0, 4 * BYTES, NULL, &err);
        m = clCreateSubBuffer(b, 0, CL_BUFFER_CREATE_TYPE_REGION, i == 2 ? &part : &odd, &err);
        break;
    case 4: return image(1, NULL, 0);
    case 5:
    case 7:
        b = clCreateBuffer(context, 0, BYTES, NULL, &err);
        m = image(i == 5 ? 2 : 4, b, i == 5 ? 0 : SIDE * 4);
        break;
    case 6: return image(4, NULL, 0);
    case 8: return image(6, NULL, 0);
    case 9: return image(5, NULL, 0);
    case 10:
        b = image(4, NULL, 0);
        m = image(4, b, 0);
        break;
    }
    if (b) clReleaseMemObject(b);
    return m;
}

static cl_int release_if(cl_mem m) { return m ? clReleaseMemObject(m) : CL_SUCCESS; }

// made says what came of an image over a parent, and lets it go.
static void made(const char *label, cl_mem m, cl_mem p) {
    if (!m) {
        SAY(label, "%s", dt_name(err));
        return;
    }
    size_t w = 99, h = 99, row = 99, slice = 99, layers = 99, offset = 99, size = 99;
    cl_mem of = NULL, buffer = NULL;
    cl_mem_flags flags = 99;
    void *at = &at;
    clGetImageInfo(m, CL_IMAGE_WIDTH, sizeof w, &w, NULL), clGetImageInfo(m, CL_IMAGE_HEIGHT, sizeof h, &h, NULL);
    clGetImageInfo(m, CL_IMAGE_ROW_PITCH, sizeof row, &row, NULL), clGetImageInfo(m, CL_IMAGE_SLICE_PITCH, sizeof slice, &slice, NULL);
    clGetImageInfo(m, CL_IMAGE_ARRAY_SIZE, sizeof layers, &layers, NULL), clGetImageInfo(m, CL_IMAGE_BUFFER, sizeof buffer, &buffer, NULL);
    clGetMemObjectInfo(m, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof of, &of, NULL), clGetMemObjectInfo(m, CL_MEM_FLAGS, sizeof flags, &flags, NULL);
    clGetMemObjectInfo(m, CL_MEM_OFFSET, sizeof offset, &offset, NULL), clGetMemObjectInfo(m, CL_MEM_SIZE, sizeof size, &size, NULL);
    clGetMemObjectInfo(m, CL_MEM_HOST_PTR, sizeof at, &at, NULL);
    SAY(label, "%s %zu x %zu x %zu, pitches %zu %zu, of %s %s, flags %llx, at %s, offset %zu, size %zu", dt_name(err), w, h, layers, row, slice,
        of == p ? "parent" : of ? "another" : "none", buffer == p ? "parent" : buffer ? "another" : "none", (unsigned long long)flags,
        at == host ? "the program's" : at ? "another" : "none", offset, size);
    clReleaseMemObject(m);
}

static void sizes(int i, cl_mem p) {
    static const struct { const char *name; size_t by, of; } ratio[] = {{"same", 1, 1}, {"half", 1, 2}, {"twice", 2, 1}, {"zero", 0, 1}};
    static const struct { const char *name; size_t bytes; } pitch[] = {{"no pitch", 0}, {"its pitch", SIDE * 4}, {"long pitch", SIDE * 8}, {"odd pitch", SIDE * 4 + 4}, {"short pitch", 4}};
    for (int k = 0; k < KINDS; k++)
        for (int r = 0; r < 4; r++)
            for (int t = 0; t < 5; t++) {
                if (r && t > 1) continue;
                cl_image_desc d = desc(k, p);
                d.image_width = d.image_width * ratio[r].by / ratio[r].of;
                d.image_row_pitch = pitch[t].bytes;
                cl_mem m = clCreateImage(context, 0, &formats[0], &d, NULL, &err);
                made(L("%s over %s, %s, %s", kinds[k].name, parent_names[i], ratio[r].name, pitch[t].name), m, p);
            }
}

static void formats_and_flags(int i, cl_mem p) {
    static const struct { cl_mem_flags flag; const char *name; int host; } flags[] = {
        {0, "none", 0}, {CL_MEM_READ_ONLY, "RO", 0}, {CL_MEM_WRITE_ONLY, "WO", 0}, {CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, "RO|WO", 0},
        {CL_MEM_USE_HOST_PTR, "use", 1}, {CL_MEM_COPY_HOST_PTR, "copy", 1}, {CL_MEM_ALLOC_HOST_PTR, "alloc", 0}, {0, "given", 1},
        {CL_MEM_KERNEL_READ_AND_WRITE, "kernel RW", 0}, {CL_MEM_HOST_NO_ACCESS, "HNO", 0}, {(cl_mem_flags)1 << 40, "wild", 0},
    };
    for (int k = 1; k < KINDS; k++)
        for (int f = 0; f < FORMATS; f++) {
            cl_image_desc d = desc(k, p);
            cl_mem m = clCreateImage(context, 0, &formats[f], &d, NULL, &err);
            made(L("%s over %s as %s", kinds[k].name, parent_names[i], format_names[f]), m, p);
        }
    for (int k = 1; k < KINDS; k++)
        for (unsigned f = 0; f < sizeof flags / sizeof *flags; f++) {
            cl_image_desc d = desc(k, p);
            cl_mem m = clCreateImage(context, flags[f].flag, &formats[0], &d, flags[f].host ? host : NULL, &err);
            made(L("%s over %s with %s", kinds[k].name, parent_names[i], flags[f].name), m, p);
        }
}

// states has images over a parent that is mapped or gone, and over one that is gone meanwhile.
static void states(int i) {
    cl_mem p = parent(i);
    if (!p) return;
    size_t all[3] = {SIDE, SIDE, 1}, row = 0;
    for (int k = 2; k < 5; k += 2) {
        cl_image_desc d = desc(k, p);
        cl_mem m;
        MAKE(L("%s over %s of no context", kinds[k].name, parent_names[i]), m, clCreateImage(NULL, 0, &formats[0], &d, NULL, &err));
        release_if(m);
        if (i > 3 || (i > 1 && k == 2)) continue; // PoCL 3.1 has no 1D image over a part
        void *at = clEnqueueMapBuffer(queue, p, CL_TRUE, CL_MAP_WRITE, 0, BYTES, 0, NULL, NULL, &err);
        MAKE(L("%s over mapped %s", kinds[k].name, parent_names[i]), m, clCreateImage(context, 0, &formats[0], &d, NULL, &err));
        if (at) fill(at, BYTES, 3), clEnqueueUnmapMemObject(queue, p, at, 0, NULL, NULL);
        if (m) {
            unsigned char *seen;
            size_t line[3] = {SIDE * SIDE, 1, 1};
            seen = clEnqueueMapImage(queue, m, CL_TRUE, CL_MAP_READ, zero, k == 4 ? all : line, &row, NULL, 0, NULL, NULL, &err);
            ERR(L("%s over mapped %s, its map", kinds[k].name, parent_names[i]), err);
            if (seen) HASH(L("%s over mapped %s, its bytes", kinds[k].name, parent_names[i]), seen, BYTES), clEnqueueUnmapMemObject(queue, m, seen, 0, NULL, NULL);
            clFinish(queue);
            release_if(m);
        }
    }
    if (i == 5 || i > 6) { // an image keeps what lies under it
        clReleaseMemObject(p);
        return;
    }
    cl_image_desc d = desc(i > 1 ? 4 : 2, p);
    cl_mem m = clCreateImage(context, 0, &formats[0], &d, NULL, &err);
    ERR(L("over %s that goes", parent_names[i]), err);
    ERR(L("%s goes", parent_names[i]), clReleaseMemObject(p));
    if (!m) return;
    size_t line[3] = {SIDE * SIDE, 1, 1};
    fill(host, BYTES, 9);
    unsigned char *got = malloc(BYTES);
    size_t *box = i > 1 ? all : line;
    ERR(L("over %s that is gone, write", parent_names[i]), clEnqueueWriteImage(queue, m, CL_TRUE, zero, box, 0, 0, host, 0, NULL, NULL));
    ERR(L("over %s that is gone, read", parent_names[i]), clEnqueueReadImage(queue, m, CL_TRUE, zero, box, 0, 0, got, 0, NULL, NULL));
    SAY(L("over %s that is gone, bytes", parent_names[i]), "%d", memcmp(got, host, BYTES));
    free(got), clReleaseMemObject(m);
}

int main(void) {
    setup(0);
    for (int i = 0; i < PARENTS; i++) {
        cl_mem p;
        MAKE(L("parent %s", parent_names[i]), p, parent(i));
        if (!p) continue;
        sizes(i, p);
        formats_and_flags(i, p);
        ERR(L("release %s", parent_names[i]), clReleaseMemObject(p));
        states(i);
    }
    return 0;
}
