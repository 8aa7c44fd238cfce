/* dpt-bench ops: the cost of every op at the shapes of GPT-2 124M with B=4, T=64, and of attention
 * at B=1, T=1024. From these it computes the time of a training step without a trainer. */
#include "kernels/ops.h"
#include "worker/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>

enum { C = 768, HEADS = 12, V = 50257, LAYERS = 12, CONTEXT = 1024, PARAMETERS = 124439808 };

struct bench {
    const struct dpt_ops *ops;
    struct dpt_stream *stream;
    enum dpt_dtype dtype;
    int64_t b, t, n;
    /* Room for f32; w, x, y, dy hold values of the dtype. */
    float *w, *dw;     /* (V, C), enough for any weight */
    float *x, *y, *dy; /* (N, 4C) each */
    float *small;      /* (N + 8C): means, biases */
    float *moments;    /* 3 * (V, C): moments, a gradient */
    int32_t *tokens;   /* (N) */
};

static void linear_forward(struct bench *s, int64_t in, int64_t out, float *gelu)
{
    s->ops->linear_forward(s->stream, &(struct dpt_linear_forward){.dtype = s->dtype,
                                                                   .n = s->n,
                                                                   .in = in,
                                                                   .out = out,
                                                                   .x = s->x,
                                                                   .w = s->w,
                                                                   .bias = s->small,
                                                                   .y = s->y,
                                                                   .gelu = gelu});
}

static void linear_backward(struct bench *s, int64_t in, int64_t out)
{
    s->ops->linear_backward(s->stream, &(struct dpt_linear_backward){.dtype = s->dtype,
                                                                     .n = s->n,
                                                                     .in = in,
                                                                     .out = out,
                                                                     .x = s->x,
                                                                     .w = s->w,
                                                                     .dy = s->dy,
                                                                     .dx = s->y,
                                                                     .dw = s->dw,
                                                                     .dbias = s->small});
}

static void qkv(void *ctx)
{
    linear_forward(ctx, C, 3 * C, NULL);
}

static void proj(void *ctx)
{
    linear_forward(ctx, C, C, NULL);
}

static void fc(void *ctx)
{
    struct bench *s = ctx;
    linear_forward(s, C, 4 * C, s->dy);
}

static void fcproj(void *ctx)
{
    linear_forward(ctx, 4 * C, C, NULL);
}

static void qkv_grad(void *ctx)
{
    linear_backward(ctx, C, 3 * C);
}

static void proj_grad(void *ctx)
{
    linear_backward(ctx, C, C);
}

static void fc_grad(void *ctx)
{
    linear_backward(ctx, C, 4 * C);
}

static void fcproj_grad(void *ctx)
{
    linear_backward(ctx, 4 * C, C);
}

static void norm(void *ctx)
{
    struct bench *s = ctx;
    s->ops->layernorm_forward(s->stream, &(struct dpt_layernorm_forward){.dtype = s->dtype,
                                                                         .n = s->n,
                                                                         .c = C,
                                                                         .eps = 1e-5f,
                                                                         .x = s->x,
                                                                         .gamma = s->small,
                                                                         .beta = s->small,
                                                                         .y = s->y,
                                                                         .mean = s->small + C,
                                                                         .rstd = s->small + C});
}

static void norm_grad(void *ctx)
{
    struct bench *s = ctx;
    s->ops->layernorm_backward(s->stream,
                               &(struct dpt_layernorm_backward){.dtype = s->dtype,
                                                                .n = s->n,
                                                                .c = C,
                                                                .x = s->x,
                                                                .gamma = s->small,
                                                                .mean = s->small,
                                                                .rstd = s->small,
                                                                .dy = s->dy,
                                                                .dx = s->y,
                                                                .add_dx = true,
                                                                .dgamma = s->small + C,
                                                                .dbeta = s->small + 2 * C});
}

static void attention(void *ctx)
{
    struct bench *s = ctx;
    s->ops->attention_forward(s->stream, &(struct dpt_attention){.dtype = s->dtype,
                                                                 .b = s->b,
                                                                 .t = s->t,
                                                                 .heads = HEADS,
                                                                 .kv_heads = HEADS,
                                                                 .head_size = C / HEADS,
                                                                 .qkv = s->x,
                                                                 .y = s->y,
                                                                 .lse = s->moments});
}

static void attention_grad(void *ctx)
{
    struct bench *s = ctx;
    s->ops->attention_backward(s->stream, &(struct dpt_attention){.dtype = s->dtype,
                                                                  .b = s->b,
                                                                  .t = s->t,
                                                                  .heads = HEADS,
                                                                  .kv_heads = HEADS,
                                                                  .head_size = C / HEADS,
                                                                  .qkv = s->x,
                                                                  .y = s->y,
                                                                  .lse = s->moments,
                                                                  .dy = s->y,
                                                                  .dqkv = s->dy});
}

static void gelu_grad(void *ctx)
{
    struct bench *s = ctx;
    s->ops->gelu_backward(
        s->stream, &(struct dpt_gelu){
                       .dtype = s->dtype, .n = s->n * 4 * C, .x = s->x, .dy = s->y, .out = s->dy});
}

static void residual(void *ctx)
{
    struct bench *s = ctx;
    s->ops->residual(
        s->stream,
        &(struct dpt_residual){.dtype = s->dtype, .n = s->n * C, .a = s->x, .b = s->y, .y = s->dy});
}

static void residual_drop(void *ctx)
{
    struct bench *s = ctx;
    s->ops->residual(s->stream, &(struct dpt_residual){.dtype = s->dtype,
                                                       .n = s->n * C,
                                                       .dropout = {.p = 0.1f},
                                                       .a = s->x,
                                                       .b = s->y,
                                                       .y = s->dy});
}

static void embedding(void *ctx)
{
    struct bench *s = ctx;
    s->ops->embedding_forward(s->stream, &(struct dpt_embedding_forward){.dtype = s->dtype,
                                                                         .b = s->b,
                                                                         .t = s->t,
                                                                         .c = C,
                                                                         .v = V,
                                                                         .tokens = s->tokens,
                                                                         .wte = s->w,
                                                                         .wpe = s->w,
                                                                         .y = s->y});
}

static void embedding_grad(void *ctx)
{
    struct bench *s = ctx;
    s->ops->embedding_backward(s->stream, &(struct dpt_embedding_backward){.dtype = s->dtype,
                                                                           .b = s->b,
                                                                           .t = s->t,
                                                                           .c = C,
                                                                           .v = V,
                                                                           .context = CONTEXT,
                                                                           .tokens = s->tokens,
                                                                           .dy = s->dy,
                                                                           .dwte = s->dw,
                                                                           .dwpe = s->moments,
                                                                           .accumulate_wte = true});
}

static void head(void *ctx)
{
    struct bench *s = ctx;
    s->ops->head_loss(s->stream, &(struct dpt_head_loss){.dtype = s->dtype,
                                                         .n = s->n,
                                                         .c = C,
                                                         .v = V,
                                                         .x = s->x,
                                                         .w = s->w,
                                                         .targets = s->tokens,
                                                         .loss = s->small,
                                                         .dloss = 1e-3f,
                                                         .dx = s->dy,
                                                         .dw = s->dw});
}

static void bench_adamw(void *ctx)
{
    struct bench *s = ctx;
    s->ops->adamw(s->stream, &(struct dpt_adamw){.n = (int64_t)V * C,
                                                 .lr = 1e-8f,
                                                 .beta1 = 0.9f,
                                                 .beta2 = 0.95f,
                                                 .eps = 1e-8f,
                                                 .bias1 = 1.0f,
                                                 .bias2 = 1.0f,
                                                 .grad_scale = 1.0f,
                                                 .param = s->dw,
                                                 .m = s->moments,
                                                 .v = s->moments + (int64_t)V * C,
                                                 .grad = s->moments + (int64_t)V * C * 2,
                                                 .copy = s->dtype == DPT_F32 ? NULL : s->w,
                                                 .copy_dtype = s->dtype});
}

/* Packs one weight from w into `moments`, which has room for the head's. */
static void pack(struct bench *s, enum dpt_pack_kind kind, int64_t rows, int64_t cols)
{
    s->ops->pack(s->stream, &(struct dpt_pack){.kind = kind,
                                               .rows = rows,
                                               .cols = cols,
                                               .dtype = s->dtype,
                                               .w = s->w,
                                               .packed = s->moments});
}

static void pack_fc(void *ctx)
{
    pack(ctx, DPT_PACK_LINEAR, C, 4 * C);
}

static void pack_head(void *ctx)
{
    pack(ctx, DPT_PACK_HEAD, V, C);
}

static void sumsq(void *ctx)
{
    struct bench *s = ctx;
    s->ops->sumsq_blocks(s->stream, (int64_t)V * C, 1 << 16, s->dw, (double *)(void *)s->moments);
}

static void fill_normal(void *ctx)
{
    struct bench *s = ctx;
    s->ops->fill_normal(s->stream, 1 << 22,
                        &(struct dpt_normal){(struct dpt_rng_key){{1, 2}}, 0, 0.0f, 1.0f},
                        s->moments);
}

/* `work`: FLOPs or bytes of one call, as `per` says. `times`: calls in a step of GPT-2 124M with
 * one slot. */
struct entry {
    const char *name;
    void (*fn)(void *ctx);
    double work;
    const char *per; /* "GFLOP/s" or "GB/s" */
    double times;
};

enum { ENTRIES = 23 };

static void list_entries(const struct bench *s, struct entry ret[ENTRIES])
{
    const double n = (double)s->n, t = (double)s->t, wide = (double)V * C, c2 = (double)C * C;
    const double elem = (double)dpt_dtype_bytes(s->dtype);
    const double scores = (double)s->b * HEADS * t * (t + 1) / 2 * (C / HEADS) * 4;
    const struct entry all[ENTRIES] = {
        {"qkv", qkv, 6 * n * c2, "GFLOP/s", LAYERS},
        {"proj", proj, 2 * n * c2, "GFLOP/s", LAYERS},
        {"fc+gelu", fc, 8 * n * c2, "GFLOP/s", LAYERS},
        {"fcproj", fcproj, 8 * n * c2, "GFLOP/s", LAYERS},
        {"qkv backward", qkv_grad, 12 * n * c2, "GFLOP/s", LAYERS},
        {"proj backward", proj_grad, 4 * n * c2, "GFLOP/s", LAYERS},
        {"fc backward", fc_grad, 16 * n * c2, "GFLOP/s", LAYERS},
        {"fcproj backward", fcproj_grad, 16 * n * c2, "GFLOP/s", LAYERS},
        {"attention", attention, scores, "GFLOP/s", LAYERS},
        {"attention backward", attention_grad, 2.5 * scores, "GFLOP/s", LAYERS},
        {"head", head, 6 * n * wide, "GFLOP/s", 1},
        {"layernorm", norm, 2 * elem * n * C, "GB/s", 2 * LAYERS + 1},
        {"layernorm backward", norm_grad, 4 * elem * n * C, "GB/s", 2 * LAYERS + 1},
        {"gelu backward", gelu_grad, 12 * elem * n * C, "GB/s", LAYERS},
        {"residual", residual, 3 * elem * n * C, "GB/s", 2 * LAYERS},
        {"residual dropout", residual_drop, 3 * elem * n * C, "GB/s", 0},
        {"embedding", embedding, 3 * elem * n * C, "GB/s", 1},
        {"embedding backward", embedding_grad, (8 + elem) * n * C, "GB/s", 1},
        {"sumsq", sumsq, 4 * wide, "GB/s", PARAMETERS / wide},
        {"adamw", bench_adamw, (s->dtype == DPT_F32 ? 28 : 30) * wide, "GB/s", PARAMETERS / wide},
        {"pack fc", pack_fc, 4 * elem * 4 * c2, "GB/s", 0},
        {"pack head", pack_head, 4 * elem * wide, "GB/s", 0},
        {"fill_normal", fill_normal, 4.0 * (1 << 22), "GB/s", 0},
    };
    for (int i = 0; i < ENTRIES; i++)
        ret[i] = all[i];
}

static enum dpt_status allocate_floats(struct dpt_device *dev, int64_t floats, float **ret,
                                       struct dpt_err *err)
{
    void *p = NULL;
    DPT_TRY(dpt_device_alloc(dev, (size_t)floats * sizeof(float), &p, err));
    *ret = p; /* the process ends with the bench: never freed */
    return DPT_OK;
}

static enum dpt_status bench_init(struct bench *s, struct dpt_device *dev, struct dpt_err *err)
{
    s->ops = dpt_device_ops(dev);
    const struct dpt_rng_key key = dpt_rng_key(1, DPT_RNG_TEST, 0, 0, 0);
    const int64_t wide = (int64_t)V * C, rows = 1024 * 4 * C;
    float *tokens = NULL;
    DPT_TRY(allocate_floats(dev, wide, &s->w, err));
    DPT_TRY(allocate_floats(dev, wide, &s->dw, err));
    DPT_TRY(allocate_floats(dev, 3 * wide, &s->moments, err));
    DPT_TRY(allocate_floats(dev, rows, &s->x, err));
    DPT_TRY(allocate_floats(dev, rows, &s->y, err));
    DPT_TRY(allocate_floats(dev, rows, &s->dy, err));
    DPT_TRY(allocate_floats(dev, 1024 + 8 * C, &s->small, err));
    DPT_TRY(allocate_floats(dev, 1024, &tokens, err));
    s->tokens = (int32_t *)(void *)tokens;
    for (int i = 0; i < 1024; i++)
        s->tokens[i] = (int32_t)((i * 7919) % V);
    struct {
        float *to;
        int64_t n;
        float std;
    } filled[] = {{s->w, wide, 0.02f}, {s->x, rows, 1.0f}, {s->y, rows, 1.0f}, {s->dy, rows, 1.0f}};
    for (size_t i = 0; i < sizeof filled / sizeof *filled; i++) {
        s->ops->fill_normal(s->stream, filled[i].n,
                            &(struct dpt_normal){key, 0, 0.0f, filled[i].std}, s->moments);
        s->ops->cast(s->stream, filled[i].n, s->moments, s->dtype, filled[i].to);
    }
    return dpt_stream_sync(s->stream, err);
}

static enum dpt_status run_shape(struct bench *s, int64_t b, int64_t t, int64_t repeats,
                                 json_t *rows, struct dpt_err *err)
{
    struct entry entries[ENTRIES];
    double step_s = 0.0;
    s->b = b;
    s->t = t;
    s->n = b * t;
    list_entries(s, entries);
    printf("B=%d T=%d\n%-20s %10s %10s %10s %8s\n", (int)b, (int)t, "op", "ms", "rate", "",
           "ms/step");
    for (int i = 0; i < ENTRIES; i++) {
        struct entry *e = &entries[i];
        struct dpt_bench_time time = dpt_bench_time(repeats, e->fn, s);
        DPT_TRY(dpt_stream_sync(s->stream, err));
        double rate = e->work * 1e-9 / time.median_s;
        step_s += e->times * time.median_s;
        printf("%-20s %10.3f %10.1f %10s %8.1f\n", e->name, time.median_s * 1e3, rate, e->per,
               e->times * time.median_s * 1e3);
        json_array_append_new(rows, json_pack("{s:s,s:I,s:I,s:f,s:f,s:s}", "op", e->name, "b",
                                              (json_int_t)b, "t", (json_int_t)t, "ms",
                                              time.median_s * 1e3, "rate", rate, "unit", e->per));
    }
    double tokens = (double)s->n;
    printf("a step of one slot: %.1f ms, %.0f tokens/s, %.1f GFLOP/s at 6N a token\n", step_s * 1e3,
           tokens / step_s, 6.0 * PARAMETERS * tokens / step_s * 1e-9);
    return DPT_OK;
}

static struct dpt_bench_compute args = {.repeats = DPT_BENCH_REPEATS};
static const struct dpt_option options[] = {DPT_BENCH_COMPUTE_OPTIONS(args)};

static enum dpt_status run_ops(json_t **ret_report, struct dpt_err *err)
{
    struct dpt_device *dev = NULL;
    struct bench s = {.dtype = args.dtype};
    json_t *rows = json_array();
    enum dpt_status status = dpt_bench_compute_open(&args, &dev, &s.stream, err);
    if (status == DPT_OK)
        status = bench_init(&s, dev, err);
    if (status == DPT_OK)
        status = run_shape(&s, 4, 64, args.repeats, rows, err);
    if (status == DPT_OK)
        status = run_shape(&s, 1, 1024, args.repeats, rows, err);
    if (status == DPT_OK)
        *ret_report =
            json_pack("{s:s,s:s,s:i,s:s,s:O}", "bench", "ops", "precision",
                      dpt_bench_precision(args.dtype), "threads", dpt_bench_threads(&args),
                      "fingerprint", dpt_device_fingerprint(dev), "ops", rows);
    json_decref(rows);
    dpt_stream_destroy(&s.stream);
    dpt_device_destroy(&dev);
    return status;
}

const struct dpt_bench dpt_bench_ops = {
    .name = "ops",
    .help = "the time of every operation at the shapes of GPT-2 124M",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_ops};
