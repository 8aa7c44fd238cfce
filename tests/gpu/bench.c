/* Times the ops of one slot of GPT-2 124M on a CUDA device and writes them as JSON:
 *     gpu_bench FILE
 * Each op is posted many times between two syncs; the figure is the median of several such runs. */
#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { B = 16, T = 1024, C = 768, HEADS = 12, V = 50257, N = B * T, RUNS = 5, WIDE = 4 * C };
enum { PARAMETERS = 124439808 };

/* Buffers for the operands of every op: the widest input and output are a layer's. */
struct bench {
    struct test_stream t;
    enum dpt_dtype dtype;
    void *x, *y, *dy, *w, *wte;
    float *dw, *dwte, *loss, *lse, *bias;
    float *param, *m, *v, *grad;
    int32_t *tokens;
    double *sums;
};

static void linear_forward(struct bench *b)
{
    b->t.ops->linear_forward(b->t.stream, &(struct dpt_linear_forward){.n = N,
                                                                       .in = C,
                                                                       .out = WIDE,
                                                                       .dtype = b->dtype,
                                                                       .x = b->x,
                                                                       .w = b->w,
                                                                       .bias = b->wte,
                                                                       .y = b->y,
                                                                       .gelu = b->dy});
}

static void linear_backward(struct bench *b)
{
    b->t.ops->linear_backward(b->t.stream, &(struct dpt_linear_backward){.n = N,
                                                                         .in = C,
                                                                         .out = WIDE,
                                                                         .dtype = b->dtype,
                                                                         .x = b->x,
                                                                         .w = b->w,
                                                                         .dy = b->dy,
                                                                         .dx = b->y,
                                                                         .dw = b->dw,
                                                                         .dbias = b->bias});
}

static void layernorm_forward(struct bench *b)
{
    b->t.ops->layernorm_forward(b->t.stream, &(struct dpt_layernorm_forward){.n = N,
                                                                             .c = C,
                                                                             .eps = 1e-5f,
                                                                             .dtype = b->dtype,
                                                                             .x = b->x,
                                                                             .gamma = b->w,
                                                                             .beta = b->w,
                                                                             .y = b->y,
                                                                             .mean = b->loss,
                                                                             .rstd = b->lse});
}

static void attention_forward(struct bench *b)
{
    b->t.ops->attention_forward(b->t.stream, &(struct dpt_attention){.b = B,
                                                                     .t = T,
                                                                     .heads = HEADS,
                                                                     .kv_heads = HEADS,
                                                                     .head_size = C / HEADS,
                                                                     .dtype = b->dtype,
                                                                     .qkv = b->x,
                                                                     .y = b->y,
                                                                     .lse = b->lse});
}

static void attention_backward(struct bench *b)
{
    b->t.ops->attention_backward(b->t.stream, &(struct dpt_attention){.b = B,
                                                                      .t = T,
                                                                      .heads = HEADS,
                                                                      .kv_heads = HEADS,
                                                                      .head_size = C / HEADS,
                                                                      .dtype = b->dtype,
                                                                      .qkv = b->x,
                                                                      .y = b->y,
                                                                      .lse = b->lse,
                                                                      .dy = b->w,
                                                                      .dqkv = b->dy});
}

static void head_loss(struct bench *b)
{
    b->t.ops->head_loss(b->t.stream, &(struct dpt_head_loss){.n = N,
                                                             .c = C,
                                                             .v = V,
                                                             .dtype = b->dtype,
                                                             .x = b->x,
                                                             .w = b->wte,
                                                             .targets = b->tokens,
                                                             .loss = b->loss,
                                                             .dloss = 1.0f / N,
                                                             .dx = b->y,
                                                             .dw = b->dwte});
}

static void embedding_backward(struct bench *b)
{
    b->t.ops->embedding_backward(b->t.stream, &(struct dpt_embedding_backward){.b = B,
                                                                               .t = T,
                                                                               .c = C,
                                                                               .v = V,
                                                                               .context = T,
                                                                               .dtype = b->dtype,
                                                                               .tokens = b->tokens,
                                                                               .dy = b->x,
                                                                               .dwte = b->dwte,
                                                                               .dwpe = b->dw});
}

static void bench_adamw(struct bench *b)
{
    b->t.ops->adamw(b->t.stream, &(struct dpt_adamw){.n = PARAMETERS,
                                                     .lr = 1e-4f,
                                                     .beta1 = 0.9f,
                                                     .beta2 = 0.95f,
                                                     .eps = 1e-8f,
                                                     .bias1 = 1.0f,
                                                     .bias2 = 1.0f,
                                                     .grad_scale = 1.0f,
                                                     .param = b->param,
                                                     .m = b->m,
                                                     .v = b->v,
                                                     .grad = b->grad});
}

static void sumsq_blocks(struct bench *b)
{
    b->t.ops->sumsq_blocks(b->t.stream, PARAMETERS, 65536, b->grad, b->sums);
}

/* `flops` of products and `bytes` to and from memory, at least, of one call. */
static const struct {
    const char *name;
    void (*run)(struct bench *b);
    double flops, bytes;
} ops[] = {
    {"linear_forward", linear_forward, 2.0 * N *C *WIDE, 0},
    {"linear_backward", linear_backward, 4.0 * N *C *WIDE, 0},
    {"layernorm_forward", layernorm_forward, 0, 4.0 * N *C},
    {"attention_forward", attention_forward, 2.0 * B *T *T *C, 0},
    {"attention_backward", attention_backward, 5.0 * B *T *T *C, 0},
    {"head_loss", head_loss, 6.0 * N *C *V, 0},
    {"embedding_backward", embedding_backward, 0, 4.0 * V *C},
    {"adamw", bench_adamw, 0, 28.0 * PARAMETERS},
    {"sumsq_blocks", sumsq_blocks, 0, 4.0 * PARAMETERS},
};

static double now_s(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_of(struct bench *b, void (*run)(struct bench *b))
{
    double runs[RUNS];
    run(b);
    test_stream_check(&b->t);
    double started = now_s();
    run(b);
    test_stream_check(&b->t);
    const double once = now_s() - started;
    const int repeats = once < 1e-3 ? 100 : 10;
    for (int i = 0; i < RUNS; i++) {
        started = now_s();
        for (int k = 0; k < repeats; k++)
            run(b);
        test_stream_check(&b->t);
        runs[i] = (now_s() - started) / repeats;
    }
    qsort(runs, RUNS, sizeof *runs, rising);
    return runs[RUNS / 2];
}

static void *filled(struct bench *b, enum dpt_dtype dtype, int64_t n)
{
    void *p = NULL, *wide = NULL;
    struct dpt_err err;
    const size_t bytes = (size_t)n * dpt_dtype_bytes(dtype);
    if (dpt_device_alloc(b->t.device, bytes, &p, &err) != DPT_OK ||
        dpt_device_alloc(b->t.device, (size_t)n * sizeof(float), &wide, &err) != DPT_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    b->t.ops->fill_normal(
        b->t.stream, n, &(struct dpt_normal){dpt_rng_key(1, DPT_RNG_TEST, 1, 0, 0), 0, 0.0f, 0.02f},
        wide);
    b->t.ops->cast(b->t.stream, n, wide, dtype, p);
    test_stream_check(&b->t);
    dpt_device_free(b->t.device, wide, (size_t)n * sizeof(float));
    return p; /* kept until the process ends */
}

static void measure(struct bench *b, FILE *out, bool first)
{
    static const char *const names[DPT_DTYPE_COUNT] = {"fp32", "bf16", "fp16"};
    b->x = filled(b, b->dtype, (int64_t)N * WIDE);
    b->y = filled(b, b->dtype, (int64_t)N * WIDE);
    b->dy = filled(b, b->dtype, (int64_t)N * WIDE);
    b->w = filled(b, b->dtype, (int64_t)N * C);
    b->wte = filled(b, b->dtype, (int64_t)V * C);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const double s = time_of(b, ops[i].run);
        (void)fprintf(out,
                      "%s\n    {\"op\": \"%s\", \"precision\": \"%s\", \"us\": %.2f, "
                      "\"tflops\": %.2f, \"gb_per_s\": %.1f}",
                      first && i == 0 ? "" : ",", ops[i].name, names[b->dtype], s * 1e6,
                      ops[i].flops / s * 1e-12, ops[i].bytes / s * 1e-9);
        (void)fprintf(stderr, "%-20s %s %10.1f us\n", ops[i].name, names[b->dtype], s * 1e6);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "usage: gpu_bench FILE\n");
        return 2;
    }
    static int32_t tokens[N];
    for (int i = 0; i < N; i++)
        tokens[i] = (int32_t)((int64_t)i * i % V);
    struct bench b = {.t = gpu_open()};
    FILE *out = fopen(argv[1], "w");
    if (!out) {
        perror(argv[1]);
        return 1;
    }
    b.dw = filled(&b, DPT_F32, (int64_t)C * WIDE);
    b.dwte = filled(&b, DPT_F32, (int64_t)V * C);
    b.loss = filled(&b, DPT_F32, N);
    b.lse = filled(&b, DPT_F32, (int64_t)N * HEADS);
    b.bias = filled(&b, DPT_F32, WIDE);
    b.param = filled(&b, DPT_F32, PARAMETERS);
    b.m = filled(&b, DPT_F32, PARAMETERS);
    b.v = filled(&b, DPT_F32, PARAMETERS);
    b.grad = filled(&b, DPT_F32, PARAMETERS);
    b.sums = filled(&b, DPT_F32, PARAMETERS / 1024);
    b.tokens = test_upload(&b.t, tokens, sizeof tokens);
    (void)fprintf(out,
                  "{\"bench\": \"gpu-ops\", \"device\": \"%s\",\n \"batch\": %d, \"seq\": %d,\n"
                  " \"ops\": [",
                  dpt_device_fingerprint(b.t.device), B, T);
    b.dtype = DPT_BF16;
    measure(&b, out, true);
    b.dtype = DPT_F32;
    measure(&b, out, false);
    (void)fprintf(out, "\n ]}\n");
    return fclose(out) == 0 ? 0 : 1;
}
