/* Ops over ranges on the CUDA device, element by element: conversions as kernels/half.h, normal
 * values as base/rng, dropout's mask, sums of squares, decoding, Gram-Schmidt; and ranges split at
 * odd places. Where the operations are the CPU's and in its order, the bits are compared. */
#include "kernels/device_impl.h"
#include "tests/gpu/gpu.h"
#include "tests/kernels/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 100003, BYTES = N * 4 };

static float *random_values(int64_t n, uint64_t which)
{
    float *p = malloc((size_t)n * sizeof *p);
    DPT_ASSERT(p);
    fill_random(p, n, which);
    return p;
}

static bool same_bytes(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

static void check_conversions(struct test_stream *t)
{
    enum { SPECIAL = 9 };
    static const uint32_t special[SPECIAL] = {0x7f800000u, 0xff800000u, 0x7fc01234u,
                                              0x7f812345u, 0x80000000u, 0x00000001u,
                                              0x33800000u, 0x477fefffu, 0x477ff000u};
    float *x = random_values(N, 1), *wide = malloc(BYTES), *there = malloc(BYTES);
    uint16_t *half = malloc(BYTES);
    memcpy(x, special, sizeof special);
    for (int i = SPECIAL; i < N; i++) /* all exponents */
        x[i] = ldexpf(x[i], i % 160 - 80);
    for (int dtype = DPT_BF16; dtype <= DPT_F16; dtype++) {
        float *dx = test_upload(t, x, BYTES), *dwide = test_upload(t, x, BYTES);
        uint16_t *dhalf = test_upload(t, x, BYTES);
        t->ops->cast(t->stream, N, dx, dtype, dhalf);
        t->ops->widen(t->stream, N, dtype, dhalf, dwide);
        t->ops->round_to(t->stream, N, dtype, dx);
        test_download(t, dhalf, N * sizeof *half, half);
        test_download(t, dwide, BYTES, wide);
        test_download(t, dx, BYTES, there);
        int bad = 0;
        for (int i = 0; i < N; i++) {
            const float want = float_of(dtype, half_of(dtype, x[i]));
            bad += half[i] != half_of(dtype, x[i]) || !same_bytes(&wide[i], &want, sizeof want);
        }
        CHECK(bad == 0);
        CHECK(same_bytes(wide, there, BYTES));
        dpt_device_free(t->device, dx, BYTES);
        dpt_device_free(t->device, dwide, BYTES);
        dpt_device_free(t->device, dhalf, BYTES);
    }
    free(x);
    free(wide);
    free(there);
    free(half);
}

static void check_filling(struct test_stream *t)
{
    const struct dpt_rng_key key = dpt_rng_key(3, DPT_RNG_INIT, 4, 0, 0);
    float *x = random_values(N, 2), *y = random_values(N, 3), *got = malloc(BYTES);
    float *dx = test_upload(t, x, BYTES), *dy = test_upload(t, y, BYTES);
    t->ops->add(t->stream, N, dx, dy, dx); /* in place */
    test_download(t, dx, BYTES, got);
    int bad = 0;
    for (int i = 0; i < N; i++)
        bad += got[i] != x[i] + y[i];
    CHECK(bad == 0);
    t->ops->fill(t->stream, N, -2.5f, dx);
    t->ops->copy(t->stream, BYTES - 1, dy, dx); /* the last byte stays */
    test_download(t, dx, BYTES, got);
    CHECK(same_bytes(got, y, BYTES - 1) &&
          ((char *)got)[BYTES - 1] == ((const char *)&(float){-2.5f})[3]);
    static const int64_t cuts[] = {1, 1, 18, 32771, N}; /* ends of the parts */
    int64_t at = 0;
    for (int c = 0; c < 5; at = cuts[c++])
        t->ops->fill_normal(t->stream, cuts[c] - at,
                            &(struct dpt_normal){key, (uint64_t)at + 5, 0.25f, 0.5f}, dx + at);
    test_download(t, dx, BYTES, got);
    for (uint64_t i = 0; i < N; i++) {
        float pair[2];
        dpt_rng_normal_pair(key, (i + 5) & ~UINT64_C(1), pair);
        bad += got[i] != 0.25f + 0.5f * pair[(i + 5) & 1];
    }
    CHECK(bad == 0);
    at = 0;
    for (int c = 0; c < 5; at = cuts[c++])
        t->ops->fill_uniform(t->stream, cuts[c] - at,
                             &(struct dpt_uniform){key, (uint64_t)at + 5, 0.75f}, dx + at);
    t->ops->scale(t->stream, N, DPT_F32, 1.7f, dx);
    test_download(t, dx, BYTES, got);
    for (uint64_t i = 0; i < N; i++) {
        uint32_t words[4];
        dpt_philox(key, (i + 5) / 4, words);
        bad += got[i] != 0.75f * ((float)(words[(i + 5) % 4] >> 8) * 0x1p-23f - 1.0f) * 1.7f;
    }
    CHECK(bad == 0);
    dpt_device_free(t->device, dx, BYTES);
    dpt_device_free(t->device, dy, BYTES);
    free(x);
    free(y);
    free(got);
}

static void check_ordered_sums(struct test_stream *t)
{
    float *parts[REF_SUM_PARTS], *on_device[REF_SUM_PARTS];
    float *want = malloc(BYTES), *got = malloc(BYTES);
    for (int p = 0; p < REF_SUM_PARTS; p++) {
        parts[p] = random_values(N, 20 + (uint64_t)p);
        on_device[p] = test_upload(t, parts[p], BYTES);
    }
    const float **list = test_upload(t, on_device, sizeof on_device);
    for (int sum = 0; sum < REF_SUMS; sum++)
        for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++) {
            float *dst = on_device[sum * 4]; /* where a part is */
            uint8_t *joins = test_upload(t, ref_sum_joins[sum], REF_SUM_PARTS);
            const struct dpt_ordered_sum a = {N,     REF_SUM_PARTS,         list,
                                              joins, (enum dpt_dtype)dtype, dst};
            ref_ordered_sum(N, (const float *const *)parts, sum, (enum dpt_dtype)dtype, want);
            t->ops->ordered_sum(t->stream, &a);
            test_download(t, dst, BYTES, got);
            CHECK(same_bytes(got, want, BYTES));
            t->ops->copy(t->stream, BYTES, parts[sum * 4], dst);
            dpt_device_free(t->device, joins, REF_SUM_PARTS);
        }
    dpt_device_free(t->device, (void *)list, sizeof on_device);
    for (int p = 0; p < REF_SUM_PARTS; p++) {
        dpt_device_free(t->device, on_device[p], BYTES);
        free(parts[p]);
    }
    free(want);
    free(got);
}

static void check_mask(struct test_stream *t)
{
    /* Around the place where the counter's low word overflows, too. */
    static const uint64_t firsts[] = {0, 3, (UINT64_C(4) << 32) - 50000};
    const float keep = 1.0f / (1.0f - 0.3f);
    float *one = malloc(BYTES), *got = malloc(BYTES), *zero = calloc(N, sizeof *zero);
    for (int i = 0; i < N; i++)
        one[i] = 1.0f;
    float *done = test_upload(t, one, BYTES), *dzero = test_upload(t, zero, BYTES);
    float *dy = test_upload(t, zero, BYTES);
    for (int f = 0; f < 3; f++) {
        struct dpt_dropout d = {0.3f, dpt_rng_key(5, DPT_RNG_TEST, 9, 9, 9), firsts[f]};
        t->ops->residual(t->stream, &(struct dpt_residual){
                                        .n = N, .dropout = d, .a = dzero, .b = done, .y = dy});
        test_download(t, dy, BYTES, got);
        int bad = 0;
        for (int i = 0; i < N; i++)
            bad += got[i] != (ref_drop(&d, i) > 0.0 ? keep : 0.0f);
        CHECK(bad == 0);
        d.first += 7; /* a part has the bits of the whole */
        t->ops->dropout_backward(t->stream, &(struct dpt_dropout_backward){
                                                .n = N - 7, .dropout = d, .dy = done, .dx = dy});
        test_download(t, dy, BYTES, one);
        CHECK(same_bytes(one, got + 7, (N - 7) * sizeof *got));
        for (int i = 0; i < N; i++)
            one[i] = 1.0f;
    }
    dpt_device_free(t->device, done, BYTES);
    dpt_device_free(t->device, dzero, BYTES);
    dpt_device_free(t->device, dy, BYTES);
    free(one);
    free(got);
    free(zero);
}

static void check_sums_of_squares(struct test_stream *t)
{
    static const int64_t blocks[] = {7, 33, 1000, 65536, N, N + 5};
    float *x = random_values(N, 4);
    double *got = calloc(N + 1, sizeof *got);
    float *dx = test_upload(t, x, BYTES);
    double *dgot = test_upload(t, got, (N + 1) * sizeof *got);
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        const int64_t block = blocks[b], count = (N + block - 1) / block, last = count - 1;
        double moved;
        t->ops->sumsq_blocks(t->stream, N, block, dx, dgot);
        test_download(t, dgot, (size_t)count * sizeof *got, got);
        int bad = 0;
        for (int64_t i = 0; i < count; i++) {
            double want = 0;
            for (int64_t e = i * block; e < (i + 1) * block && e < N; e++)
                want += (double)x[e] * (double)x[e];
            bad += !(fabs(want - got[i]) <= 1e-12 * want);
        }
        CHECK(bad == 0);
        /* A block's bits are its own: starting the op there gives them again. */
        t->ops->sumsq_blocks(t->stream, N - last * block, block, dx + last * block, dgot);
        test_download(t, dgot, sizeof moved, &moved);
        CHECK(same_bytes(&moved, &got[last], sizeof moved));
    }
    dpt_device_free(t->device, dx, BYTES);
    dpt_device_free(t->device, dgot, (N + 1) * sizeof *got);
    free(x);
    free(got);
}

static void check_decoding(struct test_stream *t)
{
    enum { IN = 100, OUT = 203, HEADS = 4, C = 36, END = 70, FIRST = 3, HD = C / HEADS };
    const size_t w_bytes = IN * OUT * 4, qkv_bytes = END * 3 * C * 4;
    float *x = random_values(IN, 5), *w = random_values(IN * OUT, 6), *bias = random_values(OUT, 7);
    float *qkv = random_values(END * 3 * C, 8), got[END * C];
    float *dx = test_upload(t, x, IN * 4), *dw = test_upload(t, w, w_bytes);
    float *dbias = test_upload(t, bias, OUT * 4), *dqkv = test_upload(t, qkv, qkv_bytes);
    float *dy = test_upload(t, qkv, qkv_bytes);
    t->ops->linear_row(t->stream, &(struct dpt_linear_row){IN, OUT, dx, dw, dbias, dy, false});
    test_download(t, dy, OUT * 4, got);
    int bad = 0;
    for (int j = 0; j < OUT; j++) { /* the CPU's chain */
        float sum = bias[j];
        for (int i = 0; i < IN; i++)
            sum = fmaf(x[i], w[i * OUT + j], sum);
        bad += !same_bytes(&sum, &got[j], sizeof sum);
    }
    for (int biased = 0; biased < 2; biased++) {
        const struct dpt_linear_row row = {IN, OUT, dx, dw, biased ? dbias : NULL, dy, true};
        t->ops->linear_row(t->stream, &row);
        test_download(t, dy, OUT * 4, got);
        for (int j = 0; j < OUT; j++) {
            double sum = biased ? (double)bias[j] : 0, size = fabs(sum);
            for (int i = 0; i < IN; i++) {
                sum += (double)x[i] * (double)w[j * IN + i];
                size += fabs((double)x[i] * (double)w[j * IN + i]);
            }
            bad += !(fabs(sum - (double)got[j]) <= 2e-6 * size);
        }
    }
    CHECK(bad == 0);
    t->ops->attention_rows(t->stream,
                           &(struct dpt_attention_rows){FIRST, END, HEADS, HEADS, HD, dqkv, dy});
    test_download(t, dy, (END - FIRST) * C * 4, got);
    for (int row = FIRST; row < END; row++)
        for (int channel = 0; channel < C; channel++) {
            const int head = channel / HD * HD;
            double sum = 0, mean = 0;
            for (int s = 0; s <= row; s++) {
                double score = 0;
                for (int i = 0; i < HD; i++)
                    score += (double)qkv[row * 3 * C + head + i] *
                             (double)qkv[(s * 3 + 1) * C + head + i];
                const double p = exp(score / sqrt((double)HD));
                sum += p;
                mean += p * (double)qkv[(s * 3 + 2) * C + channel];
            }
            bad += !(fabs(mean / sum - (double)got[(row - FIRST) * C + channel]) <= 2e-5);
        }
    CHECK(bad == 0);
    dpt_device_free(t->device, dx, IN * 4);
    dpt_device_free(t->device, dw, w_bytes);
    dpt_device_free(t->device, dbias, OUT * 4);
    dpt_device_free(t->device, dqkv, qkv_bytes);
    dpt_device_free(t->device, dy, qkv_bytes);
    free(x);
    free(w);
    free(bias);
    free(qkv);
}

static void check_gram_schmidt(struct test_stream *t)
{
    enum { ROWS = 5003, COLUMNS = 3 };
    const size_t bytes = (size_t)ROWS * COLUMNS * 4;
    float *x = random_values(ROWS * COLUMNS, 9);
    for (int i = 0; i < ROWS; i++) /* the third is spanned by the others */
        x[i * COLUMNS + 2] = 3.0f * x[i * COLUMNS] - 0.5f * x[i * COLUMNS + 1];
    float *dx = test_upload(t, x, bytes);
    t->ops->orthonormalise(t->stream, ROWS, COLUMNS, dx);
    test_download(t, dx, bytes, x);
    double dots[COLUMNS][COLUMNS] = {{0}};
    for (int i = 0; i < ROWS; i++)
        for (int a = 0; a < COLUMNS; a++)
            for (int b = 0; b < COLUMNS; b++)
                dots[a][b] += (double)x[i * COLUMNS + a] * (double)x[i * COLUMNS + b];
    CHECK(fabs(dots[0][0] - 1) < 1e-6 && fabs(dots[1][1] - 1) < 1e-6);
    CHECK(fabs(dots[0][1]) < 1e-6 && dots[2][2] == 0);
    dpt_device_free(t->device, dx, bytes);
    free(x);
}

/* Many tensors at once, with gaps between them, are as one after the other; the gaps stay. */
static void check_tensors(struct test_stream *t)
{
    enum { TENSORS = 300, VECTORS = 4, LONGEST = 600 };
    struct dpt_updated tensors[TENSORS];
    float *start[VECTORS], *at[2][VECTORS], *got[2];
    uint16_t *copy[2];
    int64_t next = 3;
    for (int i = 0; i < TENSORS; i++) {
        const int64_t numel = 1 + i * 7919 % LONGEST;
        tensors[i] = (struct dpt_updated){next, next + numel, i % 3 == 0};
        next += numel + i % 5;
    }
    DPT_ASSERT(next < N);
    for (int v = 0; v < VECTORS; v++) {
        start[v] = random_values(N, 40 + (uint64_t)v);
        for (int i = 0; v == 2 && i < N; i++) /* the second moment */
            start[v][i] *= start[v][i];
    }
    for (int kind = 0; kind < 3; kind++) { /* AdamW, SGD, Adam */
        for (int way = 0; way < 2; way++) {
            for (int v = 0; v < VECTORS; v++)
                at[way][v] = test_upload(t, start[v], BYTES);
            copy[way] = test_upload(t, start[0], BYTES);
            got[way] = malloc(BYTES);
            struct dpt_adamw adamw = {.n = next,
                                      .lr = 1e-2f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.95f,
                                      .eps = 1e-8f,
                                      .weight_decay = 0.1f,
                                      .l2 = kind == 2,
                                      .bias1 = 0.1f,
                                      .bias2 = 0.05f,
                                      .grad_scale = 0.5f,
                                      .param = at[way][0],
                                      .m = at[way][1],
                                      .v = at[way][2],
                                      .grad = at[way][3],
                                      .copy = copy[way],
                                      .copy_dtype = DPT_BF16};
            struct dpt_sgd sgd = {.n = next,
                                  .lr = 1e-2f,
                                  .momentum = 0.9f,
                                  .weight_decay = 0.1f,
                                  .grad_scale = 0.5f,
                                  .param = at[way][0],
                                  .m = at[way][1],
                                  .grad = at[way][3],
                                  .copy = copy[way],
                                  .copy_dtype = DPT_BF16};
            adamw.tensors = sgd.tensors = tensors;
            adamw.n_tensors = sgd.n_tensors = TENSORS;
            for (int i = 0; i < (way == 0 ? 1 : TENSORS); i++) {
                const struct dpt_adamw one_adamw = way == 0 ? adamw : dpt_adamw_tensor(&adamw, i);
                const struct dpt_sgd one_sgd = way == 0 ? sgd : dpt_sgd_tensor(&sgd, i);
                if (kind != 1)
                    t->ops->adamw(t->stream, &one_adamw);
                else
                    t->ops->sgd(t->stream, &one_sgd);
            }
        }
        for (int v = 0; v <= VECTORS; v++) {
            for (int way = 0; way < 2; way++)
                test_download(t, v < VECTORS ? (void *)at[way][v] : copy[way], BYTES, got[way]);
            CHECK(same_bytes(got[0], got[1], BYTES));
        }
        test_download(t, at[0][0], BYTES, got[0]);
        CHECK(same_bytes(got[0], start[0], 3 * sizeof *got[0]) && got[0][3] != start[0][3]);
        CHECK(same_bytes(got[0] + tensors[3].end, start[0] + tensors[3].end, 3 * sizeof *got[0]));
        for (int way = 0; way < 2; way++) {
            for (int v = 0; v < VECTORS; v++)
                dpt_device_free(t->device, at[way][v], BYTES);
            dpt_device_free(t->device, copy[way], BYTES);
            free(got[way]);
        }
    }
    for (int v = 0; v < VECTORS; v++)
        free(start[v]);
}

enum { PLACE_ROWS = 37, PLACE_CHANNELS_MAX = 1601 };

static void *at(enum dpt_dtype dtype, void *p, int off)
{
    return (char *)p + (size_t)off * dpt_dtype_bytes(dtype);
}

/* On rows that begin `off` elements behind where their memory does. `fused`: residual and norm by
 * one op. Results: sum, norm, gradient, GELU and its gradient, one
 * after another, rows of c each; then mean, rstd and the weights' gradients. */
static void run_placed(struct test_stream *t, enum dpt_dtype dtype, int64_t c, int off, bool fused,
                       void *const in[4], void *const out[9])
{
    const struct dpt_ops *ops = t->ops;
    const int64_t n = PLACE_ROWS * c;
    void *a = at(dtype, in[0], off), *b = at(dtype, in[1], off), *sum = at(dtype, out[0], off);
    void *gamma = at(dtype, in[2], off), *beta = at(dtype, in[3], off);
    void *y = at(dtype, out[1], off), *dx = at(dtype, out[2], off);
    const struct dpt_residual_norm both = {.n = PLACE_ROWS,
                                           .c = c,
                                           .eps = 1e-5f,
                                           .dtype = dtype,
                                           .a = a,
                                           .b = b,
                                           .sum = sum,
                                           .gamma = gamma,
                                           .beta = beta,
                                           .y = y,
                                           .mean = out[5],
                                           .rstd = out[6]};
    const struct dpt_residual add = {.n = n, .dtype = dtype, .a = a, .b = b, .y = sum};
    const struct dpt_layernorm_forward norm = {.n = PLACE_ROWS,
                                               .c = c,
                                               .eps = 1e-5f,
                                               .dtype = dtype,
                                               .x = sum,
                                               .gamma = gamma,
                                               .beta = beta,
                                               .y = y,
                                               .mean = out[5],
                                               .rstd = out[6]};
    const struct dpt_layernorm_backward grad = {.n = PLACE_ROWS,
                                                .c = c,
                                                .dtype = dtype,
                                                .x = sum,
                                                .gamma = gamma,
                                                .mean = out[5],
                                                .rstd = out[6],
                                                .dy = a,
                                                .dx = dx,
                                                .add_dx = true,
                                                .dgamma = out[7],
                                                .dbeta = out[8]};
    if (fused) {
        ops->residual_norm(t->stream, &both);
    } else {
        ops->residual(t->stream, &add);
        ops->layernorm_forward(t->stream, &norm);
    }
    ops->copy(t->stream, (size_t)n * dpt_dtype_bytes(dtype), b, dx);
    ops->layernorm_backward(t->stream, &grad);
    ops->gelu_forward(t->stream, &(struct dpt_gelu){n, dtype, sum, NULL, at(dtype, out[3], off)});
    ops->gelu_backward(t->stream, &(struct dpt_gelu){n, dtype, sum, y, at(dtype, out[4], off)});
}

/* Bits depend neither on where rows begin, nor on whether two ops are one. */
static void check_range_places(struct test_stream *t)
{
    enum { IN = 4, OUT = 9, BEHIND = 11 };
    static const int64_t widths[] = {48, 768, PLACE_CHANNELS_MAX};
    static const int offs[] = {0, 1, BEHIND};
    const size_t bytes = ((size_t)PLACE_ROWS * PLACE_CHANNELS_MAX + BEHIND) * sizeof(float);
    float *x = random_values(PLACE_ROWS * PLACE_CHANNELS_MAX + BEHIND, 30);
    char *want[OUT], *got = malloc(bytes);
    void *in[IN], *out[OUT];
    for (int i = 0; i < IN; i++)
        in[i] = test_upload(t, x, bytes);
    for (int i = 0; i < OUT; i++) {
        out[i] = test_upload(t, x, bytes);
        want[i] = malloc(bytes);
    }
    float *source = test_upload(t, x, bytes);
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (int w = 0; w < 3; w++)
            for (int run = 0; run < 6; run++) {
                const int64_t c = widths[w], n = PLACE_ROWS * c;
                const int off = offs[run % 3];
                for (int i = 0; i < IN; i++)
                    t->ops->cast(t->stream, n, source + i, (enum dpt_dtype)dtype,
                                 at((enum dpt_dtype)dtype, in[i], off));
                run_placed(t, (enum dpt_dtype)dtype, c, off, run >= 3, in, out);
                int bad = 0;
                for (int i = 0; i < OUT; i++) {
                    const bool rows = i < 5;
                    const size_t size = rows ? (size_t)n * dpt_dtype_bytes((enum dpt_dtype)dtype)
                                             : (size_t)(i < 7 ? PLACE_ROWS : c) * sizeof(float);
                    test_download(t, rows ? at((enum dpt_dtype)dtype, out[i], off) : out[i], size,
                                  run == 0 ? want[i] : got);
                    bad += run > 0 && !same_bytes(want[i], got, size);
                }
                CHECK(bad == 0);
            }
    for (int i = 0; i < IN; i++)
        dpt_device_free(t->device, in[i], bytes);
    for (int i = 0; i < OUT; i++) {
        dpt_device_free(t->device, out[i], bytes);
        free(want[i]);
    }
    dpt_device_free(t->device, source, bytes);
    free(x);
    free(got);
}

int main(void)
{
    struct test_stream t = gpu_open();
    gpu_seed();
    check_conversions(&t);
    check_filling(&t);
    check_ordered_sums(&t);
    check_mask(&t);
    check_sums_of_squares(&t);
    check_decoding(&t);
    check_gram_schmidt(&t);
    check_range_places(&t);
    check_tensors(&t);
    test_stream_close(&t);
    return gpu_verdict("range");
}
