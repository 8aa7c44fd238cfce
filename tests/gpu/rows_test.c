/* Rotary embeddings, SwiGLU and attention of single rows on the CUDA device: the angles and the
 * rotation bit by bit as the CPU has them, rows that begin at odd places, query heads that share
 * keys. */
#include "kernels/device_impl.h"
#include "kernels/rope.h"
#include "tests/gpu/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HALF = 34, HEADS = 3, T = 29, ROWS = 2 * T, STRIDE = HEADS * 2 * HALF + 5 };

static float *values(int64_t n, uint64_t which)
{
    float *p = malloc((size_t)n * sizeof *p);
    DPT_ASSERT(p);
    fill_random(p, n, which);
    return p;
}

static struct dpt_rope_table table_from(int64_t first, float *cosines, float *sines)
{
    struct dpt_rope_table table = {
        .t = T, .first = first, .half = HALF, .cos = cosines, .sin = sines};
    for (int i = 0; i < HALF; i++)
        table.inv_freq[i] = (float)pow(10000.0, -(double)i / HALF);
    return table;
}

static void check_angles(struct test_stream *t)
{
    enum { N = T * HALF };
    static const int64_t firsts[] = {0, 131000, 5419351, 16777187};
    float want[2][N], got[2][N] = {{0}}, *device[2];
    for (int i = 0; i < 2; i++)
        device[i] = test_upload(t, got[i], sizeof got[i]);
    for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++) {
        const struct dpt_rope_table table = table_from(firsts[f], device[0], device[1]);
        for (int64_t i = 0; i < N; i++)
            dpt_rope_cos_sin((float)(firsts[f] + i / HALF) * table.inv_freq[i % HALF], &want[0][i],
                             &want[1][i]);
        t->ops->rope_table(t->stream, &table);
        for (int i = 0; i < 2; i++) {
            test_download(t, device[i], sizeof got[i], got[i]);
            CHECK(memcmp(got[i], want[i], sizeof want[i]) == 0);
        }
    }
    for (int i = 0; i < 2; i++)
        dpt_device_free(t->device, device[i], sizeof got[i]);
}

static float as_stored(enum dpt_dtype dtype, float x)
{
    return dtype == DPT_F32 ? x : float_of(dtype, half_of(dtype, x));
}

/* Forth and back; what follows the heads stays. */
static void check_rotation(struct test_stream *t)
{
    enum { N = ROWS * STRIDE };
    float *x = values(N, 1), *got = malloc(N * sizeof *got);
    float *cosines = values(T * HALF, 2), *sines = values(T * HALF, 3); /* any will do */
    float *there = test_upload(t, x, N * sizeof *x), *cast = test_upload(t, x, N * sizeof *x);
    float *dcos = test_upload(t, cosines, T * HALF * sizeof(float));
    float *dsin = test_upload(t, sines, T * HALF * sizeof(float));
    for (int run = 0; run < 2 * DPT_DTYPE_COUNT; run++) {
        const enum dpt_dtype dtype = (enum dpt_dtype)(run / 2);
        const bool inverse = run % 2 == 1;
        int bad = 0;
        t->ops->cast(t->stream, N, there, dtype, cast);
        t->ops->rope(t->stream, &(struct dpt_rope){.n = ROWS,
                                                   .t = T,
                                                   .heads = HEADS,
                                                   .head_size = 2 * HALF,
                                                   .stride = STRIDE,
                                                   .inverse = inverse,
                                                   .dtype = dtype,
                                                   .cos = dcos,
                                                   .sin = dsin,
                                                   .x = cast});
        float *wide = test_upload(t, x, N * sizeof *x);
        t->ops->widen(t->stream, N, dtype, cast, wide);
        test_download(t, wide, N * sizeof *got, got);
        dpt_device_free(t->device, wide, N * sizeof *x);
        for (int64_t i = 0; i < N; i++) {
            const int64_t row = i / STRIDE, j = i % STRIDE, at = j % (2 * HALF);
            float want = as_stored(dtype, x[i]);
            if (j < HEADS * 2 * HALF) {
                const int64_t angle = row % T * HALF + at % HALF;
                const float other = as_stored(dtype, x[at < HALF ? i + HALF : i - HALF]);
                const float s = inverse ? -sines[angle] : sines[angle];
                const float along = want * cosines[angle], across = other * s;
                want = as_stored(dtype, at < HALF ? along - across : along + across);
            }
            bad += memcmp(&want, &got[i], sizeof want) != 0;
        }
        CHECK(bad == 0);
    }
    dpt_device_free(t->device, there, N * sizeof *x);
    dpt_device_free(t->device, cast, N * sizeof *x);
    dpt_device_free(t->device, dcos, T * HALF * sizeof(float));
    dpt_device_free(t->device, dsin, T * HALF * sizeof(float));
    free(x);
    free(got);
    free(cosines);
    free(sines);
}

enum { PLACES = 3, WIDTH_MAX = 272 };

static void *at(enum dpt_dtype dtype, void *p, int64_t off)
{
    return (char *)p + (size_t)off * dpt_dtype_bytes(dtype);
}

/* A rotation, gates and their gradient on rows of `width` that begin `off` elements behind where
 * their memory does. */
static void run_placed(struct test_stream *t, enum dpt_dtype dtype, int64_t width, int64_t off,
                       float *const table[2], void *const b[4])
{
    t->ops->rope(t->stream, &(struct dpt_rope){.n = T,
                                               .t = T,
                                               .heads = 2,
                                               .head_size = width / 4 * 2,
                                               .stride = width,
                                               .dtype = dtype,
                                               .cos = table[0],
                                               .sin = table[1],
                                               .x = at(dtype, b[0], off)});
    struct dpt_swiglu gates = {.n = T / 2,
                               .c = width,
                               .dtype = dtype,
                               .x = at(dtype, b[1], off),
                               .out = at(dtype, b[2], off)};
    t->ops->swiglu_forward(t->stream, &gates);
    gates.dy = at(dtype, b[0], off);
    gates.out = at(dtype, b[3], off);
    t->ops->swiglu_backward(t->stream, &gates);
}

/* Bits do not depend on where rows begin. */
static void check_places(struct test_stream *t)
{
    enum { BUFFERS = 4, N = T * WIDTH_MAX, BYTES = (N + 16) * 4 };
    static const int64_t offs[PLACES] = {0, 1, 11}, widths[] = {272, 256, 132, 35};
    float *x = values(N + 16, 4), *source = test_upload(t, x, BYTES);
    float *const table[2] = {source + 1, source + 2};
    char *want[BUFFERS], *got = malloc(BYTES);
    void *b[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        b[i] = test_upload(t, x, BYTES);
        want[i] = malloc(BYTES);
    }
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (int place = 0; place < PLACES; place++) {
                const int64_t n = T * widths[w];
                const size_t bytes = (size_t)n * dpt_dtype_bytes((enum dpt_dtype)dtype);
                int bad = 0;
                for (int i = 0; i < BUFFERS; i++)
                    t->ops->cast(t->stream, n, source + i, (enum dpt_dtype)dtype,
                                 at((enum dpt_dtype)dtype, b[i], offs[place]));
                run_placed(t, (enum dpt_dtype)dtype, widths[w], offs[place], table, b);
                for (int i = 0; i < BUFFERS; i++) {
                    test_download(t, at((enum dpt_dtype)dtype, b[i], offs[place]), bytes,
                                  place == 0 ? want[i] : got);
                    bad += place > 0 && memcmp(want[i], got, bytes) != 0;
                }
                CHECK(bad == 0);
            }
    for (int i = 0; i < BUFFERS; i++) {
        dpt_device_free(t->device, b[i], BYTES);
        free(want[i]);
    }
    dpt_device_free(t->device, source, BYTES);
    free(x);
    free(got);
}

/* Rows of queries over the keys and values that are kept. */
static void check_shared_keys(struct test_stream *t)
{
    enum { QUERIES = 6, HD = 18, END = 70, FIRST = 3, C = QUERIES * HD };
    static const int kv_heads[] = {6, 3, 2, 1};
    float *qkv = values((int64_t)END * 3 * C, 8), *got = malloc(END * C * sizeof *got);
    float *there = test_upload(t, qkv, (size_t)END * 3 * C * sizeof *qkv);
    float *y = test_upload(t, qkv, END * C * sizeof *got);
    for (size_t k = 0; k < sizeof kv_heads / sizeof kv_heads[0]; k++) {
        const int kv = kv_heads[k], ld = C + 2 * kv * HD;
        int bad = 0;
        t->ops->attention_rows(t->stream, &(struct dpt_attention_rows){.first = FIRST,
                                                                       .end = END,
                                                                       .heads = QUERIES,
                                                                       .kv_heads = kv,
                                                                       .head_size = HD,
                                                                       .qkv = there,
                                                                       .y = y});
        test_download(t, y, (END - FIRST) * C * sizeof *got, got);
        for (int i = 0; i < (END - FIRST) * C; i++) {
            const int row = FIRST + i / C, head = i % C / HD;
            const float *q = qkv + row * ld + head * HD;
            const float *keys = qkv + C + head / (QUERIES / kv) * HD, *v = keys + kv * HD + i % HD;
            double sum = 0, mean = 0;
            for (int s = 0; s <= row; s++) {
                double score = 0;
                for (int j = 0; j < HD; j++)
                    score += (double)q[j] * (double)keys[s * ld + j];
                const double p = exp(score / sqrt((double)HD));
                sum += p;
                mean += p * (double)v[s * ld];
            }
            bad += !(fabs(mean / sum - (double)got[i]) <= 2e-5);
        }
        CHECK(bad == 0);
    }
    dpt_device_free(t->device, there, (size_t)END * 3 * C * sizeof *qkv);
    dpt_device_free(t->device, y, END * C * sizeof *got);
    free(qkv);
    free(got);
}

int main(void)
{
    struct test_stream t = gpu_open();
    gpu_seed();
    check_angles(&t);
    check_rotation(&t);
    check_places(&t);
    check_shared_keys(&t);
    test_stream_close(&t);
    return gpu_verdict("rows");
}
