/* Packed weights: the bits of every product that reads them are those without, over shapes that
 * fall on the edges of tiles and blocks, in every dtype, with one thread and two; and the ops read
 * the form alone. */
#include "tests/kernels/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { THREADS_MAX = 2, RESULTS = 5 };

/* The weights that have a packed form. */
struct form {
    const char *name;
    enum dpt_pack_kind kind;
    bool out_in;
};
static const struct form in_out = {"linear", DPT_PACK_LINEAR, false};
static const struct form out_in = {"linear (out, in)", DPT_PACK_LINEAR, true};
static const struct form head = {"head", DPT_PACK_HEAD, false};

/* A layer's operands in the dtype, and the results, as bytes. */
struct layer {
    struct dpt_pack pack;
    int64_t n;
    void *x, *w, *bias, *dy;
    int32_t *targets;
    void *out[RESULTS];
    size_t out_bytes[RESULTS];
};

static void *upload_values(struct test_stream *t, enum dpt_dtype dtype, int64_t n, uint64_t which)
{
    float *plain = malloc((size_t)n * sizeof *plain);
    void *rounded = aligned_alloc(64, ((size_t)n * dpt_dtype_bytes(dtype) + 63) / 64 * 64);
    assert_true(plain && rounded);
    fill_random(plain, n, which);
    t->ops->cast(t->stream, n, plain, dtype, rounded);
    free(plain);
    return rounded;
}

static void result(struct layer *l, int i, int64_t n, enum dpt_dtype dtype)
{
    l->out_bytes[i] = (size_t)n * dpt_dtype_bytes(dtype);
    l->out[i] = aligned_alloc(64, (l->out_bytes[i] + 63) / 64 * 64);
    assert_non_null(l->out[i]);
}

/* Shape: n, and the rows and columns of the weight as stored. */
static void layer_init(struct layer *l, struct test_stream *t, const struct form *form,
                       enum dpt_dtype dtype, const int64_t shape[3])
{
    const int64_t n = shape[0], rows = shape[1], cols = shape[2];
    const bool is_head = form->kind == DPT_PACK_HEAD, turned = is_head || form->out_in;
    const int64_t in = turned ? cols : rows, out = turned ? rows : cols;
    *l = (struct layer){.pack = {.kind = form->kind,
                                 .rows = rows,
                                 .cols = cols,
                                 .dtype = dtype,
                                 .out_in = form->out_in},
                        .n = n};
    l->x = upload_values(t, dtype, n * in, 1);
    l->w = upload_values(t, dtype, rows * cols, 2);
    l->bias = upload_values(t, dtype, out, 3);
    l->dy = upload_values(t, dtype, n * out, 4);
    l->targets = calloc((size_t)n, sizeof *l->targets);
    assert_non_null(l->targets);
    for (int64_t i = 0; i < n; i++)
        l->targets[i] = (int32_t)(i * 31 % rows);
    result(l, 0, n * (is_head ? in : out), dtype); /* y; head: dx */
    result(l, 1, n * out, dtype);                  /* gelu */
    result(l, 2, n * in, dtype);                   /* dx */
    result(l, 3, rows * cols, DPT_F32);            /* dw */
    result(l, 4, is_head ? n : out, DPT_F32);      /* dbias; head: losses */
    l->pack.w = l->w;
}

static void layer_fini(struct layer *l)
{
    void *all[] = {l->x, l->w, l->bias, l->dy, l->targets};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (int i = 0; i < RESULTS; i++)
        free(l->out[i]);
}

static void layer_run(struct layer *l, struct test_stream *t, const void *packed)
{
    const struct dpt_pack *p = &l->pack;
    const int64_t in = p->out_in ? p->cols : p->rows, out = p->out_in ? p->rows : p->cols;
    for (int i = 0; i < RESULTS; i++)
        memset(l->out[i], 0xff, l->out_bytes[i]);
    if (p->kind == DPT_PACK_HEAD) {
        t->ops->head_loss(t->stream, &(struct dpt_head_loss){.n = l->n,
                                                             .c = p->cols,
                                                             .v = p->rows,
                                                             .dtype = p->dtype,
                                                             .x = l->x,
                                                             .w = l->w,
                                                             .targets = l->targets,
                                                             .loss = l->out[4],
                                                             .dloss = 0.125f,
                                                             .dx = l->out[0],
                                                             .dw = l->out[3],
                                                             .packed = packed});
    } else {
        t->ops->linear_forward(t->stream, &(struct dpt_linear_forward){.n = l->n,
                                                                       .in = in,
                                                                       .out = out,
                                                                       .dtype = p->dtype,
                                                                       .x = l->x,
                                                                       .w = l->w,
                                                                       .bias = l->bias,
                                                                       .y = l->out[0],
                                                                       .gelu = l->out[1],
                                                                       .packed = packed,
                                                                       .out_in = p->out_in});
        t->ops->linear_backward(t->stream, &(struct dpt_linear_backward){.n = l->n,
                                                                         .in = in,
                                                                         .out = out,
                                                                         .dtype = p->dtype,
                                                                         .x = l->x,
                                                                         .w = l->w,
                                                                         .dy = l->dy,
                                                                         .dx = l->out[2],
                                                                         .dw = l->out[3],
                                                                         .dbias = l->out[4],
                                                                         .packed = packed,
                                                                         .out_in = p->out_in});
    }
    test_stream_check(t);
}

static void keep(const struct layer *l, void *ret[RESULTS])
{
    for (int i = 0; i < RESULTS; i++) {
        ret[i] = malloc(l->out_bytes[i]);
        assert_non_null(ret[i]);
        memcpy(ret[i], l->out[i], l->out_bytes[i]);
    }
}

static void drop(void *kept[RESULTS])
{
    for (int i = 0; i < RESULTS; i++)
        free(kept[i]);
}

static bool same_results(const struct layer *l, void *const kept[RESULTS])
{
    for (int i = 0; i < RESULTS; i++)
        if (memcmp(kept[i], l->out[i], l->out_bytes[i]) != 0)
            return false;
    return true;
}

/* A form of exactly the bytes that were asked for: a sanitizer sees one byte more. */
static void *form_of(struct layer *l, struct test_stream *t, size_t *ret_bytes)
{
    *ret_bytes = t->ops->packed_bytes(t->stream, &l->pack);
    test_stream_check(t);
    assert_true(*ret_bytes > 0 && *ret_bytes % 64 == 0);
    l->pack.packed = aligned_alloc(64, *ret_bytes);
    assert_non_null(l->pack.packed);
    memset(l->pack.packed, 0xff, *ret_bytes);
    t->ops->pack(t->stream, &l->pack);
    test_stream_check(t);
    return l->pack.packed;
}

static void check_packed_layer(struct test_stream *t, int threads, const struct form *of,
                               enum dpt_dtype dtype, const int64_t shape[3])
{
    struct layer l;
    void *plain[RESULTS];
    size_t bytes;
    layer_init(&l, t, of, dtype, shape);
    layer_run(&l, t, NULL);
    keep(&l, plain);
    void *form = form_of(&l, t, &bytes);
    layer_run(&l, t, form);
    if (!same_results(&l, plain))
        fail_msg("%s %s (%d,%d,%d), %d threads: packed weights give other bits", of->name,
                 dtype_name(dtype), (int)shape[0], (int)shape[1], (int)shape[2], threads);

    /* The packed form is read: other weights beside it change nothing … */
    const int64_t numel = shape[1] * shape[2];
    void *others = upload_values(t, dtype, numel, 5);
    memcpy(l.w, others, (size_t)numel * dpt_dtype_bytes(dtype));
    layer_run(&l, t, form);
    assert_true(same_results(&l, plain));
    /* … until they are packed again; then the results are those of the other weights. */
    t->ops->pack(t->stream, &l.pack);
    layer_run(&l, t, form);
    assert_false(same_results(&l, plain));
    drop(plain);
    keep(&l, plain);
    layer_run(&l, t, NULL);
    assert_true(same_results(&l, plain));

    drop(plain);
    free(others);
    free(form);
    layer_fini(&l);
}

/* Tiles are 128 x 192, blocks of the library 64 and 16 wide; from 32 tiles on a side is packed
 * differently; columns 2 KiB apart are transposed first; the head's blocks have 3072 rows. */
static void test_same_bits(void **state)
{
    (void)state;
    static const int64_t linear[][3] = {{1, 1, 1},      {3, 5, 7},       {130, 193, 65},
                                        {129, 64, 200}, {64, 512, 1024}, {33, 17, 6200},
                                        {9, 6200, 18},  {4100, 12, 20},  {256, 192, 384}};
    static const int64_t heads[][3] = {
        {3, 50, 8}, {260, 3072, 40}, {7, 3073, 64}, {521, 6245, 33}, {16, 6144, 512}};
    for (int threads = 1; threads <= THREADS_MAX; threads++) {
        struct test_stream t = test_stream_open(threads);
        for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++) {
            for (size_t i = 0; i < sizeof linear / sizeof *linear; i++) {
                check_packed_layer(&t, threads, &in_out, dtype, linear[i]);
                check_packed_layer(&t, threads, &out_in, dtype, linear[i]);
            }
            for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
                check_packed_layer(&t, threads, &head, dtype, heads[i]);
        }
        test_stream_close(&t);
    }
}

/* A form made with one number of threads is the form for any other. */
static void test_form_is_the_same_for_any_threads(void **state)
{
    (void)state;
    const int64_t shape[3] = {40, 300, 500};
    struct test_stream one = test_stream_open(1), two = test_stream_open(2);
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++) {
        struct layer l;
        void *plain[RESULTS];
        size_t bytes;
        layer_init(&l, &one, dtype == DPT_BF16 ? &out_in : &in_out, dtype, shape);
        void *form = form_of(&l, &one, &bytes);
        assert_int_equal(two.ops->packed_bytes(two.stream, &l.pack), bytes);
        layer_run(&l, &one, NULL);
        keep(&l, plain);
        layer_run(&l, &two, form);
        assert_true(same_results(&l, plain));
        drop(plain);
        free(form);
        layer_fini(&l);
    }
    test_stream_close(&one);
    test_stream_close(&two);
}

static void test_unknown_dtype_is_refused(void **state)
{
    (void)state;
    struct test_stream t = test_stream_open(1);
    struct dpt_err err;
    const struct dpt_pack pack = {
        .kind = DPT_PACK_LINEAR, .rows = 4, .cols = 4, .dtype = DPT_DTYPE_COUNT};
    assert_int_equal(t.ops->packed_bytes(t.stream, &pack), 0);
    assert_int_equal(dpt_stream_sync(t.stream, &err), DPT_EUNSUPPORTED);
    t.ops->pack(t.stream, &pack);
    assert_int_equal(dpt_stream_sync(t.stream, &err), DPT_EUNSUPPORTED);
    test_stream_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_form_is_the_same_for_any_threads),
        cmocka_unit_test(test_unknown_dtype_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
