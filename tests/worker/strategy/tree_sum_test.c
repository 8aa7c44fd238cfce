/* The ordered sum against a recursion that adds one element at a time: random trees, parts and
 * places of the results. */
#include "worker/strategy/reduce/tree_sum.h"
#include "worker/trace/recorder.h"

#include "base/rng.h"
#include "kernels/device.h"
#include "kernels/half.h"
#include "kernels/op_times.h"
#include "tests/every.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES_MAX = 64, NUMEL_MAX = 3 * DPT_TREE_SUM_CHUNK + 7, ROUNDS = 120 };

static struct dpt_device *device;
static struct dpt_stream *stream;
static const struct dpt_ops *ops;

static int setup(void **state)
{
    (void)state;
    struct dpt_err err;
    if (dpt_device_cpu_create(&device, &err) != DPT_OK ||
        dpt_stream_create(device, 1, &stream, &err) != DPT_OK)
        return -1;
    ops = dpt_device_ops(device);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    dpt_stream_destroy(&stream);
    dpt_device_destroy(&device);
    return 0;
}

struct random {
    struct dpt_rng_key key;
    uint64_t at;
};

static uint32_t random_below(struct random *r, uint32_t below)
{
    uint32_t block[4];
    dpt_philox(r->key, r->at++, block);
    return block[0] % below;
}

/* Values whose sum depends on the order: 24 bits of mantissa over twelve powers of two. */
static float value(struct random *r)
{
    uint32_t block[4];
    dpt_philox(r->key, r->at++, block);
    float x = (float)(int32_t)block[0] * 0x1p-31f;
    return x * (float)(1 << (block[1] % 12));
}

struct sum {
    int lanes, n_parts, n_out;
    struct dpt_partial parts[LANES_MAX];
    float *memory[LANES_MAX]; /* of each part */
    struct dpt_range outs[DPT_COVER_MAX];
    float *out_data[DPT_COVER_MAX];
    enum dpt_dtype dtype;
    uint16_t *narrow[LANES_MAX]; /* NULL: memory has it */
    int64_t numel;
};

/* Cuts `node` into parts that are nodes of its tree. */
static void cut(struct sum *s, struct random *r, struct dpt_range node, uint32_t whole_of)
{
    if (node.end - node.first < 2 || random_below(r, whole_of) == 0) {
        s->parts[s->n_parts++].node = node;
        return;
    }
    int split = dpt_tree_split(node);
    cut(s, r, (struct dpt_range){node.first, split}, whole_of);
    cut(s, r, (struct dpt_range){split, node.end}, whole_of);
}

static float round_to_leaf(const struct sum *s, float x)
{
    return s->dtype == DPT_BF16  ? dpt_f32_of_bf16(dpt_bf16_of_f32(x))
           : s->dtype == DPT_F16 ? dpt_f32_of_f16(dpt_f16_of_f32(x))
                                 : x;
}

/* One element of `node`'s sum; `next` runs over the parts. */
static float reference(const struct sum *s, struct dpt_range node, int *next, int64_t i)
{
    const struct dpt_partial *part = &s->parts[*next];
    if (part->node.first == node.first && part->node.end == node.end) {
        (*next)++;
        return part->data[i];
    }
    int split = dpt_tree_split(node);
    float left = reference(s, (struct dpt_range){node.first, split}, next, i);
    float right = reference(s, (struct dpt_range){split, node.end}, next, i);
    return round_to_leaf(s, left + right);
}

static void fill_leaves(struct sum *s, struct random *r)
{
    for (int p = 0; p < s->n_parts; p++) {
        s->memory[p] = malloc((size_t)(s->numel + 1) * sizeof(float));
        assert_non_null(s->memory[p]);
        for (int64_t i = 0; i < s->numel; i++)
            s->memory[p][i] = round_to_leaf(s, value(r));
        s->parts[p].data = s->memory[p];
        s->narrow[p] = NULL;
        if (s->dtype == DPT_F32 || random_below(r, 2) == 0)
            continue;
        s->narrow[p] = malloc((size_t)(s->numel + 1) * sizeof(uint16_t));
        assert_non_null(s->narrow[p]);
        for (int64_t i = 0; i < s->numel; i++)
            s->narrow[p][i] = s->dtype == DPT_BF16 ? dpt_bf16_of_f32(s->memory[p][i])
                                                   : dpt_f16_of_f32(s->memory[p][i]);
    }
}

/* Gives each result a place: separate memory, or that of any part, none twice. */
static void place_leaves(struct sum *s, struct random *r, bool alias)
{
    int order[LANES_MAX];
    for (int i = 0; i < s->n_parts; i++)
        order[i] = i;
    for (int i = s->n_parts - 1; i > 0; i--) {
        int j = (int)random_below(r, (uint32_t)i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (int o = 0; o < s->n_out; o++) {
        s->out_data[o] = alias ? s->memory[order[o]] : malloc((size_t)(s->numel + 1) * 4);
        assert_non_null(s->out_data[o]);
    }
}

static void check_tree_sum(struct sum *s, struct random *r, bool alias, uint64_t seed)
{
    fill_leaves(s, r);
    place_leaves(s, r, alias);
    float *expected[DPT_COVER_MAX];
    int next = 0, first = 0;
    for (int o = 0; o < s->n_out; o++) {
        expected[o] = malloc((size_t)(s->numel + 1) * sizeof(float));
        assert_non_null(expected[o]);
        for (int64_t i = 0; i < s->numel; i++) {
            next = first;
            expected[o][i] = reference(s, s->outs[o], &next, i);
        }
        if (s->numel > 0)
            first = next;
    }
    for (int p = 0; p < s->n_parts; p++)
        if (s->narrow[p]) {
            s->parts[p].data = NULL;
            s->parts[p].narrow = s->narrow[p];
        }
    float *scratch = malloc(dpt_tree_sum_scratch_numel() * sizeof(float));
    assert_non_null(scratch);
    memset(scratch, 0xff, dpt_tree_sum_scratch_numel() * sizeof(float));
    /* A single result is wanted in the memory of every part, too. */
    float *copies[LANES_MAX];
    int n_copies = 0;
    for (int p = 0; alias && s->n_out == 1 && p < s->n_parts; p++)
        if (s->memory[p] != s->out_data[0])
            copies[n_copies++] = s->memory[p];
    const struct dpt_tree_sum sum = {.parts = s->parts,
                                     .n_parts = s->n_parts,
                                     .out_nodes = s->outs,
                                     .out_data = s->out_data,
                                     .n_out = s->n_out,
                                     .copies = copies,
                                     .n_copies = n_copies,
                                     .dtype = s->dtype,
                                     .numel = s->numel,
                                     .scratch = scratch};
    dpt_tree_sum_add(ops, stream, &sum);
    free(scratch);
    for (int i = 0; i < n_copies; i++)
        if (memcmp(expected[0], copies[i], (size_t)s->numel * sizeof(float)) != 0)
            fail_msg("seed %llu: copy %d of %d differs (%d lanes, %d parts, %lld elements)",
                     (unsigned long long)seed, i, n_copies, s->lanes, s->n_parts,
                     (long long)s->numel);
    for (int o = 0; o < s->n_out; o++)
        if (memcmp(expected[o], s->out_data[o], (size_t)s->numel * sizeof(float)) != 0)
            fail_msg("seed %llu: result %d of %d differs (%d lanes, %d parts, %lld elements)",
                     (unsigned long long)seed, o, s->n_out, s->lanes, s->n_parts,
                     (long long)s->numel);
    for (int o = 0; o < s->n_out; o++) {
        free(expected[o]);
        if (!alias)
            free(s->out_data[o]);
    }
    for (int p = 0; p < s->n_parts; p++) {
        free(s->memory[p]);
        free(s->narrow[p]);
    }
}

static void random_sums(bool alias, bool whole, enum dpt_dtype dtype)
{
    static const int64_t numels[] = {
        0, 1, 5, DPT_TREE_SUM_CHUNK - 1, DPT_TREE_SUM_CHUNK, DPT_TREE_SUM_CHUNK + 1, NUMEL_MAX};
    for (uint64_t seed = 0; seed < ROUNDS; seed += dpt_test_sanitized_every()) {
        struct random r = {.key = dpt_rng_key(seed, DPT_RNG_TEST, 2, alias, whole)};
        struct sum s = {.lanes = 1 + (int)random_below(&r, LANES_MAX), .dtype = dtype};
        struct dpt_range run = {0, s.lanes};
        if (!whole) {
            run.first = (int)random_below(&r, (uint32_t)s.lanes);
            run.end = run.first + 1 + (int)random_below(&r, (uint32_t)(s.lanes - run.first));
        }
        s.n_out = dpt_tree_cover(s.lanes, run, s.outs);
        uint32_t whole_of = 1 + random_below(&r, 5);
        for (int o = 0; o < s.n_out; o++)
            cut(&s, &r, s.outs[o], whole_of);
        s.numel = numels[random_below(&r, sizeof numels / sizeof numels[0])];
        check_tree_sum(&s, &r, alias, seed);
    }
}

static void sum_of_the_whole_tree(void **state)
{
    (void)state;
    random_sums(false, true, DPT_F32);
}

static void several_results(void **state)
{
    (void)state;
    random_sums(false, false, DPT_F32);
}

static void results_where_parts_lie(void **state)
{
    (void)state;
    random_sums(true, true, DPT_F32);
    random_sums(true, false, DPT_F32);
}

/* Each node's sum is rounded, and parts come in 16 bits or as they are. */
static void rounded_sums(void **state)
{
    (void)state;
    for (int alias = 0; alias < 2; alias++)
        for (int whole = 0; whole < 2; whole++) {
            random_sums(alias, whole, DPT_BF16);
            random_sums(alias, whole, DPT_F16);
        }
}

/* The deepest tree there is, lane by lane. */
static void every_lane_of_the_largest_tree(void **state)
{
    (void)state;
    static struct dpt_partial parts[DPT_LANES_MAX];
    static float lane[DPT_LANES_MAX];
    for (int lanes = DPT_LANES_MAX - 1; lanes <= DPT_LANES_MAX; lanes++) {
        struct random r = {.key = dpt_rng_key(5, DPT_RNG_TEST, 3, 0, 0)};
        for (int i = 0; i < lanes; i++) {
            lane[i] = value(&r);
            parts[i] = (struct dpt_partial){.node = {i, i + 1}, .data = &lane[i]};
        }
        float level[DPT_LANES_MAX];
        /* The tree by hand: full subtrees are pairwise sums, the rest joins them from the right. */
        struct dpt_range whole = {0, lanes};
        memcpy(level, lane, sizeof level);
        float rest = 0;
        bool has_rest = false;
        for (int n = lanes; n > 0; n /= 2) {
            if (n % 2 != 0) { /* the last subtree of this width has no partner */
                rest = has_rest ? level[n - 1] + rest : level[n - 1];
                has_rest = true;
            }
            for (int i = 0; i < n / 2; i++)
                level[i] = level[2 * i] + level[2 * i + 1];
        }
        float got = 0, *out = &got;
        float *scratch = malloc(dpt_tree_sum_scratch_numel() * sizeof(float));
        assert_non_null(scratch);
        const struct dpt_tree_sum sum = {.parts = parts,
                                         .n_parts = lanes,
                                         .out_nodes = &whole,
                                         .out_data = &out,
                                         .n_out = 1,
                                         .dtype = DPT_F32,
                                         .numel = 1,
                                         .scratch = scratch};
        dpt_tree_sum_add(ops, stream, &sum);
        free(scratch);
        assert_memory_equal(&got, &rest, sizeof got);
    }
}

/* ---- traces ---- */

static void pass_to_trace(const char *op, const struct dpt_op_shape *shape, int64_t begin_ns,
                          int64_t end_ns)
{
    (void)shape;
    dpt_trace_ring_add(dpt_trace_ring_here, begin_ns, end_ns,
                       &(struct dpt_trace_span){.name = op, .kind = DPT_TRACE_OP});
}

static bool is_traced_now(void)
{
    return dpt_trace_begin() != 0;
}

/* A sum of many chunks is one op in a trace, and its additions are none. What follows on the thread
 * is traced again. */
static void a_traced_sum_is_one_op(void **state)
{
    (void)state;
    static float a[NUMEL_MAX], b[NUMEL_MAX], sum[NUMEL_MAX];
    struct dpt_err err;
    struct dpt_device *traced;
    struct dpt_stream *its_stream;
    struct dpt_trace_recorder *recorder;
    struct dpt_trace_events events;
    float *out = sum, *scratch = malloc(dpt_tree_sum_scratch_numel() * sizeof(float));
    assert_non_null(scratch);
    assert_int_equal(dpt_device_cpu_create(&traced, &err), DPT_OK);
    dpt_device_trace_ops(traced, pass_to_trace, is_traced_now);
    assert_int_equal(dpt_stream_create(traced, 1, &its_stream, &err), DPT_OK);
    assert_int_equal(dpt_trace_recorder_create(64, &recorder, &err), DPT_OK);
    dpt_trace_attach(recorder, DPT_TRACE_MAIN);
    dpt_trace_recorder_begin(recorder);
    const struct dpt_partial parts[] = {{{0, 1}, a, NULL}, {{1, 2}, b, NULL}};
    const struct dpt_range whole = {0, 2};
    dpt_tree_sum_add(dpt_device_ops(traced), its_stream,
                     &(struct dpt_tree_sum){.parts = parts,
                                            .n_parts = 2,
                                            .out_nodes = &whole,
                                            .out_data = &out,
                                            .n_out = 1,
                                            .dtype = DPT_F32,
                                            .numel = NUMEL_MAX,
                                            .scratch = scratch});
    dpt_device_ops(traced)->add(its_stream, NUMEL_MAX, a, b, sum);
    dpt_trace_recorder_end(recorder);
    dpt_trace_recorder_read(recorder, DPT_TRACE_MAIN, &events);
    assert_int_equal(events.n, 2);
    assert_string_equal(events.event[0].span.name, "ordered_sum");
    assert_int_equal(events.event[0].span.kind, DPT_TRACE_OP);
    assert_int_equal(events.event[0].span.value[0], NUMEL_MAX);
    assert_int_equal(events.event[0].span.value[1], 2);
    assert_string_equal(events.event[1].span.name, "add");
    dpt_trace_attach(NULL, DPT_TRACE_MAIN);
    dpt_trace_recorder_destroy(&recorder);
    dpt_stream_destroy(&its_stream);
    dpt_device_destroy(&traced);
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_of_the_whole_tree),          cmocka_unit_test(several_results),
        cmocka_unit_test(results_where_parts_lie),        cmocka_unit_test(rounded_sums),
        cmocka_unit_test(every_lane_of_the_largest_tree), cmocka_unit_test(a_traced_sum_is_one_op),
    };
    return cmocka_run_group_tests_name("tree_sum", tests, setup, teardown);
}
