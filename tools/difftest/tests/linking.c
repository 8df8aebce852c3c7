// Programs in parts: clCompileProgram with embedded headers, clLinkProgram, libraries, binaries of each kind; files that
// sources include.
#include "dt.h"
#include <pthread.h>
#include <sys/stat.h>

static const char *main_source = "#include \"half.h\"\n#include \"sub/twice.h\"\nint helper(int);\n"
    "kernel void run(global int *a) { size_t i = get_global_id(0); a[i] = helper(TWICE(a[i])) + HALF(8); }\n";
static const char *half = "#define HALF(x) ((x) / 2)\n", *twice = "#define TWICE(x) ((x) * 2)\n";
static const char *helper = "int helper(int x) { return x + K; }\n";
static const char *broken = "int helper(int x) { return nothing_of_this_name; }\n";

static cl_program source(const char *text) {
    cl_program p = clCreateProgramWithSource(context, 1, &text, NULL, &err);
    must(err, "source");
    return p;
}

static void status(const char *label, cl_program p) {
    cl_build_status s = 99;
    cl_int e = clGetProgramBuildInfo(p, device, CL_PROGRAM_BUILD_STATUS, sizeof s, &s, NULL);
    cl_program_binary_type t = 99;
    clGetProgramBuildInfo(p, device, CL_PROGRAM_BINARY_TYPE, sizeof t, &t, NULL);
    SAY(label, "%s status %d binary type %u", dt_name(e), s, t);
}

static void says(const char *label, cl_program p, const char *what) {
    static char log[65536];
    log[0] = 0;
    cl_int e = clGetProgramBuildInfo(p, device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL);
    SAY(label, "%s %s", dt_name(e), strstr(log, what) ? "yes" : "no");
}

static void runs(const char *label, cl_program p) {
    int v[4] = {1, 2, 3, 4};
    size_t g = 4;
    cl_mem m = buffer(CL_MEM_COPY_HOST_PTR, sizeof v, v);
    cl_kernel k;
    MAKE(L("%s kernel", label), k, clCreateKernel(p, "run", &err));
    if (k) {
        clSetKernelArg(k, 0, sizeof m, &m);
        ERR(L("%s launch", label), clEnqueueNDRangeKernel(queue, k, 1, NULL, &g, NULL, 0, NULL, NULL));
        clEnqueueReadBuffer(queue, m, CL_TRUE, 0, sizeof v, v, 0, NULL, NULL);
        SAY(L("%s result", label), "%d %d %d %d", v[0], v[1], v[2], v[3]);
        clReleaseKernel(k);
        DETACHED(p);
    }
    clReleaseMemObject(m);
}

static void wrong_compiles(void) {
    cl_program p = source(main_source), h = source(half), built = build("kernel void run(global int *a) {}", "");
    const char *name = "half.h";
    ERR("compile null", clCompileProgram(NULL, 1, &device, "", 0, NULL, NULL, NULL, NULL));
    ERR("compile count without devices", clCompileProgram(p, 1, NULL, "", 0, NULL, NULL, NULL, NULL));
    ERR("compile devices without count", clCompileProgram(p, 0, &device, "", 0, NULL, NULL, NULL, NULL));
    ERR("compile data without callback", clCompileProgram(p, 1, &device, "", 0, NULL, NULL, NULL, &p));
    ERR("compile headers without count", clCompileProgram(p, 1, &device, "", 0, &h, &name, NULL, NULL));
    // PoCL crashes where the headers or their names are NULL.
    ERR("compile bad option", clCompileProgram(p, 1, &device, "-no-such-option", 1, &h, &name, NULL, NULL));
    ERR("compile bad header missing", clCompileProgram(p, 1, &device, "", 1, &h, &name, NULL, NULL));
    status("compile bad header missing, status", p);
    says("compile bad header missing, log", p, "sub/twice.h");
    cl_kernel k = clCreateKernel(built, "run", &err);
    ERR("compile with a kernel", clCompileProgram(built, 1, &device, "", 0, NULL, NULL, NULL, NULL));
    clReleaseKernel(k);
    clReleaseProgram(p); clReleaseProgram(h); clReleaseProgram(built);
}

static void wrong_links(cl_program object) {
    cl_program p;
    MAKE("link null context", p, clLinkProgram(NULL, 1, &device, "", 1, &object, NULL, NULL, &err));
    MAKE("link count without devices", p, clLinkProgram(context, 1, NULL, "", 1, &object, NULL, NULL, &err));
    MAKE("link devices without count", p, clLinkProgram(context, 0, &device, "", 1, &object, NULL, NULL, &err));
    MAKE("link no programs", p, clLinkProgram(context, 1, &device, "", 0, NULL, NULL, NULL, &err));
    MAKE("link programs without count", p, clLinkProgram(context, 1, &device, "", 0, &object, NULL, NULL, &err));
    MAKE("link count without programs", p, clLinkProgram(context, 1, &device, "", 1, NULL, NULL, NULL, &err));
    MAKE("link data without callback", p, clLinkProgram(context, 1, &device, "", 1, &object, NULL, &p, &err));
    MAKE("link bad option", p, clLinkProgram(context, 1, &device, "-no-such-option", 1, &object, NULL, NULL, &err));
    cl_program raw = source(helper);
    MAKE("link what was not compiled", p, clLinkProgram(context, 1, &device, "", 1, &raw, NULL, NULL, &err));
    clReleaseProgram(raw);
}

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cv = PTHREAD_COND_INITIALIZER;
static int called;
static void CL_CALLBACK told(cl_program p, void *data) {
    pthread_mutex_lock(&mu);
    called += *(int *)data;
    pthread_cond_signal(&cv);
    pthread_mutex_unlock(&mu);
}
static void await(int n) {
    pthread_mutex_lock(&mu);
    while (called < n) pthread_cond_wait(&cv, &mu);
    pthread_mutex_unlock(&mu);
}

static cl_program again(const char *label, cl_program p) { // through its binary
    size_t n = 0;
    must(clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof n, &n, NULL), "size");
    unsigned char *b = malloc(n + 1);
    must(clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof b, &b, NULL), "binary");
    cl_int st = 9;
    cl_program q;
    MAKE(label, q, clCreateProgramWithBinary(context, 1, &device, &n, (const unsigned char **)&b, &st, &err));
    free(b);
    return q;
}

static void parts(void) {
    cl_program m = source(main_source), a = source(half), b = source(twice), lib = source(helper), out, exe;
    cl_program headers[2] = {a, b};
    const char *names[2] = {"half.h", "sub/twice.h"};
    ERR("compile main", clCompileProgram(m, 1, &device, "-DX=1", 2, headers, names, NULL, NULL));
    status("compile main, status", m);
    char s[256] = "";
    ERR("compile main, options", clGetProgramBuildInfo(m, device, CL_PROGRAM_BUILD_OPTIONS, sizeof s, s, NULL));
    cl_kernel k;
    MAKE("kernel of an object", k, clCreateKernel(m, "run", &err));
    size_t n = 9;
    ERR("kernels of an object", clGetProgramInfo(m, CL_PROGRAM_NUM_KERNELS, sizeof n, &n, NULL));
    wrong_links(m);
    int one = 1, ten = 10;
    ERR("compile helper with callback", clCompileProgram(lib, 0, NULL, "-DK=100", 0, NULL, NULL, told, &one));
    await(1);
    status("compile helper, status", lib);
    MAKE("link a library", out, clLinkProgram(context, 1, &device, "-create-library", 1, &lib, NULL, NULL, &err));
    if (out) status("link a library, status", out);
    cl_program inputs[2] = {m, out ? out : lib};
    MAKE("link with the library", exe, clLinkProgram(context, 1, &device, "", 2, inputs, NULL, NULL, &err));
    if (exe) {
        status("link with the library, status", exe);
        runs("linked with the library", exe);
        cl_program q = again("linked again", exe);
        if (q) {
            ERR("linked again, build", clBuildProgram(q, 1, &device, "", NULL, NULL));
            runs("linked again", q);
            clReleaseProgram(q);
        }
        cl_uint nd = 0;
        size_t sn = 0;
        ERR("linked source", clGetProgramInfo(exe, CL_PROGRAM_SOURCE, 0, NULL, &sn));
        clGetProgramInfo(exe, CL_PROGRAM_NUM_DEVICES, sizeof nd, &nd, NULL);
        SAY("linked facts", "devices %u", nd);
        clReleaseProgram(exe);
    }
    cl_program objects[2] = {m, lib};
    MAKE("link all with callback", exe, clLinkProgram(context, 0, NULL, "", 2, objects, told, &ten, &err));
    await(11);
    if (exe) { runs("linked with callback", exe); clReleaseProgram(exe); }
    MAKE("link with options of libraries", exe, clLinkProgram(context, 1, &device, "-cl-fast-relaxed-math", 2, objects, NULL, NULL, &err));
    if (exe) { status("link with options of libraries, status", exe); clReleaseProgram(exe); }
    MAKE("link what lacks a function", exe, clLinkProgram(context, 1, &device, "", 1, &m, NULL, NULL, &err));
    if (exe) { status("link what lacks a function, status", exe); clReleaseProgram(exe); }
    cl_program q = again("object again", lib);
    if (q) {
        objects[1] = q;
        MAKE("link an object from its binary", exe, clLinkProgram(context, 1, &device, "", 2, objects, NULL, NULL, &err));
        if (exe) { runs("linked from a binary", exe); clReleaseProgram(exe); }
        clReleaseProgram(q);
    }
    cl_program bad = source(broken);
    ERR("compile broken", clCompileProgram(bad, 1, &device, "", 0, NULL, NULL, NULL, NULL));
    status("compile broken, status", bad);
    says("compile broken, log", bad, "nothing_of_this_name");
    ERR("compile again", clCompileProgram(lib, 1, &device, "-DK=7", 0, NULL, NULL, NULL, NULL));
    objects[1] = lib;
    MAKE("link again", exe, clLinkProgram(context, 1, &device, "", 2, objects, NULL, NULL, &err));
    if (exe) { runs("linked again with another", exe); clReleaseProgram(exe); }
    ERR("build what was compiled", clBuildProgram(lib, 1, &device, "-DK=7", NULL, NULL));
    status("build what was compiled, status", lib);
    clReleaseProgram(m); clReleaseProgram(a); clReleaseProgram(b); clReleaseProgram(lib); clReleaseProgram(bad);
    if (out) clReleaseProgram(out);
}

static void put(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) exit(3);
}

static void try(const char *label, const char *text, const char *options) {
    cl_program p = source(text);
    ERR(label, clBuildProgram(p, 1, &device, options, NULL, NULL));
    says(L("%s, log says where", label), p, "inner.h:2");
    says(L("%s, log says not found", label), p, "not found");
    runs(label, p);
    clReleaseProgram(p);
}

#define KERNEL "\nkernel void run(global int *a) { size_t i = get_global_id(0); a[i] = V + a[i]; }\n"
static void files(void) {
    static char dir[] = "/tmp/difftest-XXXXXX", text[4096], options[4096];
    if (!mkdtemp(dir) || chdir(dir)) exit(3);
    mkdir("inc", 0700); mkdir("inc/deep", 0700); mkdir("other", 0700);
    put("here.h", "#define V 10\n");
    put("inc/outer.h", "#include \"deep/inner.h\"\n#define V W\n");
    put("inc/deep/inner.h", "#pragma once\n#ifdef FAULT\n#error a fault\n#endif\n#include <far.h>\n");
    put("other/far.h", "#define W 77\n");
    put("inc/abs.h", "");
    try("include beside the program", "#include \"here.h\"" KERNEL, "");
    try("include in brackets", "#include <here.h>" KERNEL, "");
    try("include nested", "#include \"outer.h\"" KERNEL, "-I inc -Iother");
    try("include nested, the other missing", "#include \"outer.h\"" KERNEL, "-I inc");
    try("include with a fault", "#include \"outer.h\"" KERNEL, "-DFAULT -I inc -I other");
    try("include nobody", "#include \"nobody.h\"" KERNEL, "-I inc");
    try("include by a macro", "#define NAME \"outer.h\"\n#include NAME" KERNEL, "-I inc -I other");
    try("include by a string made", "#include M2S(IP/outer.h)" KERNEL, "-D IP=inc -D XM2S(x)=#x -D M2S(x)=XM2S(x) -I other");
    try("include in a branch not taken", "#if 0\n#include \"nobody.h\"\n#endif\n#define V 3" KERNEL, "");
    try("include twice", "#include \"outer.h\"\n#include \"outer.h\"\n#include \"../inc/deep/inner.h\"" KERNEL, "-I inc -I other");
    snprintf(options, sizeof options, "-I %s/inc -I%s/other", dir, dir);
    try("include by an absolute directory", "#include \"outer.h\"" KERNEL, options);
    snprintf(options, sizeof options, "-DFAULT -I %s/inc -I%s/other", dir, dir);
    try("include by an absolute directory, with a fault", "#include \"outer.h\"" KERNEL, options);
    snprintf(text, sizeof text, "#include \"%s/inc/outer.h\"" KERNEL, dir);
    try("include an absolute name", text, "-I other");
    snprintf(options, sizeof options, "-D IP=%s/inc -D XM2S(x)=#x -D M2S(x)=XM2S(x) -I other", dir);
    try("include by an absolute string made", "#include M2S(IP/outer.h)" KERNEL, options);
    put("here.h", "#define V 20\n");
    try("include a file that changed", "#include \"here.h\"" KERNEL, "");
    put("inc/empty.h", "");
    try("include an empty file", "#include \"empty.h\"\n#define V 5" KERNEL, "-I inc");
    cl_program p = source("#include \"half.h\"\n#include \"here.h\"" KERNEL), h = source(half), exe;
    const char *name = "half.h";
    ERR("compile with a header and a file", clCompileProgram(p, 1, &device, "-I .", 1, &h, &name, NULL, NULL));
    MAKE("link it", exe, clLinkProgram(context, 1, &device, "", 1, &p, NULL, NULL, &err));
    if (exe) { runs("linked with a header and a file", exe); clReleaseProgram(exe); }
    clReleaseProgram(p); clReleaseProgram(h);
    static const char *all[] = {"here.h", "inc/outer.h", "inc/deep/inner.h", "other/far.h", "inc/abs.h", "inc/empty.h"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) unlink(all[i]);
    rmdir("inc/deep"); rmdir("inc"); rmdir("other");
    if (chdir("/") || rmdir(dir)) exit(3);
}

int main(void) {
    setup(0);
    wrong_compiles();
    parts();
    files();
    return 0;
}
