// A vendor library that passes everything on to PoCL and keeps a second mapping of every large segment that its worker maps for writing. Once the
// file "write" lies beside it, it writes through each of them, and says so in "wrote".
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { Most = 256, Large = 1 << 20 };
static char here[4096];
static struct { unsigned long inode; volatile unsigned *at; } kept[Most];
static int count;

static int known(unsigned long inode) {
    for (int i = 0; i < count; i++)
        if (kept[i].inode == inode) return 1;
    return 0;
}

static void look(void) {
    char line[512], rights[8];
    unsigned long from, to, inode;
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &from, &to, rights, &inode) != 4) continue;
        if (strcmp(rights, "rw-s") || !strstr(line, "memfd:tendril") || to - from < Large || count == Most || known(inode)) continue;
        void *again = mremap((void *)from, 0, to - from, MREMAP_MAYMOVE);
        if (again == MAP_FAILED) continue;
        kept[count].inode = inode;
        kept[count++].at = again;
        fprintf(stderr, "keeps: %lu of its own\n", inode);
    }
    if (f) fclose(f);
}

static void *keep(void *unused) {
    (void)unused;
    char path[4200];
    for (snprintf(path, sizeof path, "%s/write", here); access(path, F_OK); usleep(200)) look();
    for (int i = 0; i < count; i++) kept[i].at[0] = 99;
    fprintf(stderr, "keeps: wrote to %d mappings\n", count);
    return NULL;
}

static void *pocl(void) {
    static void *lib;
    if (!lib) lib = dlopen(POCL, RTLD_NOW | RTLD_LOCAL);
    return lib;
}

__attribute__((constructor)) static void load(void) {
    Dl_info info;
    pthread_t thread;
    if (!dladdr((void *)load, &info)) return;
    snprintf(here, sizeof here, "%s", info.dli_fname);
    *strrchr(here, '/') = 0;
    pthread_create(&thread, NULL, keep, NULL);
}

int clIcdGetPlatformIDsKHR(unsigned n, void *ids, unsigned *count) {
    int (*get)(unsigned, void *, unsigned *) = pocl() ? (int (*)(unsigned, void *, unsigned *))dlsym(pocl(), "clIcdGetPlatformIDsKHR") : NULL;
    return get ? get(n, ids, count) : -1001;
}

void *clGetExtensionFunctionAddress(const char *name) {
    void *(*get)(const char *) = pocl() ? (void *(*)(const char *))dlsym(pocl(), "clGetExtensionFunctionAddress") : NULL;
    return get ? get(name) : NULL;
}
