/* dpt-bench gemm: the rate of matrix products on this machine. Other benches compare the rate of a
 * training step with it.
 *
 * The products are square ones of 2048 and 4096, and those of GPT-2 124M at 256 and 1,024 rows:
 * forward with weights packed ahead, and the two backward products as the ops run them. The
 * machine's gemm rate is the best of the shapes' medians. */
#include "kernels/cpu/gemm.h"
#include "worker/bench/bench.h"

#include <stdio.h>

struct shape {
    const char *name;
    int64_t m, n, k;
    bool a_transposed, b_transposed, pack;
    bool sums; /* the result is a weight's gradient: f32 in every precision */
};

enum { SHAPES_MAX = 64 };

/* Adds a layer (in, out) at `rows` rows: forward, the inputs' gradient, the weights' gradient. */
static int add_layer(struct shape *to, int64_t rows, const char *const names[3], int64_t in,
                     int64_t out)
{
    to[0] = (struct shape){names[0], rows, out, in, false, false, true, false};
    to[1] = (struct shape){names[1], rows, in, out, false, true, true, false};
    to[2] = (struct shape){names[2], in, out, rows, true, false, false, true};
    return 3;
}

static int list_shapes(struct shape ret[SHAPES_MAX])
{
    static const char *const qkv[] = {"qkv", "qkv dx", "qkv dw"};
    static const char *const proj[] = {"proj", "proj dx", "proj dw"};
    static const char *const fc[] = {"fc", "fc dx", "fc dw"};
    static const char *const fcproj[] = {"fcproj", "fcproj dx", "fcproj dw"};
    int n = 0;
    ret[n++] = (struct shape){"square", 2048, 2048, 2048, false, false, true, false};
    ret[n++] = (struct shape){"square", 4096, 4096, 4096, false, false, true, false};
    for (int64_t rows = 256; rows <= 1024; rows *= 4) {
        n += add_layer(ret + n, rows, qkv, 768, 2304);
        n += add_layer(ret + n, rows, proj, 768, 768);
        n += add_layer(ret + n, rows, fc, 768, 3072);
        n += add_layer(ret + n, rows, fcproj, 3072, 768);
        ret[n++] = (struct shape){"head", rows, 50257, 768, false, true, true, false};
    }
    return n;
}

struct job {
    struct dpt_cpu_stream *s;
    struct dpt_gemm g;
};

static void multiply_once(void *ctx)
{
    struct job *j = ctx;
    dpt_cpu_gemm(j->s, &j->g);
}

/* Fills x (n) with normal values. Draws them in parts, in the memory of the result. */
static void fill_normal_values(struct dpt_stream *stream, enum dpt_dtype dtype, int64_t n,
                               float *part, size_t part_bytes, void *x)
{
    const struct dpt_ops *ops = dpt_device_ops(stream->device);
    const struct dpt_rng_key key = dpt_rng_key(1, DPT_RNG_TEST, 0, 0, 0);
    const int64_t part_n = (int64_t)(part_bytes / sizeof *part);
    for (int64_t at = 0; at < n; at += part_n) {
        int64_t count = dpt_min64(part_n, n - at);
        ops->fill_normal(stream, count, &(struct dpt_normal){key, (uint64_t)at, 0.0f, 1.0f}, part);
        ops->cast(stream, count, part, dtype, dpt_at_out(x, dtype, at));
    }
}

static enum dpt_status measure_shape(struct dpt_stream *stream, const struct shape *shape,
                                     enum dpt_dtype dtype, int64_t repeats,
                                     struct dpt_bench_time *ret, struct dpt_err *err)
{
    struct dpt_device *dev = stream->device;
    size_t a_bytes = (size_t)(shape->m * shape->k) * dpt_dtype_bytes(dtype);
    size_t b_bytes = (size_t)(shape->k * shape->n) * dpt_dtype_bytes(dtype);
    size_t c_bytes = (size_t)(shape->m * shape->n) * sizeof(float), packed_bytes = 0;
    void *a = NULL, *b = NULL, *c = NULL, *packed = NULL;
    struct job job = {.s = dpt_cpu_stream(stream)};
    enum dpt_status status = dpt_device_alloc(dev, a_bytes, &a, err);
    if (status == DPT_OK)
        status = dpt_device_alloc(dev, b_bytes, &b, err);
    if (status == DPT_OK)
        status = dpt_device_alloc(dev, c_bytes, &c, err);
    if (status != DPT_OK)
        goto out;
    fill_normal_values(stream, dtype, shape->m * shape->k, c, c_bytes, a);
    fill_normal_values(stream, dtype, shape->k * shape->n, c, c_bytes, b);
    job.g = (struct dpt_gemm){.m = shape->m,
                              .n = shape->n,
                              .k = shape->k,
                              .dtype = dtype,
                              .a = a,
                              .a_row = shape->a_transposed ? 1 : shape->k,
                              .a_col = shape->a_transposed ? shape->m : 1,
                              .b = b,
                              .b_row = shape->b_transposed ? 1 : shape->n,
                              .b_col = shape->b_transposed ? shape->k : 1,
                              .store = {.dtype = shape->sums ? DPT_F32 : dtype,
                                        .c = c,
                                        .ldc = shape->n,
                                        .stream = shape->sums}};
    if (shape->pack) {
        packed_bytes = dpt_cpu_gemm_packed_bytes(job.s, &job.g);
        status = dpt_device_alloc(dev, packed_bytes, &packed, err);
        if (status != DPT_OK)
            goto out;
        dpt_cpu_gemm_pack(job.s, &job.g, packed);
        job.g.b_packed = packed;
    }
    *ret = dpt_bench_time(repeats, multiply_once, &job);
    status = dpt_stream_sync(stream, err);
out:
    dpt_device_free(dev, a, a_bytes);
    dpt_device_free(dev, b, b_bytes);
    dpt_device_free(dev, c, c_bytes);
    dpt_device_free(dev, packed, packed_bytes);
    return status;
}

/* Measures all shapes. *ret_best: the highest median rate, GFLOP/s. rows: takes a row for each
 * shape, which is printed too; NULL: none. */
static enum dpt_status run_shapes(struct dpt_stream *stream, const struct dpt_bench_compute *c,
                                  json_t *rows, double *ret_best, struct dpt_err *err)
{
    struct shape shapes[SHAPES_MAX];
    const int n = list_shapes(shapes);
    double best = 0;
    for (int i = 0; i < n; i++) {
        const struct shape *s = &shapes[i];
        struct dpt_bench_time t;
        DPT_TRY(measure_shape(stream, s, c->dtype, c->repeats, &t, err));
        const double gflop = 2e-9 * (double)s->m * (double)s->n * (double)s->k;
        const double rate = gflop / t.median_s;
        best = rate > best ? rate : best;
        if (!rows)
            continue;
        printf("%-10s %6d %6d %6d %10.1f %10.1f\n", s->name, (int)s->m, (int)s->n, (int)s->k, rate,
               gflop / t.min_s);
        json_array_append_new(rows,
                              json_pack("{s:s,s:I,s:I,s:I,s:b,s:f,s:f}", "product", s->name, "m",
                                        (json_int_t)s->m, "n", (json_int_t)s->n, "k",
                                        (json_int_t)s->k, "prepacked", (int)s->pack,
                                        "gflops_median", rate, "gflops_best", gflop / t.min_s));
    }
    *ret_best = best;
    return DPT_OK;
}

/* Measures and, unless ret_report is NULL, prints and reports. */
static enum dpt_status measure_rate(const struct dpt_bench_compute *c, json_t **ret_report,
                                    double *ret_best, struct dpt_err *err)
{
    struct dpt_device *dev = NULL;
    struct dpt_stream *stream = NULL;
    json_t *rows = ret_report ? json_array() : NULL;
    enum dpt_status status = dpt_bench_compute_open(c, &dev, &stream, err);
    if (status == DPT_OK && rows)
        printf("%-10s %6s %6s %6s %10s %10s\n", "product", "m", "n", "k", "GFLOP/s", "(best)");
    if (status == DPT_OK)
        status = run_shapes(stream, c, rows, ret_best, err);
    if (status == DPT_OK && rows) {
        printf("gemm rate: %.1f GFLOP/s in %s with %d threads (%s)\n", *ret_best,
               dpt_bench_precision(c->dtype), dpt_bench_threads(c), dpt_device_fingerprint(dev));
        *ret_report =
            json_pack("{s:s,s:s,s:i,s:s,s:f,s:O}", "bench", "gemm", "precision",
                      dpt_bench_precision(c->dtype), "threads", dpt_bench_threads(c), "fingerprint",
                      dpt_device_fingerprint(dev), "gflops", *ret_best, "shapes", rows);
    }
    json_decref(rows);
    dpt_stream_destroy(&stream);
    dpt_device_destroy(&dev);
    return status;
}

enum dpt_status dpt_bench_gemm_rate(int threads, enum dpt_dtype dtype, double *ret_gflops,
                                    struct dpt_err *err)
{
    const struct dpt_bench_compute c = {.threads = threads, .repeats = 3, .dtype = dtype};
    return measure_rate(&c, NULL, ret_gflops, err);
}

static struct dpt_bench_compute args = {.repeats = DPT_BENCH_REPEATS};
static const struct dpt_option options[] = {DPT_BENCH_COMPUTE_OPTIONS(args)};

static enum dpt_status run_gemm(json_t **ret_report, struct dpt_err *err)
{
    double best = 0;
    return measure_rate(&args, ret_report, &best, err);
}

const struct dpt_bench dpt_bench_gemm = {
    .name = "gemm",
    .help = "the rate of matrix products: squares and the shapes of GPT-2 124M",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_gemm};
