/* "No allocation inside the step", libraries included: this program's own malloc, calloc, realloc,
 * the aligned ones and mmap are counted (no preload: symbols of the executable come first), a
 * GPT-2-like sequence of ops runs once in preparing mode with NULL tensors and then for real, and
 * the count must stay at zero from the very first real run. */
#include "tests/kernels/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static atomic_int counting, allocations;
static atomic_size_t last_bytes;

/* Sanitizers own the allocator: with them the sequence runs, uncounted. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COUNTED 0
#endif
#endif
#ifndef COUNTED
#define COUNTED 1
#endif

#if COUNTED

static void count_allocation(size_t bytes)
{
    if (atomic_load(&counting)) {
        atomic_fetch_add(&allocations, 1);
        atomic_store(&last_bytes, bytes);
    }
}

/* glibc's own entry points under other names. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);
extern void *__libc_memalign(size_t align, size_t bytes);

void *malloc(size_t bytes)
{
    count_allocation(bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    count_allocation(n * bytes);
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    count_allocation(bytes);
    return __libc_realloc(p, bytes);
}

void *memalign(size_t align, size_t bytes);
void *memalign(size_t align, size_t bytes)
{
    count_allocation(bytes);
    return __libc_memalign(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    count_allocation(bytes);
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **ret, size_t align, size_t bytes)
{
    count_allocation(bytes);
    *ret = __libc_memalign(align, bytes);
    return *ret ? 0 : 12;
}

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    count_allocation(bytes);
    return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
}

#endif

enum { B = 2, T = 80, C = 96, H = 3, V = 1000, CONTEXT = 128, N = B * T, LAYERS = 2 };

/* Floats of the largest packed form, and its replacement where there is no tensor. */
enum { PACKED = 3 * V * C };
static const float nowhere[16];

/* One slot of a small GPT-2, forward and backward and update; `p` NULL: no tensor exists. */
static float *part(float *p, int64_t *used, int64_t floats)
{
    float *at = p ? p + *used : NULL;
    *used += (floats + 15) / 16 * 16;
    return at;
}

/* A layer with its weight stored as (out, in), after an RMS norm. */
static void turned_ops(const struct dpt_ops *ops, struct dpt_stream *s, enum dpt_dtype dtype,
                       float *p, int64_t *used)
{
    float *x = part(p, used, N * C), *gamma = part(p, used, C), *rstd = part(p, used, N);
    float *h = part(p, used, N * C), *y = part(p, used, N * 4 * C), *dh = part(p, used, N * C);
    float *w = part(p, used, C * 4 * C), *dw = part(p, used, C * 4 * C);
    const struct dpt_pack pack = {DPT_PACK_LINEAR,       4 * C, C, dtype, w,
                                  part(p, used, PACKED), true,  0, 0};
    const void *packed = p ? pack.packed : nowhere;
    assert_true(ops->packed_bytes(s, &pack) <= PACKED * sizeof(float));
    ops->pack(s, &pack);
    ops->layernorm_forward(
        s, &(struct dpt_layernorm_forward){N, C, 1e-5f, dtype, x, gamma, NULL, h, NULL, rstd});
    for (int i = 0; i < 2; i++) {
        const void *form = i > 0 ? packed : NULL;
        ops->linear_forward(s, &(struct dpt_linear_forward){N, C, 4 * C, dtype, h, w, NULL, y, 0,
                                                            false, NULL, form, true});
        ops->linear_backward(s, &(struct dpt_linear_backward){N, C, 4 * C, dtype, h, w, y, 0, dh,
                                                              false, dw, NULL, i > 0, form, NULL,
                                                              true});
    }
    ops->layernorm_backward(s, &(struct dpt_layernorm_backward){N, C, dtype, x, gamma, NULL, rstd,
                                                                dh, h, false, dw, NULL, true});
}

/* A layer with a frozen weight and an adapter: products are added to the second of three adjacent
 * matrices, and read from it. */
static void adapter_ops(const struct dpt_ops *ops, struct dpt_stream *s, enum dpt_dtype dtype,
                        float *p, int64_t *used)
{
    enum { RANK = 5, WIDE = 3 * C };
    float *x = part(p, used, N * C), *w = part(p, used, C * WIDE), *y = part(p, used, N * WIDE);
    float *a = part(p, used, RANK * C), *b = part(p, used, C * RANK), *u = part(p, used, N * RANK);
    float *da = part(p, used, RANK * C), *db = part(p, used, C * RANK);
    float *dx = part(p, used, N * C), *du = part(p, used, N * RANK);
    void *columns = p ? (char *)y + C * dpt_dtype_bytes(dtype) : NULL;
    ops->linear_forward(s, &(struct dpt_linear_forward){N, C, WIDE, dtype, x, w, NULL, y, 0, false,
                                                        NULL, NULL, true});
    ops->linear_forward(s, &(struct dpt_linear_forward){N, C, RANK, dtype, x, a, NULL, u, 0, false,
                                                        NULL, NULL, true});
    ops->scale(s, N * RANK, dtype, 0.5f, u);
    ops->linear_forward(s, &(struct dpt_linear_forward){N, RANK, C, dtype, u, b, NULL, columns,
                                                        WIDE, true, NULL, NULL, true});
    for (int i = 0; i < 2; i++) {
        ops->linear_backward(s,
                             &(struct dpt_linear_backward){N, C, WIDE, dtype, x, w, y, 0, dx, false,
                                                           NULL, NULL, false, NULL, NULL, true});
        ops->linear_backward(s, &(struct dpt_linear_backward){N, RANK, C, dtype, u, b, columns,
                                                              WIDE, du, false, db, NULL, i > 0,
                                                              NULL, NULL, true});
        ops->linear_backward(s,
                             &(struct dpt_linear_backward){N, C, RANK, dtype, x, a, du, 0, dx, true,
                                                           da, NULL, i > 0, NULL, NULL, true});
    }
}

/* A block of a residual network, on images of IMAGE x IMAGE pixels, with a stride of 2. */
static void image_ops(const struct dpt_ops *ops, struct dpt_stream *s, enum dpt_dtype dtype,
                      float *p, int64_t *used)
{
    enum { IMAGE = 12, IN = 24, OUT = 32, K = 3, PIXELS = B * IMAGE * IMAGE / 4 };
    const struct dpt_windows of = {B, IMAGE, IMAGE, K, 2};
    float *x = part(p, used, 4 * PIXELS * IN), *w = part(p, used, IN * OUT * K * K);
    float *y = part(p, used, PIXELS * OUT), *out = part(p, used, PIXELS * OUT);
    float *dx = part(p, used, 4 * PIXELS * IN), *dw = part(p, used, IN * OUT * K * K);
    float *gamma = part(p, used, OUT), *mean = part(p, used, OUT), *rstd = part(p, used, OUT);
    float *var = part(p, used, OUT), *dgamma = part(p, used, OUT), *dbeta = part(p, used, OUT);
    float *dmean = part(p, used, OUT), *dvar = part(p, used, OUT),
          *dy = part(p, used, PIXELS * OUT);
    uint8_t *taken = (uint8_t *)(void *)part(p, used, PIXELS * OUT);
    const struct dpt_pack pack = {.kind = DPT_PACK_CONV,
                                  .rows = OUT,
                                  .cols = IN * K * K,
                                  .dtype = dtype,
                                  .w = w,
                                  .packed = part(p, used, PACKED),
                                  .kernel = K,
                                  .stride = 2};
    const void *packed = p ? pack.packed : nowhere;
    assert_true(ops->packed_bytes(s, &pack) <= PACKED * sizeof(float));
    ops->pack(s, &pack);
    for (int i = 0; i < 2; i++) {
        const void *form = i > 0 ? packed : NULL;
        ops->conv_forward(s, &(struct dpt_conv_forward){of, IN, OUT, dtype, x, w, y, form});
        ops->conv_backward(s, &(struct dpt_conv_backward){of, IN, OUT, dtype, x, w, y, dx, i > 0,
                                                          dw, i > 0, form});
    }
    ops->batchnorm_forward(s, &(struct dpt_batchnorm_forward){PIXELS, OUT, 1e-5f, dtype, y, gamma,
                                                              gamma, y, true, out, NULL, NULL, mean,
                                                              rstd, var});
    ops->batchnorm_forward(s, &(struct dpt_batchnorm_forward){PIXELS, OUT, 1e-5f, dtype, y, gamma,
                                                              gamma, NULL, true, out, gamma, gamma,
                                                              NULL, NULL, NULL});
    ops->batchnorm_backward(s, &(struct dpt_batchnorm_backward){PIXELS, OUT, dtype, y, gamma, mean,
                                                                rstd, var, out, dy, out, dy, dgamma,
                                                                dbeta, dmean, dvar, 0.5f, true});
    ops->maxpool_forward(s, &(struct dpt_maxpool){
                                .of = of, .c = IN, .dtype = dtype, .taken = taken, .x = x, .y = y});
    ops->maxpool_backward(
        s, &(struct dpt_maxpool){
               .of = of, .c = IN, .dtype = dtype, .taken = taken, .dy = y, .dx = dx});
    ops->avgpool_forward(s, &(struct dpt_avgpool){B, PIXELS / B, OUT, dtype, y, dy});
    ops->avgpool_backward(s, &(struct dpt_avgpool){B, PIXELS / B, OUT, dtype, dy, y});
}

static void block_ops(const struct dpt_ops *ops, struct dpt_stream *s, enum dpt_dtype dtype,
                      float *p, int64_t *used)
{
    const struct dpt_dropout drop = {.p = 0.1f, .key = {{1, 2}}};
    float *x = part(p, used, N * C), *gamma = part(p, used, C), *beta = part(p, used, C);
    float *y = part(p, used, N * C), *mean = part(p, used, N), *rstd = part(p, used, N);
    float *w = part(p, used, C * 4 * C), *bias = part(p, used, 4 * C);
    float *qkv = part(p, used, N * 3 * C), *att = part(p, used, N * C);
    float *lse = part(p, used, B * H * T), *h = part(p, used, N * 4 * C);
    float *g = part(p, used, N * 4 * C), *dy = part(p, used, N * 4 * C);
    float *dw = part(p, used, C * 4 * C), *db = part(p, used, 4 * C);
    float *cos = part(p, used, T * C / H / 2), *sin = part(p, used, T * C / H / 2);
    const struct dpt_pack pack = {DPT_PACK_LINEAR,       4 * C, C, dtype, w,
                                  part(p, used, PACKED), false, 0, 0};
    const void *packed = p ? pack.packed : nowhere;
    assert_true(ops->packed_bytes(s, &pack) <= PACKED * sizeof(float));
    ops->pack(s, &pack);
    ops->layernorm_forward(
        s, &(struct dpt_layernorm_forward){N, C, 1e-5f, dtype, x, gamma, beta, y, mean, rstd});
    ops->linear_forward(s, &(struct dpt_linear_forward){N, C, 3 * C, dtype, y, w, bias, qkv, 0,
                                                        false, NULL, NULL, false});
    ops->attention_forward(
        s, &(struct dpt_attention){B, T, H, H, C / H, dtype, drop, qkv, att, lse, NULL, NULL});
    ops->attention_forward(
        s, &(struct dpt_attention){B, T, H, 1, C / H, dtype, drop, qkv, att, lse, NULL, NULL});
    ops->rope_table(s, &(struct dpt_rope_table){T, 0, C / H / 2, {1.0f}, cos, sin});
    ops->rope(s, &(struct dpt_rope){N, T, H, C / H, C, false, dtype, cos, sin, x});
    ops->residual(s, &(struct dpt_residual){N * C, dtype, drop, x, att, x});
    ops->linear_forward(s, &(struct dpt_linear_forward){N, C, 4 * C, dtype, x, w, bias, h, 0, false,
                                                        g, NULL, false});
    ops->linear_forward(s, &(struct dpt_linear_forward){N, 4 * C, C, dtype, g, w, bias, y, 0, false,
                                                        NULL, packed, false});
    for (int i = 0; i < 2; i++) {
        ops->linear_backward(s, &(struct dpt_linear_backward){N, 4 * C, C, dtype, g, w, y, 0, dy,
                                                              false, dw, db, i > 0, packed, NULL,
                                                              false});
        ops->gelu_backward(s, &(struct dpt_gelu){N * 4 * C, dtype, h, dy, dy});
        ops->linear_backward(s, &(struct dpt_linear_backward){N, C, 4 * C, dtype, x, w, dy, 0, y,
                                                              false, dw, db, i > 0, NULL, NULL,
                                                              false});
    }
    ops->dropout_backward(s, &(struct dpt_dropout_backward){N * C, dtype, drop, y, y});
    ops->attention_backward(
        s, &(struct dpt_attention){B, T, H, H, C / H, dtype, drop, qkv, att, lse, y, dy});
    ops->attention_backward(
        s, &(struct dpt_attention){B, T, H, 1, C / H, dtype, drop, qkv, att, lse, y, dy});
    ops->swiglu_forward(s, &(struct dpt_swiglu){N, C, dtype, h, NULL, y});
    ops->swiglu_backward(s, &(struct dpt_swiglu){N, C, dtype, h, y, dy});
    ops->linear_backward(s, &(struct dpt_linear_backward){N, C, 3 * C, dtype, x, w, dy, 0, y, false,
                                                          dw, db, false, NULL, NULL, false});
    ops->layernorm_backward(s, &(struct dpt_layernorm_backward){N, C, dtype, x, gamma, mean, rstd,
                                                                y, att, false, dw, db, true});
}

static int64_t slot_ops(const struct dpt_ops *ops, struct dpt_stream *s, enum dpt_dtype dtype,
                        float *p, const int32_t *tokens, double *sums)
{
    int64_t used = 0;
    const struct dpt_dropout drop = {.p = 0.1f, .key = {{3, 4}}};
    float *x = part(p, &used, N * C), *wte = part(p, &used, V * C), *loss = part(p, &used, N);
    float *wpe = part(p, &used, CONTEXT * C), *dx = part(p, &used, N * C);
    float *dwte = part(p, &used, V * C), *dwpe = part(p, &used, CONTEXT * C);
    float *right = part(p, &used, N);
    static const int32_t lengths[B] = {T, 1};
    const struct dpt_pack pack = {DPT_PACK_HEAD,          V,     C, dtype, wte,
                                  part(p, &used, PACKED), false, 0, 0};
    const void *packed = p ? pack.packed : nowhere;
    assert_true(ops->packed_bytes(s, &pack) <= PACKED * sizeof(float));
    ops->pack(s, &pack);
    ops->embedding_forward(
        s, &(struct dpt_embedding_forward){B, T, C, V, dtype, drop, tokens, wte, wpe, x});
    for (int i = 0; i < LAYERS; i++)
        block_ops(ops, s, dtype, p ? p + used : NULL, &(int64_t){0});
    turned_ops(ops, s, dtype, p ? p + used : NULL, &(int64_t){0});
    adapter_ops(ops, s, dtype, p ? p + used : NULL, &(int64_t){0});
    image_ops(ops, s, dtype, p ? p + used : NULL, &(int64_t){0});
    for (int i = 0; i < 2; i++)
        ops->head_loss(s, &(struct dpt_head_loss){N, C, V, dtype, x, wte, tokens, loss, 0.01f, dx,
                                                  dwte, i > 0, i > 0 ? packed : NULL, right,
                                                  i > 0 ? wpe : NULL, i > 0 ? dwpe : NULL});
    ops->last_token_forward(s, &(struct dpt_last_token){B, T, C, dtype, lengths, dx, x});
    ops->last_token_backward(s, &(struct dpt_last_token){B, T, C, dtype, lengths, x, dx});
    ops->embedding_backward(s,
                            &(struct dpt_embedding_backward){B, T, C, V, CONTEXT, dtype, drop,
                                                             tokens, dx, dwte, dwpe, true, false});
    ops->sumsq_blocks(s, V * C, 1024, dwte, sums);
    ops->fill_normal(s, N * C, &(struct dpt_normal){drop.key, 0, 0.0f, 1.0f}, x);
    ops->fill_uniform(s, N * C, &(struct dpt_uniform){drop.key, 0, 1.0f}, x);
    ops->add(s, V * C, wte, dwte, wte);
    ops->copy(s, V * C * sizeof(float), wte, dwte);
    ops->cast(s, V * C, wte, dtype, dwte);
    ops->fill(s, V * C, 0.0f, wte);
    const struct dpt_adamw adamw = {.n = N * C,
                                    .bias1 = 1.0f,
                                    .bias2 = 1.0f,
                                    .param = x,
                                    .m = x,
                                    .v = x,
                                    .grad = dx,
                                    .copy = dwpe,
                                    .copy_dtype = dtype};
    ops->adamw(s, &adamw);
    ops->sgd(s, &(struct dpt_sgd){.n = N * C,
                                  .momentum = 0.9f,
                                  .param = x,
                                  .m = x,
                                  .grad = dx,
                                  .copy = dwpe,
                                  .copy_dtype = dtype});
    return used;
}

enum { FLOATS = 1 << 22 /* more than slot_ops and one block take */, THREADS = 3 };
enum { LONG = 1 << 16 /* inputs of a layer whose packed weights take more than a whole slot */ };

static void no_allocation_after_preparing(enum dpt_dtype dtype)
{
    struct test_stream t = test_stream_open(THREADS);
    struct dpt_err err;
    int32_t tokens[N];
    for (int i = 0; i < N; i++)
        tokens[i] = i * 7 % V;
    static double sums[V * C / 1024 + 1];
    void *memory = NULL;
    assert_int_equal(dpt_device_alloc(t.device, FLOATS * sizeof(float), &memory, &err), DPT_OK);

    for (int threads = 1; threads <= THREADS; threads += THREADS - 1) {
        dpt_stream_set_threads(t.stream, threads);
        dpt_stream_prepare_begin(t.stream);
        (void)slot_ops(t.ops, t.stream, dtype, NULL, NULL, NULL);
        assert_int_equal(dpt_stream_prepare_end(t.stream, &err), DPT_OK);
    }

    static const int threads_then[] = {THREADS, THREADS, 1, 2, THREADS}; /* as worlds change */
    atomic_store(&counting, 1);
    for (size_t i = 0; i < sizeof threads_then / sizeof threads_then[0]; i++) {
        dpt_stream_set_threads(t.stream, threads_then[i]);
        assert_true(slot_ops(t.ops, t.stream, dtype, memory, tokens, sums) < FLOATS / 2);
    }
    atomic_store(&counting, 0);
    if (atomic_load(&allocations) != 0)
        fail_msg("%s: %d allocations in the step, the last of %zu bytes", dtype_name(dtype),
                 atomic_load(&allocations), atomic_load(&last_bytes));
    test_stream_check(&t);

    /* The counter counts: a shape that was never prepared does allocate, at least for b packed. */
    atomic_store(&counting, 1);
    float *x = memory;
    t.ops->linear_forward(t.stream,
                          &(struct dpt_linear_forward){3, LONG, 16, dtype, x, x + 3 * LONG, NULL,
                                                       x + 19 * LONG, 0, false, NULL, NULL, false});
    atomic_store(&counting, 0);
    assert_true(atomic_load(&allocations) > 0 || !COUNTED);
    atomic_store(&allocations, 0);
    dpt_device_free(t.device, memory, FLOATS * sizeof(float));
    test_stream_close(&t);
}

static void test_no_allocation_after_preparing(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        no_allocation_after_preparing(dtype);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_allocation_after_preparing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
