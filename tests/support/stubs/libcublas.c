/* A cuBLAS without a GPU: notes every call in a file, one line each, and keeps to the library's own rules: a change of
   the stream takes the workspace away. $STUB_LOG is the file; $STUB_CUBLAS_FAILS is a call that fails, with 13. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { void *stream, *workspace; size_t bytes; } Handle;

static FILE *notes(void) {
    static FILE *file;
    if (!file) { file = fopen(getenv("STUB_LOG"), "a"); setvbuf(file, NULL, _IOLBF, 1 << 16); }
    return file;
}

static int ends(const char *call) {
    const char *failing = getenv("STUB_CUBLAS_FAILS");
    return failing && !strcmp(failing, call) ? 13 : 0;
}

int cublasCreate_v2(Handle **handle) {
    *handle = calloc(1, sizeof(Handle));
    fprintf(notes(), "cublasCreate\n");
    return ends("cublasCreate");
}
int cublasDestroy_v2(Handle *handle) { fprintf(notes(), "cublasDestroy\n"); free(handle); return 0; }
int cublasGetVersion_v2(Handle *handle, int *version) { *version = 130000; return 0; }
const char *cublasGetStatusString(int status) {
    return status == 13 ? "the function failed to launch on the GPU" : "unknown";
}
int cublasSetStream_v2(Handle *handle, void *stream) {
    handle->stream = stream; handle->workspace = NULL; handle->bytes = 0;
    return ends("cublasSetStream");
}
int cublasSetWorkspace_v2(Handle *handle, void *workspace, size_t bytes) {
    handle->workspace = workspace; handle->bytes = bytes;
    return ends("cublasSetWorkspace");
}

static int product(const char *call, Handle *handle, int ta, int tb, int m, int n, int k, const void *alpha,
                   const void *a, int kind, int lda, long long sa, const void *b, int ldb, long long sb,
                   const void *beta, void *c, int ldc, long long sc, int count, int compute, int algorithm) {
    int wide = compute == 70;
    double one = wide ? *(const double *)alpha : *(const float *)alpha;
    double more = wide ? *(const double *)beta : *(const float *)beta;
    fprintf(notes(), "%s stream=%llu workspace=%llu bytes=%zu ta=%d tb=%d m=%d n=%d k=%d alpha=%g a=%llu kind=%d lda=%d "
            "sa=%lld b=%llu ldb=%d sb=%lld beta=%g c=%llu ldc=%d sc=%lld count=%d compute=%d algorithm=%d\n", call,
            (unsigned long long)handle->stream, (unsigned long long)handle->workspace, handle->bytes, ta, tb, m, n, k,
            one, (unsigned long long)a, kind, lda, sa, (unsigned long long)b, ldb, sb, more, (unsigned long long)c, ldc,
            sc, count, compute, algorithm);
    return ends(call);
}

int cublasGemmEx(Handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda,
                 const void *b, int bt, int ldb, const void *beta, void *c, int ct, int ldc, int compute, int algo) {
    if (at != bt || at != ct) return 7;
    return product("cublasGemm", h, ta, tb, m, n, k, alpha, a, at, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1, compute, algo);
}
int cublasGemmStridedBatchedEx(Handle *h, int ta, int tb, int m, int n, int k, const void *alpha,
                               const void *a, int at, int lda, long long sa, const void *b, int bt, int ldb,
                               long long sb, const void *beta, void *c, int ct, int ldc, long long sc, int count,
                               int compute, int algo) {
    if (at != bt || at != ct) return 7;
    return product("cublasGemm", h, ta, tb, m, n, k, alpha, a, at, lda, sa, b, ldb, sb, beta, c, ldc, sc, count,
                   compute, algo);
}
