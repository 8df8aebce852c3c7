// Images and samplers: every argument wrong in turn, what the queries answer, every format of every dimension.
#include "dt.h"

static unsigned char host[1 << 16], got[1 << 16];

static const struct { cl_mem_object_type type; const char *name; } kinds[] = {
    {CL_MEM_OBJECT_IMAGE1D, "1d"}, {CL_MEM_OBJECT_IMAGE1D_BUFFER, "1d buffer"}, {CL_MEM_OBJECT_IMAGE1D_ARRAY, "1d array"},
    {CL_MEM_OBJECT_IMAGE2D, "2d"}, {CL_MEM_OBJECT_IMAGE2D_ARRAY, "2d array"}, {CL_MEM_OBJECT_IMAGE3D, "3d"},
};

static cl_image_desc shape(cl_mem_object_type type) {
    cl_image_desc d = {.image_type = type, .image_width = 8};
    if (type == CL_MEM_OBJECT_IMAGE2D || type == CL_MEM_OBJECT_IMAGE2D_ARRAY || type == CL_MEM_OBJECT_IMAGE3D) d.image_height = 6;
    if (type == CL_MEM_OBJECT_IMAGE3D) d.image_depth = 4;
    if (type == CL_MEM_OBJECT_IMAGE1D_ARRAY || type == CL_MEM_OBJECT_IMAGE2D_ARRAY) d.image_array_size = 5;
    return d;
}

static const cl_image_format rgba8 = {CL_RGBA, CL_UNSIGNED_INT8};

// try_image says what a creation gives, and lets the image go.
static void try_image(const char *label, cl_mem_flags flags, const cl_image_format *f, const cl_image_desc *d, void *p) {
    cl_mem m;
    MAKE(label, m, clCreateImage(context, flags, f, d, p, &err));
    if (m) clReleaseMemObject(m);
}

static int by_format(const void *a, const void *b) {
    const cl_image_format *x = a, *y = b;
    if (x->image_channel_order != y->image_channel_order) return x->image_channel_order < y->image_channel_order ? -1 : 1;
    return x->image_channel_data_type < y->image_channel_data_type ? -1 : x->image_channel_data_type > y->image_channel_data_type;
}

static void formats(void) {
    cl_image_format list[512];
    cl_uint n;
    static const cl_mem_flags access[] = {CL_MEM_READ_WRITE, CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY, CL_MEM_KERNEL_READ_AND_WRITE, 0};
    for (int k = 0; k < 6; k++)
        for (int a = 0; a < 5; a++) {
            n = 0;
            cl_int e = clGetSupportedImageFormats(context, access[a], kinds[k].type, 512, list, &n);
            qsort(list, n, sizeof *list, by_format);
            SAY(L("formats %s %d", kinds[k].name, a), "%s %u %016llx", dt_name(e), n, (unsigned long long)dt_hash(list, n * sizeof *list));
        }
    ERR("formats null context", clGetSupportedImageFormats(NULL, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, NULL, &n));
    ERR("formats of a buffer", clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_BUFFER, 0, NULL, &n));
    ERR("formats of type 0", clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, 0, 0, NULL, &n));
    ERR("formats flags unknown", clGetSupportedImageFormats(context, 1 << 20, CL_MEM_OBJECT_IMAGE2D, 0, NULL, &n));
    ERR("formats flags RW|RO", clGetSupportedImageFormats(context, CL_MEM_READ_WRITE | CL_MEM_READ_ONLY, CL_MEM_OBJECT_IMAGE2D, 0, NULL, &n));
    ERR("formats entries 0", clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, list, &n));
    ERR("formats nothing wanted", clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, NULL, NULL));
    memset(got, 0xAB, 64);
    ERR("formats one entry", clGetSupportedImageFormats(context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 1, (void *)got, &n));
    SAY("formats one entry rest", "%d", got[sizeof *list] == 0xAB);
}

static void describe(void) {
    for (int k = 0; k < 6; k++) {
        cl_image_desc d = shape(kinds[k].type);
        cl_image_desc base = d;
        if (d.image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER) continue;
        const char *n = kinds[k].name;
        try_image(L("%s good", n), 0, &rgba8, &d, NULL);
        try_image(L("%s null format", n), 0, NULL, &d, NULL);
        d.image_width = 0; try_image(L("%s width 0", n), 0, &rgba8, &d, NULL); d = base;
        d.image_width = (size_t)1 << 40; try_image(L("%s width 2^40", n), 0, &rgba8, &d, NULL); d = base;
        d.image_width = ~(size_t)0; try_image(L("%s width -1", n), 0, &rgba8, &d, NULL); d = base;
        d.image_height = 0; try_image(L("%s height 0", n), 0, &rgba8, &d, NULL); d = base;
        d.image_height = (size_t)1 << 40; if (base.image_height) try_image(L("%s height 2^40", n), 0, &rgba8, &d, NULL); d = base;
        d.image_depth = 0; try_image(L("%s depth 0", n), 0, &rgba8, &d, NULL); d = base;
        d.image_array_size = 0; try_image(L("%s array 0", n), 0, &rgba8, &d, NULL); d = base;
        d.image_array_size = (size_t)1 << 40; if (base.image_array_size) try_image(L("%s array 2^40", n), 0, &rgba8, &d, NULL); d = base;
        // Mip levels and samples are left out: natively PoCL ends the program there.
        d.image_row_pitch = 64; try_image(L("%s row pitch without memory", n), 0, &rgba8, &d, NULL); d = base;
        d.image_slice_pitch = 4096; try_image(L("%s slice pitch without memory", n), 0, &rgba8, &d, NULL); d = base;
        d.image_row_pitch = 31; try_image(L("%s row pitch 31", n), CL_MEM_COPY_HOST_PTR, &rgba8, &d, host); d = base;
        d.image_row_pitch = 34; try_image(L("%s row pitch 34", n), CL_MEM_COPY_HOST_PTR, &rgba8, &d, host); d = base;
        d.image_row_pitch = 64; try_image(L("%s row pitch 64", n), CL_MEM_COPY_HOST_PTR, &rgba8, &d, host); d = base;
        d.image_row_pitch = 64; try_image(L("%s row pitch 64 own", n), CL_MEM_USE_HOST_PTR, &rgba8, &d, host); d = base;
        d.image_slice_pitch = 100; try_image(L("%s slice pitch 100", n), CL_MEM_COPY_HOST_PTR, &rgba8, &d, host); d = base;
        d.image_slice_pitch = 1024; try_image(L("%s slice pitch 1024", n), CL_MEM_COPY_HOST_PTR, &rgba8, &d, host); d = base;
        try_image(L("%s memory without flag", n), 0, &rgba8, &d, host);
        try_image(L("%s flag without memory", n), CL_MEM_COPY_HOST_PTR, &rgba8, &d, NULL);
        try_image(L("%s use flag without memory", n), CL_MEM_USE_HOST_PTR, &rgba8, &d, NULL);
        try_image(L("%s use and copy", n), CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR, &rgba8, &d, host);
        try_image(L("%s use and alloc", n), CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR, &rgba8, &d, host);
        try_image(L("%s alloc and copy", n), CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR, &rgba8, &d, host);
        try_image(L("%s flags RW and RO", n), CL_MEM_READ_WRITE | CL_MEM_READ_ONLY, &rgba8, &d, NULL);
        try_image(L("%s flags RO and WO", n), CL_MEM_WRITE_ONLY | CL_MEM_READ_ONLY, &rgba8, &d, NULL);
        try_image(L("%s flags host RO and WO", n), CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY, &rgba8, &d, NULL);
        try_image(L("%s flags unknown", n), 1 << 20, &rgba8, &d, NULL);
        try_image(L("%s flags kernel read and write", n), CL_MEM_KERNEL_READ_AND_WRITE, &rgba8, &d, NULL);
        d.buffer = (cl_mem)host; try_image(L("%s a wild buffer", n), 0, &rgba8, &d, NULL); d = base;
    }
    cl_image_desc d = shape(CL_MEM_OBJECT_IMAGE2D);
    cl_mem m;
    try_image("null description", 0, &rgba8, NULL, NULL);
    MAKE("null context", m, clCreateImage(NULL, 0, &rgba8, &d, NULL, &err));
    static const struct { cl_uint order, type; const char *name; } bad[] = {
        {0, CL_UNORM_INT8, "order 0"}, {CL_RGBA, 0, "type 0"}, {0x10FF, CL_UNORM_INT8, "order unknown"}, {CL_RGBA, 0x10FF, "type unknown"},
        {CL_RGBA, CL_UNORM_SHORT_565, "RGBA 565"}, {CL_RGB, CL_FLOAT, "RGB float"}, {CL_RGB, CL_UNORM_SHORT_565, "RGB 565"},
        {CL_BGRA, CL_FLOAT, "BGRA float"}, {CL_ARGB, CL_FLOAT, "ARGB float"}, {CL_ARGB, CL_UNORM_INT8, "ARGB 8"}, {CL_INTENSITY, CL_SIGNED_INT8, "I int8"},
        {CL_INTENSITY, CL_FLOAT, "I float"}, {CL_LUMINANCE, CL_FLOAT, "L float"}, {CL_LUMINANCE, CL_UNSIGNED_INT8, "L uint8"}, {CL_Rx, CL_FLOAT, "Rx float"}, {CL_RGx, CL_FLOAT, "RGx float"},
        {CL_RGBx, CL_UNORM_SHORT_555, "RGBx 555"}, {CL_DEPTH, CL_FLOAT, "depth float"}, {CL_DEPTH, CL_UNORM_INT16, "depth 16"}, {CL_DEPTH, CL_UNORM_INT8, "depth 8"},
        {CL_sRGBA, CL_UNORM_INT8, "sRGBA 8"}, {CL_sRGBA, CL_FLOAT, "sRGBA float"}, {CL_sRGB, CL_UNORM_INT8, "sRGB 8"}, {CL_sBGRA, CL_UNORM_INT8, "sBGRA 8"}, {CL_ABGR, CL_UNORM_INT8, "ABGR 8"},
        {CL_A, CL_FLOAT, "A float"}, {CL_RA, CL_FLOAT, "RA float"}, {CL_R, CL_HALF_FLOAT, "R half"}, {CL_RG, CL_SIGNED_INT32, "RG int32"}, {CL_RGB, CL_UNORM_INT_101010, "RGB 101010"},
        {CL_RGBA, CL_UNORM_INT_101010_2, "RGBA 101010 2"}, {CL_RGBA, CL_UNORM_INT24, "RGBA 24"}, {CL_DEPTH_STENCIL, CL_UNORM_INT24, "depth stencil 24"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cl_image_format f = {bad[i].order, bad[i].type};
        try_image(L("format %s", bad[i].name), 0, &f, &d, NULL);
    }
    static const cl_uint types[] = {0, CL_MEM_OBJECT_BUFFER, CL_MEM_OBJECT_PIPE, 0x10FF};
    for (int i = 0; i < 4; i++) {
        d.image_type = types[i];
        try_image(L("image type %x", types[i]), 0, &rgba8, &d, NULL);
    }
    d = shape(CL_MEM_OBJECT_IMAGE2D);
    cl_mem_properties none[] = {0}, some[] = {0x4321, 1, 0};
    MAKE("properties null", m, clCreateImageWithProperties(context, NULL, 0, &rgba8, &d, NULL, &err));
    if (m) clReleaseMemObject(m);
    MAKE("properties empty", m, clCreateImageWithProperties(context, none, 0, &rgba8, &d, NULL, &err));
    if (m) clReleaseMemObject(m);
    MAKE("properties unknown", m, clCreateImageWithProperties(context, some, 0, &rgba8, &d, NULL, &err));
    if (m) clReleaseMemObject(m);
}

static void deprecated(void) {
    cl_mem m;
    MAKE("2D good", m, clCreateImage2D(context, 0, &rgba8, 8, 6, 0, NULL, &err)); if (m) clReleaseMemObject(m);
    MAKE("2D null format", m, clCreateImage2D(context, 0, NULL, 8, 6, 0, NULL, &err)); if (m) clReleaseMemObject(m);
    MAKE("2D null context", m, clCreateImage2D(NULL, 0, &rgba8, 8, 6, 0, NULL, &err));
    MAKE("2D width 0", m, clCreateImage2D(context, 0, &rgba8, 0, 6, 0, NULL, &err)); if (m) clReleaseMemObject(m);
    MAKE("2D pitch without memory", m, clCreateImage2D(context, 0, &rgba8, 8, 6, 64, NULL, &err)); if (m) clReleaseMemObject(m);
    MAKE("2D pitch", m, clCreateImage2D(context, CL_MEM_COPY_HOST_PTR, &rgba8, 8, 6, 64, host, &err)); if (m) clReleaseMemObject(m);
    MAKE("3D good", m, clCreateImage3D(context, 0, &rgba8, 8, 6, 4, 0, 0, NULL, &err)); if (m) clReleaseMemObject(m);
    MAKE("3D depth 0", m, clCreateImage3D(context, 0, &rgba8, 8, 6, 0, 0, 0, NULL, &err)); if (m) clReleaseMemObject(m);
    MAKE("3D pitches", m, clCreateImage3D(context, CL_MEM_COPY_HOST_PTR, &rgba8, 8, 6, 4, 64, 1024, host, &err)); if (m) clReleaseMemObject(m);
}

static void all_info(const char *name, cl_mem m, cl_mem under, void *own) {
    char n[64];
    snprintf(n, sizeof n, "%s", name);
    static const cl_uint numbers[] = {CL_IMAGE_ELEMENT_SIZE, CL_IMAGE_ROW_PITCH, CL_IMAGE_SLICE_PITCH, CL_IMAGE_WIDTH, CL_IMAGE_HEIGHT, CL_IMAGE_DEPTH, CL_IMAGE_ARRAY_SIZE};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        size_t v = 0, size = 0;
        cl_int e = clGetImageInfo(m, numbers[i], sizeof v, &v, &size);
        SAY(L("%s info %x", n, numbers[i]), "%s %zu bytes: %zu", dt_name(e), size, v);
    }
    cl_uint u = 77, w = 77;
    cl_mem b = (cl_mem)7;
    size_t s = 0, size = 0;
    cl_image_format f = {0};
    cl_int e = clGetImageInfo(m, CL_IMAGE_FORMAT, sizeof f, &f, &size);
    SAY(L("%s info format", n), "%s %zu bytes: %x %x", dt_name(e), size, f.image_channel_order, f.image_channel_data_type);
    e = clGetImageInfo(m, CL_IMAGE_BUFFER, sizeof b, &b, &size);
    SAY(L("%s info buffer", n), "%s %zu bytes %s", dt_name(e), size, b == under ? "as given" : "another");
    e = clGetImageInfo(m, CL_IMAGE_NUM_MIP_LEVELS, sizeof u, &u, &size);
    SAY(L("%s info mip levels", n), "%s %zu bytes: %u", dt_name(e), size, u);
    e = clGetImageInfo(m, CL_IMAGE_NUM_SAMPLES, sizeof w, &w, &size);
    SAY(L("%s info samples", n), "%s %zu bytes: %u", dt_name(e), size, w);
    ERR(L("%s info unknown", n), clGetImageInfo(m, 0x1FFF, sizeof s, &s, &size));
    ERR(L("%s info small", n), clGetImageInfo(m, CL_IMAGE_WIDTH, 4, &s, &size));
    cl_mem_object_type type = 0;
    cl_mem_flags flags = 0;
    void *p = (void *)7;
    e = clGetMemObjectInfo(m, CL_MEM_TYPE, sizeof type, &type, &size);
    SAY(L("%s mem type", n), "%s %zu bytes: %x", dt_name(e), size, type);
    e = clGetMemObjectInfo(m, CL_MEM_FLAGS, sizeof flags, &flags, &size);
    SAY(L("%s mem flags", n), "%s %zu bytes: %llx", dt_name(e), size, (unsigned long long)flags);
    e = clGetMemObjectInfo(m, CL_MEM_SIZE, sizeof s, &s, &size);
    SAY(L("%s mem size", n), "%s %zu bytes: %zu", dt_name(e), size, s);
    e = clGetMemObjectInfo(m, CL_MEM_HOST_PTR, sizeof p, &p, &size);
    SAY(L("%s mem host", n), "%s %zu bytes %s", dt_name(e), size, p == own ? "as given" : p ? "another" : "none");
    e = clGetMemObjectInfo(m, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof b, &b, &size);
    SAY(L("%s mem associated", n), "%s %zu bytes %s", dt_name(e), size, b == under ? "as given" : b ? "another" : "none");
    e = clGetMemObjectInfo(m, CL_MEM_OFFSET, sizeof s, &s, &size);
    SAY(L("%s mem offset", n), "%s %zu", dt_name(e), s);
    e = clGetMemObjectInfo(m, CL_MEM_MAP_COUNT, sizeof u, &u, &size);
    SAY(L("%s mem maps", n), "%s %u", dt_name(e), u);
    SAY(L("%s mem references", n), "%u", refs_mem(m));
}

static void info(void) {
    for (int k = 0; k < 6; k++)
        for (int own = 0; own < 4; own++) {
            cl_image_desc d = shape(kinds[k].type);
            cl_mem under = NULL;
            cl_mem_flags flags = own == 3 ? CL_MEM_COPY_HOST_PTR | CL_MEM_READ_ONLY : own ? CL_MEM_USE_HOST_PTR : CL_MEM_WRITE_ONLY | CL_MEM_HOST_READ_ONLY;
            if (d.image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER) {
                if (own) continue;
                d.buffer = under = buffer(CL_MEM_READ_WRITE, 64, NULL);
                flags = 0;
            }
            if (own >= 2) d.image_row_pitch = 64;
            if (own >= 2 && (d.image_depth || d.image_array_size)) d.image_slice_pitch = d.image_height ? 1024 : 128;
            cl_mem m;
            MAKE(L("%s %d create", kinds[k].name, own), m, clCreateImage(context, flags, &rgba8, &d, own ? host : NULL, &err));
            if (!m) continue;
            all_info(L("%s %d", kinds[k].name, own), m, under, own ? host : NULL);
            if (under) {
                SAY(L("%s buffer references", kinds[k].name), "%u", refs_mem(under));
                clReleaseMemObject(under);
                ERR(L("%s %d info of its buffer", kinds[k].name, own), clGetMemObjectInfo(under, CL_MEM_REFERENCE_COUNT, 0, NULL, NULL));
            }
            ERR(L("%s %d retain", kinds[k].name, own), clRetainMemObject(m));
            ERR(L("%s %d release", kinds[k].name, own), clReleaseMemObject(m));
            ERR(L("%s %d release last", kinds[k].name, own), clReleaseMemObject(m));
        }
    size_t s;
    ERR("image info of null", clGetImageInfo(NULL, CL_IMAGE_WIDTH, sizeof s, &s, NULL));
}

static void samplers(void) {
    cl_sampler s;
    static const cl_uint modes[] = {CL_ADDRESS_NONE, CL_ADDRESS_CLAMP_TO_EDGE, CL_ADDRESS_CLAMP, CL_ADDRESS_REPEAT, CL_ADDRESS_MIRRORED_REPEAT};
    for (int normal = 0; normal < 2; normal++)
        for (int m = 0; m < 5; m++)
            for (cl_uint f = CL_FILTER_NEAREST; f <= CL_FILTER_LINEAR; f++) {
                char n[64];
                snprintf(n, sizeof n, "sampler %d %x %x", normal, modes[m], f);
                MAKE(L("%s", n), s, clCreateSampler(context, normal, modes[m], f, &err));
                if (!s) continue;
                cl_bool b = 9;
                cl_uint a = 9, g = 9, refs = 9;
                cl_context c = NULL;
                size_t size = 99;
                clGetSamplerInfo(s, CL_SAMPLER_NORMALIZED_COORDS, sizeof b, &b, NULL);
                clGetSamplerInfo(s, CL_SAMPLER_ADDRESSING_MODE, sizeof a, &a, NULL);
                clGetSamplerInfo(s, CL_SAMPLER_FILTER_MODE, sizeof g, &g, NULL);
                clGetSamplerInfo(s, CL_SAMPLER_REFERENCE_COUNT, sizeof refs, &refs, NULL);
                clGetSamplerInfo(s, CL_SAMPLER_CONTEXT, sizeof c, &c, NULL);
                cl_int e = clGetSamplerInfo(s, CL_SAMPLER_PROPERTIES, 0, NULL, &size);
                SAY(L("%s info", n), "%u %x %x refs %u context %d properties %s %zu", b, a, g, refs, c == context, dt_name(e), size);
                ERR(L("%s release", n), clReleaseSampler(s));
            }
    static const cl_uint bad[][3] = {{2, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST}, {1, 0, CL_FILTER_NEAREST}, {1, 0x1135, CL_FILTER_NEAREST}, {1, CL_ADDRESS_CLAMP, 0}, {1, CL_ADDRESS_CLAMP, 0x1142}};
    for (int i = 0; i < 5; i++) {
        MAKE(L("sampler bad %d", i), s, clCreateSampler(context, bad[i][0], bad[i][1], bad[i][2], &err));
        if (s) clReleaseSampler(s);
    }
    MAKE("sampler null context", s, clCreateSampler(NULL, 1, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST, &err));
    static const cl_sampler_properties lists[][9] = {
        {0}, {CL_SAMPLER_NORMALIZED_COORDS, CL_FALSE, 0}, {CL_SAMPLER_ADDRESSING_MODE, CL_ADDRESS_REPEAT, 0}, {CL_SAMPLER_FILTER_MODE, CL_FILTER_LINEAR, 0},
        {CL_SAMPLER_NORMALIZED_COORDS, CL_TRUE, CL_SAMPLER_ADDRESSING_MODE, CL_ADDRESS_MIRRORED_REPEAT, CL_SAMPLER_FILTER_MODE, CL_FILTER_LINEAR, 0},
        {CL_SAMPLER_NORMALIZED_COORDS, 2, 0}, {0x1160, 1, 0},
        {CL_SAMPLER_FILTER_MODE, CL_FILTER_LINEAR, CL_SAMPLER_FILTER_MODE, CL_FILTER_LINEAR, 0}, {CL_SAMPLER_REFERENCE_COUNT, 1, 0},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        MAKE(L("sampler list %zu", i), s, clCreateSamplerWithProperties(context, lists[i], &err));
        if (!s) continue;
        cl_sampler_properties back[16] = {77};
        size_t size = 99;
        cl_uint v[3] = {9, 9, 9};
        cl_int e = clGetSamplerInfo(s, CL_SAMPLER_PROPERTIES, sizeof back, back, &size);
        SAY(L("sampler list %zu properties", i), "%s %zu %016llx", dt_name(e), size, (unsigned long long)dt_hash(back, size < sizeof back ? size : 0));
        for (int k = 0; k < 3; k++) clGetSamplerInfo(s, CL_SAMPLER_NORMALIZED_COORDS + k, sizeof v[k], &v[k], NULL);
        SAY(L("sampler list %zu info", i), "%x %x %x", v[0], v[1], v[2]);
        clReleaseSampler(s);
    }
    MAKE("sampler list null", s, clCreateSamplerWithProperties(context, NULL, &err));
    if (s) clReleaseSampler(s);
    s = clCreateSampler(context, 1, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST, &err);
    if (s) {
        cl_uint v;
        ERR("sampler info unknown", clGetSamplerInfo(s, 0x1159, sizeof v, &v, NULL));
        ERR("sampler info small", clGetSamplerInfo(s, CL_SAMPLER_CONTEXT, 4, &v, NULL));
        ERR("sampler retain", clRetainSampler(s));
        ERR("sampler release", clReleaseSampler(s));
        ERR("sampler release last", clReleaseSampler(s));
    }
    ERR("sampler info null", clGetSamplerInfo(NULL, CL_SAMPLER_CONTEXT, 0, NULL, NULL));
    ERR("sampler retain null", clRetainSampler(NULL));
    ERR("sampler release null", clReleaseSampler(NULL));
}

static void over_buffers(void) {
    cl_mem b = buffer(CL_MEM_READ_WRITE, 1024, NULL), ro = buffer(CL_MEM_READ_ONLY, 1024, NULL), m;
    cl_image_desc d = {.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = 256, .buffer = b};
    try_image("1d buffer good", 0, &rgba8, &d, NULL);
    d.image_width = 257; try_image("1d buffer too wide", 0, &rgba8, &d, NULL);
    d.image_width = 0; try_image("1d buffer width 0", 0, &rgba8, &d, NULL);
    d.image_width = 256;
    try_image("1d buffer with memory", CL_MEM_COPY_HOST_PTR, &rgba8, &d, host);
    try_image("1d buffer alloc", CL_MEM_ALLOC_HOST_PTR, &rgba8, &d, NULL);
    d.image_row_pitch = 1024; try_image("1d buffer row pitch", 0, &rgba8, &d, NULL); d.image_row_pitch = 0;
    d.buffer = NULL; try_image("1d buffer without buffer", 0, &rgba8, &d, NULL);
    d.buffer = ro; try_image("1d buffer of a RO buffer", CL_MEM_READ_WRITE, &rgba8, &d, NULL);
    try_image("1d buffer WO of a RO buffer", CL_MEM_WRITE_ONLY, &rgba8, &d, NULL);
    try_image("1d buffer RO of a RO buffer", CL_MEM_READ_ONLY, &rgba8, &d, NULL);
    MAKE("1d buffer inherits", m, clCreateImage(context, 0, &rgba8, &d, NULL, &err));
    if (m) {
        cl_mem_flags f = 77;
        clGetMemObjectInfo(m, CL_MEM_FLAGS, sizeof f, &f, NULL);
        SAY("1d buffer inherited flags", "%llx", (unsigned long long)f);
        clReleaseMemObject(m);
    }
    cl_image_desc t = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 8, .image_height = 8, .buffer = b};
    try_image("2d of a buffer", 0, &rgba8, &t, NULL);
    t.image_row_pitch = 32; try_image("2d of a buffer, row pitch", 0, &rgba8, &t, NULL);
    t.image_height = 100; try_image("2d of a buffer too high", 0, &rgba8, &t, NULL);
    clReleaseMemObject(b); clReleaseMemObject(ro);
}

int main(void) {
    setup(0);
    formats();
    describe();
    deprecated();
    info();
    samplers();
    over_buffers();
    return 0;
}
