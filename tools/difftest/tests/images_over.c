// Images over buffers: every flag of the buffer with every flag of the image, and whose bytes both show.
#include "dt.h"

enum { BYTES = 4096, SIDE = 16 }; // an image of SIDE × SIDE × 4 bytes, or as many in one row
static unsigned char host[2 * BYTES] __attribute__((aligned(4096))), want[BYTES], got[BYTES], px[BYTES];
static const cl_image_format rgba8 = {CL_RGBA, CL_UNSIGNED_INT8};
static int natively;

static const struct { cl_mem_flags flag; const char *name; } rights[] = {
    {0, ""}, {CL_MEM_READ_WRITE, "RW"}, {CL_MEM_READ_ONLY, "RO"}, {CL_MEM_WRITE_ONLY, "WO"},
}, of_host[] = {
    {0, ""}, {CL_MEM_HOST_READ_ONLY, "HRO"}, {CL_MEM_HOST_WRITE_ONLY, "HWO"}, {CL_MEM_HOST_NO_ACCESS, "HNO"},
}, memory[] = {
    {0, "own"}, {CL_MEM_COPY_HOST_PTR, "copy"}, {CL_MEM_USE_HOST_PTR, "use"}, {CL_MEM_ALLOC_HOST_PTR, "alloc"},
    {CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR, "alloc|copy"},
};

// under makes the buffer of the images, or a part of one.
static cl_mem under(cl_mem_flags flags, int part) {
    void *p = flags & (CL_MEM_COPY_HOST_PTR | CL_MEM_USE_HOST_PTR) ? host : NULL;
    if (p) fill(host, sizeof host, 7);
    cl_mem m = clCreateBuffer(context, flags, part ? 2 * BYTES : BYTES, p, &err);
    if (!m || !part) return m;
    cl_buffer_region r = {BYTES, BYTES};
    cl_mem s = clCreateSubBuffer(m, 0, CL_BUFFER_CREATE_TYPE_REGION, &r, &err);
    clReleaseMemObject(m);
    return s;
}

static cl_mem over(cl_mem_flags flags, int flat, cl_mem b, void *p) {
    cl_image_desc d = {.image_type = flat ? CL_MEM_OBJECT_IMAGE2D : CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = SIDE * SIDE, .buffer = b};
    if (flat) d.image_width = d.image_height = SIDE, d.image_row_pitch = SIDE * 4;
    return clCreateImage(context, flags, &rgba8, &d, p, &err);
}

// may says whether an image may have these flags over a buffer with those (table 15 of 5.2.1).
static const char *may(cl_mem_flags image, cl_mem_flags buffer) {
    int no = (buffer & CL_MEM_WRITE_ONLY && image & (CL_MEM_READ_WRITE | CL_MEM_READ_ONLY)) ||
             (buffer & CL_MEM_READ_ONLY && image & (CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY)) ||
             (buffer & CL_MEM_HOST_WRITE_ONLY && image & CL_MEM_HOST_READ_ONLY) ||
             (buffer & CL_MEM_HOST_READ_ONLY && image & CL_MEM_HOST_WRITE_ONLY) ||
             (buffer & CL_MEM_HOST_NO_ACCESS && image & (CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY));
    return no ? "may not have" : "has";
}

// inherit tries the flags of the image with those of its buffer.
static void inherit(int part, int flat, int a, int h, int m) {
    const char *id = strdup(L("%s%s over %s,%s,%s", flat ? "2d" : "1d", part ? " part" : "", rights[a].name, of_host[h].name, memory[m].name));
    cl_mem b = under(rights[a].flag | of_host[h].flag | memory[m].flag, part);
    if (!b) {
        SAY(id, "%s", dt_name(err));
        return;
    }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            cl_mem_flags f = 77;
            void *p = &p;
            const char *label = L("%s %s %s,%s", id, may(rights[i].flag | of_host[k].flag, rights[a].flag | of_host[h].flag), rights[i].name, of_host[k].name);
            cl_mem of = NULL, im = over(rights[i].flag | of_host[k].flag, flat, b, NULL);
            if (!im) {
                SAY(label, "%s", dt_name(err));
                continue;
            }
            clGetMemObjectInfo(im, CL_MEM_FLAGS, sizeof f, &f, NULL);
            clGetMemObjectInfo(im, CL_MEM_HOST_PTR, sizeof p, &p, NULL);
            clGetMemObjectInfo(im, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof of, &of, NULL);
            SAY(label, "%s flags %llx at %s of %s", dt_name(err), (unsigned long long)f,
                !p ? "none" : p == host ? "the program's" : p == host + BYTES ? "the program's part" : "other", of == b ? "the buffer" : "another");
            clReleaseMemObject(im);
        }
    for (int k = 1; k < 5; k++)
        for (int given = 0; given < 2; given++) {
            cl_mem im = over(memory[k].flag, flat, b, given ? px : NULL);
            SAY(L("%s may not have %s%s", id, memory[k].name, given ? " given" : ""), "%s", dt_name(err));
            if (im) clReleaseMemObject(im);
        }
    cl_mem im = over(0, flat, b, px);
    SAY(L("%s may not have given", id), "%s", dt_name(err));
    if (im) clReleaseMemObject(im);
    clReleaseMemObject(b);
}

static const char *same(const void *a, const void *b) { return memcmp(a, b, SIDE * SIDE * 4) ? "WRONG" : "right"; }

// bytes looks at the same memory through the image and through the buffer.
static void bytes(int part, int flat, int m) {
    const char *id = strdup(L("%s%s bytes of %s", flat ? "2d" : "1d", part ? " part" : "", memory[m].name));
    const size_t n = SIDE * SIDE * 4, zero[3] = {0}, all[3] = {flat ? SIDE : SIDE * SIDE, flat ? SIDE : 1, 1};
    cl_mem b = under(memory[m].flag, part), im = b ? over(0, flat, b, NULL) : NULL;
    SAY(L("%s made", id), "%s", dt_name(err));
    if (!im) return;
    const unsigned char *first = host + (part ? BYTES : 0);
    if (memory[m].flag & (CL_MEM_COPY_HOST_PTR | CL_MEM_USE_HOST_PTR)) {
        ERR(L("%s first", id), clEnqueueReadImage(queue, im, CL_TRUE, zero, all, 0, 0, got, 0, NULL, NULL));
        SAY(L("%s first are", id), "%s", same(got, first));
    }
    fill(want, n, 1);
    ERR(L("%s write image", id), clEnqueueWriteImage(queue, im, CL_TRUE, zero, all, 0, 0, want, 0, NULL, NULL));
    ERR(L("%s read buffer", id), clEnqueueReadBuffer(queue, b, CL_TRUE, 0, n, got, 0, NULL, NULL));
    SAY(L("%s image to buffer", id), "%s", same(got, want));
    fill(want, n, 2);
    ERR(L("%s write buffer", id), clEnqueueWriteBuffer(queue, b, CL_TRUE, 0, n, want, 0, NULL, NULL));
    ERR(L("%s read image", id), clEnqueueReadImage(queue, im, CL_TRUE, zero, all, 0, 0, got, 0, NULL, NULL));
    SAY(L("%s buffer to image", id), "%s", same(got, want));
    size_t row = 0, slice = 0;
    unsigned char *p = clEnqueueMapImage(queue, im, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, zero, all, &row, flat ? NULL : &slice, 0, NULL, NULL, &err);
    SAY(L("%s map image", id), "%s %s", dt_name(err), p ? same(p, want) : "");
    if (p) {
        fill(want, n, 3);
        memcpy(p, want, n);
        ERR(L("%s unmap image", id), clEnqueueUnmapMemObject(queue, im, p, 0, NULL, NULL));
        clFinish(queue);
        clEnqueueReadBuffer(queue, b, CL_TRUE, 0, n, got, 0, NULL, NULL);
        SAY(L("%s map to buffer", id), "%s", same(got, want));
    }
    p = clEnqueueMapBuffer(queue, b, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, n, 0, NULL, NULL, &err);
    SAY(L("%s map buffer", id), "%s %s", dt_name(err), p ? same(p, want) : "");
    if (p) {
        fill(want, n, 4);
        memcpy(p, want, n);
        clEnqueueUnmapMemObject(queue, b, p, 0, NULL, NULL);
        clEnqueueReadImage(queue, im, CL_TRUE, zero, all, 0, 0, got, 0, NULL, NULL);
        SAY(L("%s map to image", id), "%s", same(got, want));
    }
    // PoCL 3.1 ends with SIGSEGV in copies and fills of such a 1D image.
    cl_image_desc d = {.image_type = CL_MEM_OBJECT_IMAGE1D, .image_width = all[0]};
    if (flat) d.image_type = CL_MEM_OBJECT_IMAGE2D, d.image_height = SIDE;
    cl_mem other = clCreateImage(context, 0, &rgba8, &d, NULL, &err), second = over(0, flat, b, NULL), third = NULL, b3 = under(0, 0);
    third = over(0, flat, b3, NULL);
    must(err, "clCreateImage");
    if (!flat && natively) {
        static const char *const skipped[] = {"copy out", "copied out", "copy in", "copied in", "copy on itself", "copy between", "copied between"};
        for (int i = 0; i < 7; i++) SAY(L("%s %s", id, skipped[i]), "skipped");
    } else {
        ERR(L("%s copy out", id), clEnqueueCopyImage(queue, im, other, zero, zero, all, 0, NULL, NULL));
        clEnqueueReadImage(queue, other, CL_TRUE, zero, all, 0, 0, got, 0, NULL, NULL);
        SAY(L("%s copied out", id), "%s", same(got, want));
        fill(want, n, 5);
        clEnqueueWriteImage(queue, other, CL_TRUE, zero, all, 0, 0, want, 0, NULL, NULL);
        ERR(L("%s copy in", id), clEnqueueCopyImage(queue, other, im, zero, zero, all, 0, NULL, NULL));
        clEnqueueReadBuffer(queue, b, CL_TRUE, 0, n, got, 0, NULL, NULL);
        SAY(L("%s copied in", id), "%s", same(got, want));
        ERR(L("%s copy on itself", id), clEnqueueCopyImage(queue, im, second, zero, zero, all, 0, NULL, NULL));
        ERR(L("%s copy between", id), clEnqueueCopyImage(queue, im, third, zero, zero, all, 0, NULL, NULL));
        clEnqueueReadBuffer(queue, b3, CL_TRUE, 0, n, got, 0, NULL, NULL);
        SAY(L("%s copied between", id), "%s", same(got, want));
    }
    if (other) clReleaseMemObject(other);
    if (second) clReleaseMemObject(second);
    if (third) clReleaseMemObject(third);
    clReleaseMemObject(b3);
    // The image keeps its buffer.
    clEnqueueWriteBuffer(queue, b, CL_TRUE, 0, n, want, 0, NULL, NULL);
    ERR(L("%s release buffer", id), clReleaseMemObject(b));
    ERR(L("%s read image alone", id), clEnqueueReadImage(queue, im, CL_TRUE, zero, all, 0, 0, got, 0, NULL, NULL));
    SAY(L("%s image alone", id), "%s", same(got, want));
    ERR(L("%s release image", id), clReleaseMemObject(im));
    if (memory[m].flag & CL_MEM_USE_HOST_PTR) SAY(L("%s the program's", id), "%s", same(first, want));
}

int main(void) {
    setup(0);
    char name[64] = "";
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
    natively = strncmp(name, "Tendril", 7) != 0;
    for (int part = 0; part < 2; part++)
        for (int flat = 0; flat < 2; flat++) {
            for (int m = 0; m < 5; m++) bytes(part, flat, m);
            for (int a = 0; a < 4; a++)
                for (int h = 0; h < 4; h++)
                    for (int m = 0; m < 5; m++)
                        if (!part || h == 0) inherit(part, flat, a, h, m);
        }
    return 0;
}
