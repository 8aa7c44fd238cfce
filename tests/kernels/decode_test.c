/* The ops of decoding against plain loops in double, at shapes that are no multiple of anything,
 * and their bits over threads and instruction sets. */
#include "tests/every.h"
#include "tests/kernels/harness.h"

#include "kernels/cpu/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float *random_floats(int64_t n, uint64_t which)
{
    float *p = malloc((size_t)n * sizeof *p);
    assert_non_null(p);
    fill_random(p, n, which);
    return p;
}

static float *poisoned(int64_t n)
{
    float *p = malloc((size_t)n * sizeof *p);
    assert_non_null(p);
    poison(p, n);
    return p;
}

static void expect_near(const float *got, int64_t i, double want, double scale)
{
    if (!(fabs((double)got[i] - want) <= 2e-6 * scale))
        fail_msg("[%lld] is %.9g, should be %.9g", (long long)i, (double)got[i], want);
}

/* Runs an op on streams of 1 to 4 threads and of every instruction set; all must give `want`. */
static void expect_same(void (*run)(const struct test_stream *s, float *y, void *ctx), void *ctx,
                        const float *want, int64_t n)
{
    for (int i = 0; i < 8; i++) {
        const struct dpt_cpu_kernels *isa = i < 4 ? NULL : dpt_cpu_kernels_at(i - 4);
        if (i >= 4 && !isa)
            break;
        struct test_stream s = test_stream_open_with(isa, i < 4 ? i + 1 : 2);
        float *y = poisoned(n);
        run(&s, y, ctx);
        test_stream_close(&s);
        if (memcmp(y, want, (size_t)n * sizeof *y) != 0)
            fail_msg("other bits with %s", isa ? isa->name : "other threads");
        free(y);
    }
}

struct linear {
    int64_t in, out;
    const float *x, *w, *bias;
    bool out_in;
};

static void run_linear(const struct test_stream *s, float *y, void *ctx)
{
    const struct linear *l = ctx;
    s->ops->linear_row(s->stream, &(struct dpt_linear_row){.in = l->in,
                                                           .out = l->out,
                                                           .x = l->x,
                                                           .w = l->w,
                                                           .bias = l->bias,
                                                           .y = y,
                                                           .out_in = l->out_in});
}

static void check_linear(struct linear *l)
{
    float *y = poisoned(l->out);
    struct test_stream s = test_stream_open(1);
    run_linear(&s, y, l);
    test_stream_close(&s);
    for (int64_t j = 0; j < l->out; j++) {
        double sum = l->bias ? (double)l->bias[j] : 0, scale = fabs(sum);
        for (int64_t i = 0; i < l->in; i++) {
            const double w = (double)l->w[l->out_in ? j * l->in + i : i * l->out + j];
            sum += (double)l->x[i] * w;
            scale += fabs((double)l->x[i] * w);
        }
        expect_near(y, j, sum, scale);
    }
    expect_same(run_linear, l, y, l->out);
    free(y);
}

static void linear_row(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 1},    {3, 15}, {16, 16},  {7, 65},   {100, 200},
                                        {33, 129}, {5, 3},  {64, 257}, {36, 600}, {129, 48}};
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k += dpt_test_sanitized_every()) {
        const int64_t in = shapes[k][0], out = shapes[k][1];
        float *x = random_floats(in, 1), *w = random_floats(in * out, 2);
        float *bias = random_floats(out, 3);
        for (int i = 0; i < 4; i++)
            check_linear(&(struct linear){in, out, x, w, i % 2 ? bias : NULL, i >= 2});
        free(x);
        free(w);
        free(bias);
    }
}

struct attention {
    int64_t first, end, heads, kv_heads, head_size;
    const float *qkv;
};

static void run_attention(const struct test_stream *s, float *y, void *ctx)
{
    const struct attention *a = ctx;
    s->ops->attention_rows(s->stream, &(struct dpt_attention_rows){.first = a->first,
                                                                   .end = a->end,
                                                                   .heads = a->heads,
                                                                   .kv_heads = a->kv_heads,
                                                                   .head_size = a->head_size,
                                                                   .qkv = a->qkv,
                                                                   .y = y});
}

/* One element of one row: the mean of a channel's values, weighted by the softmax of the scores. */
static double attended(const struct attention *a, int64_t row, int64_t channel)
{
    const int64_t hd = a->head_size, head = channel / hd, ld = (a->heads + 2 * a->kv_heads) * hd;
    const float *q = a->qkv + row * ld + head * hd;
    const float *k = a->qkv + (a->heads + head / (a->heads / a->kv_heads)) * hd;
    const float *v = k + a->kv_heads * hd + channel % hd;
    double max = -1e300, sum = 0, mean = 0, score[256];
    for (int64_t t = 0; t <= row; t++) {
        score[t] = 0;
        for (int64_t i = 0; i < hd; i++)
            score[t] += (double)q[i] * (double)k[t * ld + i] / sqrt((double)hd);
        max = fmax(max, score[t]);
    }
    for (int64_t t = 0; t <= row; t++) {
        const double p = exp(score[t] - max);
        sum += p;
        mean += p * (double)v[t * ld];
    }
    return mean / sum;
}

static void attention_rows(void **state)
{
    (void)state;
    static const int64_t shapes[][5] = {{0, 1, 1, 1, 1},   {0, 7, 2, 2, 5},      {16, 17, 3, 3, 16},
                                        {3, 70, 4, 4, 9},  {199, 200, 1, 1, 64}, {5, 40, 6, 2, 10},
                                        {70, 71, 4, 1, 32}};
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        struct attention a = {shapes[k][0], shapes[k][1], shapes[k][2],
                              shapes[k][3], shapes[k][4], NULL};
        float *qkv = random_floats(a.end * (a.heads + 2 * a.kv_heads) * a.head_size, 6);
        const int64_t c = a.heads * a.head_size, n = (a.end - a.first) * c;
        float *y = poisoned(n);
        a.qkv = qkv;
        struct test_stream s = test_stream_open(1);
        run_attention(&s, y, &a);
        test_stream_close(&s);
        for (int64_t i = 0; i < n; i++)
            expect_near(y, i, attended(&a, a.first + i / c, i % c), 10);
        expect_same(run_attention, &a, y, n);
        free(qkv);
        free(y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_row),
        cmocka_unit_test(attention_rows),
    };
    return cmocka_run_group_tests_name("decode", tests, NULL, NULL);
}
