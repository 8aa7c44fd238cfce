/* Rotary embeddings, SwiGLU, attention of single rows and the head's softmax on the CUDA device:
 * the angles and the rotation bit by bit as the CPU has them, rows that begin at odd places, query
 * heads that share keys, rows of logits for each of the softmax's kernels. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/stream.h"
#include "kernels/device_impl.h"
#include "kernels/rope.h"
#include "tests/gpu/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HALF = 34, HEADS = 3, T = 29, ROWS = 2 * T, STRIDE = HEADS * 2 * HALF + 5 };

static float *random_values(int64_t n, uint64_t which)
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

/* Rotates forth and back; elements behind the heads stay. */
static void check_rotation(struct test_stream *t)
{
    enum { N = ROWS * STRIDE };
    float *x = random_values(N, 1), *got = malloc(N * sizeof *got);
    float *cosines = random_values(T * HALF, 2),
          *sines = random_values(T * HALF, 3); /* any will do */
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
static void check_rows_places(struct test_stream *t)
{
    enum { BUFFERS = 4, N = T * WIDTH_MAX, BYTES = (N + 16) * 4 };
    static const int64_t offs[PLACES] = {0, 1, 11}, widths[] = {272, 256, 132, 35};
    float *x = random_values(N + 16, 4), *source = test_upload(t, x, BYTES);
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
    float *qkv = random_values((int64_t)END * 3 * C, 8), *got = malloc(END * C * sizeof *got);
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

enum { SOFTMAX_ROWS = 3 };

struct softmax_run {
    float loss[SOFTMAX_ROWS], right[SOFTMAX_ROWS];
    void *slopes; /* (rows, ld), of the dtype; owned */
};

/* Of rows [first, SOFTMAX_ROWS) of a->logits, which are on the host. `apart`: the gradients do not
 * take the place of the logits. */
static void run_softmax(struct test_stream *t, const struct dpt_launch_softmax *a, int first,
                        bool apart, struct softmax_run *ret)
{
    const size_t bytes = (size_t)(SOFTMAX_ROWS * a->ld) * sizeof(float);
    const size_t size = dpt_dtype_bytes(a->dtype), row_bytes = (size_t)a->ld * size;
    float *logits = test_upload(t, a->logits, bytes), *slopes = test_upload(t, a->logits, bytes);
    int32_t *targets = test_upload(t, a->targets, SOFTMAX_ROWS * sizeof *targets);
    float *loss = test_upload(t, ret->loss, sizeof ret->loss);
    float *right = test_upload(t, ret->right, sizeof ret->right);
    const struct dpt_cuda_device *device = dpt_cuda_device_of(dpt_cuda_stream(t->stream));
    struct dpt_launch_softmax run = *a;
    run.multiprocessors = device->multiprocessors;
    run.shared_bytes = device->shared_bytes;
    run.rows = SOFTMAX_ROWS - first;
    run.logits = logits + first * a->ld;
    run.targets = targets + first;
    run.loss = loss + first;
    run.right = right + first;
    run.dlogits = (apart ? slopes : logits) + first * a->ld;
    run.dlogits_ld = a->ld * (int64_t)(sizeof(float) / size);
    CHECK(dpt_launch_softmax_loss(dpt_cuda_stream(t->stream)->queue, &run) == 0);
    test_download(t, loss, sizeof ret->loss, ret->loss);
    test_download(t, right, sizeof ret->right, ret->right);
    ret->slopes = malloc(SOFTMAX_ROWS * row_bytes);
    DPT_ASSERT(ret->slopes);
    for (int row = first; row < SOFTMAX_ROWS; row++)
        test_download(t, (apart ? slopes : logits) + row * a->ld, row_bytes,
                      (char *)ret->slopes + (size_t)row * row_bytes);
    dpt_device_free(t->device, logits, bytes);
    dpt_device_free(t->device, slopes, bytes);
    dpt_device_free(t->device, targets, SOFTMAX_ROWS * sizeof *targets);
    dpt_device_free(t->device, loss, sizeof ret->loss);
    dpt_device_free(t->device, right, sizeof ret->right);
}

/* The loss, whether it is right, the gradient, and zeros where the padding is. */
static void check_softmax_row(const struct dpt_launch_softmax *a, int row,
                              const struct softmax_run *got)
{
    const float *x = a->logits + row * a->ld;
    const int32_t target = a->targets[row];
    double sum = 0, error = 0, size = 0, right = 1;
    for (int64_t i = 0; i < a->v; i++) {
        sum += exp((double)x[i]);
        if (i < target ? x[i] >= x[target] : x[i] > x[target])
            right = 0;
    }
    int64_t padding = 0;
    for (int64_t i = 0; i < a->ld; i++) {
        const int64_t at = row * a->ld + i;
        const float g = a->dtype == DPT_F32
                            ? ((const float *)got->slopes)[at]
                            : float_of(a->dtype, ((const uint16_t *)got->slopes)[at]);
        if (i >= a->v) {
            padding += g != 0.0f;
            continue;
        }
        const double p = exp((double)x[i]) / sum;
        const double want = (p - (i == target ? 1 : 0)) * (double)a->dloss;
        error += ((double)g - want) * ((double)g - want);
        size += want * want;
    }
    CHECK(padding == 0);
    CHECK(sqrt(error / size) <= gpu_tolerance[a->dtype]);
    CHECK(fabs((double)got->loss[row] - (log(sum) - (double)x[target])) <= 3e-6);
    CHECK((double)got->right[row] == right);
}

/* Rows of each kernel; the padding of the logits is NaN. A row has the same bits in place and
 * apart, alone and behind others. */
static void check_softmax(struct test_stream *t)
{
    static const struct {
        int64_t v, ld;
    } sizes[] = {{37, 64}, {2600, 2624}, {4099, 4160}, {50257, 50304}, {60003, 60032}};
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        const int64_t v = sizes[n].v, ld = sizes[n].ld;
        float *x = random_values(SOFTMAX_ROWS * ld, 10 + n);
        const int32_t targets[SOFTMAX_ROWS] = {(int32_t)v - 1, (int32_t)v / 2, 0};
        for (int row = 0; row < SOFTMAX_ROWS; row++)
            for (int64_t i = v; i < ld; i++)
                x[row * ld + i] = NAN;
        x[ld + v / 2] = 5.0f; /* the greatest of its row, and yet no certainty: p - 1 has digits */
        for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++) {
            const struct dpt_launch_softmax a = {.v = v,
                                                 .ld = ld,
                                                 .dtype = (enum dpt_dtype)dtype,
                                                 .logits = x,
                                                 .targets = targets,
                                                 .dloss = 0.25f};
            const size_t row_bytes = (size_t)ld * dpt_dtype_bytes(a.dtype);
            struct softmax_run runs[3] = {{.slopes = NULL}};
            run_softmax(t, &a, 0, true, &runs[0]);
            run_softmax(t, &a, 0, false, &runs[1]);
            run_softmax(t, &a, SOFTMAX_ROWS - 1, false, &runs[2]);
            for (int row = 0; row < SOFTMAX_ROWS; row++)
                check_softmax_row(&a, row, &runs[0]);
            CHECK(memcmp(runs[0].slopes, runs[1].slopes, SOFTMAX_ROWS * row_bytes) == 0);
            CHECK(memcmp(runs[0].loss, runs[1].loss, sizeof runs[0].loss) == 0);
            CHECK(memcmp((char *)runs[0].slopes + (SOFTMAX_ROWS - 1) * row_bytes,
                         (char *)runs[2].slopes + (SOFTMAX_ROWS - 1) * row_bytes, row_bytes) == 0);
            CHECK(memcmp(&runs[0].loss[SOFTMAX_ROWS - 1], &runs[2].loss[SOFTMAX_ROWS - 1],
                         sizeof(float)) == 0);
            for (int run = 0; run < 3; run++)
                free(runs[run].slopes);
        }
        free(x);
    }
}

/* Rows that do not begin at multiples of 32 bytes, and rows that are longer than an int counts. */
static void check_softmax_refuses(struct test_stream *t)
{
    const struct dpt_launch_softmax odd = {.rows = 1, .v = 5, .ld = 12, .dlogits_ld = 16};
    const struct dpt_launch_softmax odd_slopes = {.rows = 1, .v = 5, .ld = 16, .dlogits_ld = 20};
    const struct dpt_launch_softmax endless = {
        .rows = 1, .v = 5, .ld = (INT64_C(1) << 30) + 8, .dlogits_ld = (INT64_C(1) << 30) + 8};
    const struct dpt_launch_softmax none = {.v = 5, .ld = 16, .dlogits_ld = 16};
    void *queue = dpt_cuda_stream(t->stream)->queue;
    CHECK(dpt_launch_softmax_loss(queue, &odd) != 0);
    CHECK(dpt_launch_softmax_loss(queue, &odd_slopes) != 0);
    CHECK(dpt_launch_softmax_loss(queue, &endless) != 0);
    CHECK(dpt_launch_softmax_loss(queue, &none) == 0);
}

int main(void)
{
    struct test_stream t = gpu_open();
    gpu_seed();
    check_angles(&t);
    check_rotation(&t);
    check_rows_places(&t);
    check_shared_keys(&t);
    check_softmax(&t);
    check_softmax_refuses(&t);
    test_stream_close(&t);
    return gpu_verdict("rows");
}
