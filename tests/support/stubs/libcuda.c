/* A driver without a GPU: notes every call that gives, orders or ends work in a file, one line each, and refuses what
   the driver refuses: a stream or an event in a context that is not its own, and memory, streams and events that are not
   there. Work happens at once; "device" memory is the host's. $STUB_LOG is the file; $STUB_CUDA_FAILS is a call that fails
   (719); $STUB_CUDA_GPUS is how many GPUs there are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int number, magic; } Context;
typedef struct { int number, magic; Context *context; } Object; /* a stream or an event */
enum { CONTEXT = 0x11c7, STREAM = 0x57e4, EVENT = 0xe7e4, MODULE = 0x30d1, GONE = 0xdead };
static Context contexts[8];
static __thread Context *current;
static int streams, events;

static FILE *notes(void) {
    static FILE *file;
    if (!file) { file = fopen(getenv("STUB_LOG"), "a"); setvbuf(file, NULL, _IOLBF, 1 << 16); }
    return file;
}
#define NOTE(...) fprintf(notes(), __VA_ARGS__)
static int fails(const char *call) {
    const char *failing = getenv("STUB_CUDA_FAILS");
    return failing && !strcmp(failing, call);
}
static int gpus(void) { const char *n = getenv("STUB_CUDA_GPUS"); return n ? atoi(n) : 1; }
static int wrong(Object *object, int magic) { /* CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE */
    if (!current) return 201;
    return !object || object->magic != magic || object->context != current ? 400 : 0;
}
#define NEED(object, magic) do { int bad = wrong(object, magic); if (bad) return bad; } while (0)
#define MAY_FAIL(call) do { if (fails(call)) return 719; } while (0)

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = gpus(); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < gpus() ? 0 : 101; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Stub GPU %d", device); return 0; }
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, device, 16); return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)1 << 34; return 0; }
int cuDevicePrimaryCtxRetain(Context **context, int device) {
    contexts[device].number = device; contexts[device].magic = CONTEXT;
    *context = &contexts[device];
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuCtxGetCurrent(Context **context) { *context = current; return 0; }
int cuCtxSetCurrent(Context *context) { current = context; NOTE("cuCtxSetCurrent gpu=%d\n", context ? context->number : -1); return 0; }
int cuCtxPushCurrent_v2(Context *context) { return cuCtxSetCurrent(context); }
int cuCtxPopCurrent_v2(Context **context) { *context = current; return 0; }
int cuCtxGetDevice(int *device) { if (!current) return 201; *device = current->number; return 0; }
int cuCtxGetId(Context *context, unsigned long long *id) { *id = 1 + (context ? context : current)->number; return 0; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return 0; }
int cuMemGetInfo_v2(size_t *free_, size_t *total) { if (!current) return 201; *free_ = (size_t)1 << 33; *total = (size_t)1 << 34; return 0; }

/* Memory: with the GPU that it is on, -1 for page-locked memory. */
typedef struct { uintptr_t address; size_t bytes; int gpu; } Piece;
static Piece pieces[1 << 14];
static int taken;
static void *take(size_t bytes, int gpu) {
    void *address = aligned_alloc(256, (bytes + 255) / 256 * 256);
    pieces[taken++] = (Piece){(uintptr_t)address, bytes, gpu};
    return address;
}
static int give(uintptr_t address, int host) {
    for (int i = 0; i < taken; i++)
        if (pieces[i].address == address && (pieces[i].gpu < 0) == host) {
            free((void *)address); pieces[i] = pieces[--taken]; return 0;
        }
    return 1; /* CUDA_ERROR_INVALID_VALUE */
}
int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
    if (!current) return 201;
    if (bytes > (size_t)1 << 33) return 2;
    *address = (uintptr_t)take(bytes, current->number);
    NOTE("cuMemAlloc gpu=%d bytes=%zu address=%lu\n", current->number, bytes, *address);
    return 0;
}
int cuMemFree_v2(uintptr_t address) { if (!current) return 201; NOTE("cuMemFree address=%lu\n", address); return give(address, 0); }
int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
    if (!current) return 201;
    MAY_FAIL("cuMemHostAlloc");
    *address = take(bytes, -1);
    NOTE("cuMemHostAlloc bytes=%zu address=%lu\n", bytes, (uintptr_t)*address);
    return 0;
}
int cuMemFreeHost(void *address) { if (!current) return 201; NOTE("cuMemFreeHost address=%lu\n", (uintptr_t)address); return give((uintptr_t)address, 1); }

/* Streams and events. */
static Object *made(int magic, int number) {
    Object *object = malloc(sizeof(Object));
    *object = (Object){number, magic, current};
    return object;
}
static int destroyed(Object *object, int magic) {
    if (!object || object->magic != magic) return 400;
    object->magic = GONE; /* kept, so that a later use is seen */
    return 0;
}
int cuStreamCreate(Object **stream, unsigned flags) {
    if (!current) return 201;
    *stream = made(STREAM, streams++);
    NOTE("cuStreamCreate stream=%d gpu=%d flags=%u address=%lu\n", (*stream)->number, current->number, flags, (uintptr_t)*stream);
    return 0;
}
int cuStreamDestroy_v2(Object *stream) { NOTE("cuStreamDestroy stream=%d\n", stream->number); return destroyed(stream, STREAM); }
int cuStreamGetCtx(Object *stream, Context **context) { *context = stream->context; return 0; }
int cuStreamGetFlags(Object *stream, unsigned *flags) { *flags = 1; return 0; }
int cuStreamGetPriority(Object *stream, int *priority) { *priority = 0; return 0; }
int cuEventCreate(Object **event, unsigned flags) {
    if (!current) return 201;
    *event = made(EVENT, events++);
    NOTE("cuEventCreate event=%d flags=%u\n", (*event)->number, flags);
    return 0;
}
int cuEventDestroy_v2(Object *event) { NOTE("cuEventDestroy event=%d\n", event->number); return destroyed(event, EVENT); }
int cuEventRecord(Object *event, Object *stream) {
    NEED(event, EVENT); NEED(stream, STREAM); MAY_FAIL("cuEventRecord");
    NOTE("cuEventRecord event=%d stream=%d\n", event->number, stream->number);
    return 0;
}
int cuStreamWaitEvent(Object *stream, Object *event, unsigned flags) {
    NEED(event, EVENT); NEED(stream, STREAM);
    NOTE("cuStreamWaitEvent stream=%d event=%d\n", stream->number, event->number);
    return 0;
}
int cuEventSynchronize(Object *event) { NEED(event, EVENT); NOTE("cuEventSynchronize event=%d\n", event->number); return 0; }
int cuEventQuery(Object *event) { NEED(event, EVENT); return 0; }
int cuEventElapsedTime(float *ms, Object *start, Object *end) { NEED(start, EVENT); NEED(end, EVENT); *ms = 0.01f; return 0; }
int cuEventElapsedTime_v2(float *ms, Object *start, Object *end) { return cuEventElapsedTime(ms, start, end); }

/* Work. */
int cuMemcpyAsync(uintptr_t to, uintptr_t origin, size_t bytes, Object *stream) {
    NEED(stream, STREAM); MAY_FAIL("cuMemcpyAsync");
    NOTE("cuMemcpyAsync to=%lu origin=%lu bytes=%zu stream=%d\n", to, origin, bytes, stream->number);
    memmove((void *)to, (void *)origin, bytes);
    return 0;
}
int cuMemsetD8Async(uintptr_t address, unsigned char byte, size_t bytes, Object *stream) {
    NEED(stream, STREAM);
    NOTE("cuMemsetD8Async address=%lu byte=%d bytes=%zu stream=%d\n", address, byte, bytes, stream->number);
    memset((void *)address, byte, bytes);
    return 0;
}
typedef struct { char name[256]; int magic; } Function;
int cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned n, void *c, void *d, unsigned m) {
    *library = malloc(8); NOTE("cuLibraryLoadData\n"); return 0;
}
int cuLibraryUnload(void *library) { return 0; }
int cuLibraryGetKernel(Function **kernel, void *library, const char *name) {
    MAY_FAIL("cuLibraryGetKernel");
    *kernel = calloc(1, sizeof(Function)); snprintf((*kernel)->name, 256, "%s", name); return 0;
}
int cuKernelGetFunction(Function **function, Function *kernel) { *function = kernel; return 0; }
int cuKernelGetAttribute(int *value, int attribute, Function *kernel, int device) { *value = 1024; return 0; }
int cuFuncGetAttribute(int *value, int attribute, Function *kernel) { *value = 1024; return 0; }
/* The kernel's name says its parameters, one letter each: p pointer, l int64, i int32, f float, d double. */
static int launched(Function *f, unsigned blocks, unsigned threads, unsigned shared, Object *stream, void **parameters) {
    NEED(stream, STREAM); MAY_FAIL("cuLaunchKernel");
    NOTE("cuLaunchKernel blocks=%u threads=%u stream=%d", blocks, threads, stream->number);
    const char *kinds = strrchr(f->name, '_') + 1;
    for (int i = 0; kinds[i]; i++)
        switch (kinds[i]) {
            case 'p': NOTE(" p%d=%lu", i, *(uintptr_t *)parameters[i]); break;
            case 'l': NOTE(" l%d=%ld", i, *(int64_t *)parameters[i]); break;
            case 'i': NOTE(" i%d=%d", i, *(int32_t *)parameters[i]); break;
            case 'f': NOTE(" f%d=%.9g", i, *(float *)parameters[i]); break;
            case 'd': NOTE(" d%d=%.17g", i, *(double *)parameters[i]); break;
        }
    NOTE("\n");
    return 0;
}
int cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, Object *stream, void **parameters, void **extra) {
    return launched(f, gx * gy * gz, bx * by * bz, shared, stream, parameters);
}
typedef struct { unsigned gx, gy, gz, bx, by, bz, shared; Object *stream; void *attributes; unsigned count; } Config;
int cuLaunchKernelEx(const Config *c, Function *f, void **parameters, void **extra) {
    return launched(f, c->gx * c->gy * c->gz, c->bx * c->by * c->bz, c->shared, c->stream, parameters);
}

/* What cuDNN's engines want of a driver when their plans are built: all of it succeeds. */
static int something(void **made) { *made = calloc(1, sizeof(Function)); return 0; }
int cuModuleLoadData(void **module, const void *code) { NOTE("cuModuleLoadData\n"); return something(module); }
int cuModuleLoadDataEx(void **module, const void *code, unsigned n, void *a, void *b) { return cuModuleLoadData(module, code); }
int cuModuleGetFunction(void **function, void *module, const char *name) { return something(function); }
int cuModuleUnload(void *module) { return 0; }
int cuLibraryLoadFromFile(void **library, const char *file, void *a, void *b, unsigned n, void *c, void *d, unsigned m) {
    NOTE("cuLibraryLoadFromFile\n");
    return something(library);
}
int cuLinkCreate_v2(unsigned n, void *a, void *b, void **link) { NOTE("cuLinkCreate\n"); return something(link); }
int cuLinkCreate(unsigned n, void *a, void *b, void **link) { return cuLinkCreate_v2(n, a, b, link); }
int cuLinkAddData(void *link, int kind, void *data, size_t bytes, const char *name, unsigned n, void *a, void *b) { return 0; }
int cuLinkAddData_v2(void *link, int kind, void *data, size_t bytes, const char *name, unsigned n, void *a, void *b) { return 0; }
int cuLinkComplete(void *link, void **code, size_t *bytes) { *bytes = 8; return something(code); }
int cuLinkDestroy(void *link) { return 0; }
int cuTensorMapEncodeTiled(void) { return 0; }
int cuTensorMapEncodeIm2col(void) { return 0; }
int cuOccupancyMaxPotentialClusterSize(int *size, void *kernel, void *config) { *size = 8; return 0; }
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device) { return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuCtxGetLimit(size_t *value, int limit) { *value = 1 << 20; return 0; }
int cuCtxPushCurrent(Context *context) { return cuCtxSetCurrent(context); }
int cuCtxPopCurrent(Context **context) { return cuCtxPopCurrent_v2(context); }
int cuLaunchCooperativeKernel(void) { return 0; }

int cuGetErrorName(int code, const char **text) {
    *text = code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
        : code == 400 ? "CUDA_ERROR_INVALID_HANDLE" : code == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
int cuGetErrorString(int code, const char **text) { *text = "in the words of the stub"; return 0; }
static int absent(void) { return 801; /* CUDA_ERROR_NOT_SUPPORTED */ }
int cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status) {
    char name[128];
    static void *self;
    if (!self) { Dl_info info; dladdr((void *)cuInit, &info); self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD); }
    snprintf(name, sizeof name, "%s_v2", symbol);
    if (!(*address = dlsym(self, name)) && !(*address = dlsym(self, symbol))) *address = (void *)absent;
    if (!strcmp(symbol, "cuGetProcAddress")) *address = (void *)cuGetProcAddress_v2;
    if (status) *status = 0;
    return 0;
}
int cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, address, version, flags, NULL);
}
